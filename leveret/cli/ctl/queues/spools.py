"""The command about spools: what nodes keep for queues that they cannot reach. See docs/spool.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import Command, Given, Output
from leveret.cli.ctl.queues.listings import ANYWHERE, MONITORING
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session


def list_spools(session: Session, given: Given) -> Output:
    session.banner("Listing spools ...")
    return session.rows("list_spools", tuple(given.words) or columns.SPOOLS_SHOWN)


COMMANDS: Final = (
    Command(
        "list_spools", MONITORING, ANYWHERE, "Lists messages that nodes store for queues that they cannot reach",
        "leveretctl list_spools node queue state reason messages oldest", list_spools, 0, None, columns=columns.SPOOLS,
        more="home: the node of the queue; state: collecting (the queue is unreachable), sending, waiting (for disk "
        "space, or for room in the queue) or empty; oldest: seconds since the first message was stored; sent, "
        "expired and refused (for lack of room): messages since the node started",
    ),
)  # fmt: skip
