"""The control command that lists spools: the messages that nodes keep for queues that they cannot reach.

See `leveret.broker.remote.store_and_forward`.

Only the node that keeps something knows of it, so the nodes are asked one after the other. In a partition those on the
other side do not answer, and are named as missing: ask there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import NUMBER, OBJECT, RUNNING, TEXTS, Commands
from leveret.node.admin.queues.lists import check_columns, numbered_page, page, running_nodes, walk

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()


@COMMANDS.add(RUNNING, columns=TEXTS, after=OBJECT.or_none())
async def list_spools(control: Control, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.SPOOLS)
    return (await walk(control, "local_spools", {"columns": columns}, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER)
async def local_spools(control: Control, columns: list[str], after: int) -> Any:
    check_columns(columns, columns_.SPOOLS)
    spools, here = control.node.broker.spools, control.server.settings.node_name
    found, following = numbered_page(spools.by_target.items(), after)
    rows = []
    for spool in found:
        told = {"node": here, **spools.figures_of(spool)._asdict()}
        rows.append([told[name] for name in columns])
    return page(rows, following)
