"""Control commands by which the HTTP API of one node asks another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.base.exit_codes import DATA_ERROR
from leveret.metadata.definitions import BadDefinition, to_table
from leveret.node.admin.common.command import OBJECT, RUNNING, TEXT, Commands, Refused
from leveret.protocol import methods as m

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()


@COMMANDS.add(RUNNING, user=TEXT, host=TEXT, vhost=TEXT, name=TEXT, queue=OBJECT)
async def declare_for(control: Control, user: str, host: str, vhost: str, name: str, queue: dict[str, Any]) -> Any:
    """Declare a queue here, with the rights of a user. `code` is 0, or why a channel has refused it."""
    from leveret.management.api.common.internal_client import Closed, Session
    from leveret.management.http.http_messages import Problem, Request

    try:
        arguments = to_table(queue.get("arguments"))
        durable, auto_delete = bool(queue.get("durable")), bool(queue.get("auto_delete"))
        method = m.QueueDeclare(queue=name, durable=durable, auto_delete=auto_delete, arguments=arguments)
        if vhost not in control.node.metadata.vhosts:
            return {"code": 404, "text": f"NOT_FOUND - vhost {vhost} not found"}
        request = Request("PUT", "", [], {}, host, user=user)
        async with Session(control.server.node, request, vhost) as session:
            await session.ask(method, m.QueueDeclareOk)
    except Closed as closed:
        return {"code": closed.code, "text": closed.text}
    except (BadDefinition, Problem) as error:
        raise Refused(DATA_ERROR, str(error)) from None
    return {"code": 0, "text": ""}


@COMMANDS.add(RUNNING, name=TEXT)
async def local_connections_named(control: Control, name: str) -> Any:
    """Returns the users of the connections with that name, and their numbers, by which they can be closed."""
    return [
        {"number": connection.number, "user": connection.user}
        for connection in control.node.broker.connections
        if str(connection.peer) == name
    ]
