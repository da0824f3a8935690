"""Commands that list, delete, purge and close: queues, exchanges, bindings, connections, channels, consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import VHOST, Command, Given, Message, Output
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

MONITORING: Final = "Monitoring, observability and health checks"
OPERATIONS: Final = "Operations"
QUEUES: Final = "Queues"


def list_queues(session: Session, given: Given) -> Output:
    session.banner(f"Timeout: {session.timeout_s(60.0)} seconds ...")
    session.banner(f"Listing queues for vhost {given.vhost} ...")
    which = {name: True for name in ("online", "offline", "local") if given.flag(name)}
    arguments = {"vhost": given.vhost, "only": given.only(), **which}
    return session.rows("list_queues", tuple(given.words) or columns.QUEUES_SHOWN, arguments)


def list_exchanges(session: Session, given: Given) -> Output:
    session.banner(f"Listing exchanges for vhost {given.vhost} ...")
    return session.rows("list_exchanges", tuple(given.words) or columns.EXCHANGES_SHOWN, {"vhost": given.vhost})


def list_bindings(session: Session, given: Given) -> Output:
    session.banner(f"Listing bindings for vhost {given.vhost}...")
    return session.rows("list_bindings", tuple(given.words) or columns.BINDINGS_SHOWN, {"vhost": given.vhost})


def list_connections(session: Session, given: Given) -> Output:
    session.banner("Listing connections ...")
    return session.rows("list_connections", tuple(given.words) or columns.CONNECTIONS_SHOWN)


def list_mqtt_connections(session: Session, given: Given) -> Output:
    session.banner("Listing MQTT connections ...")
    return session.rows("list_mqtt_connections", tuple(given.words) or columns.MQTT_CONNECTIONS_SHOWN)


def list_stomp_connections(session: Session, given: Given) -> Output:
    session.banner("Listing STOMP connections ...")
    return session.rows("list_stomp_connections", tuple(given.words) or columns.STOMP_CONNECTIONS_SHOWN)


def list_channels(session: Session, given: Given) -> Output:
    session.banner("Listing channels ...")
    return session.rows("list_channels", tuple(given.words) or columns.CHANNELS_SHOWN)


def list_consumers(session: Session, given: Given) -> Output:
    session.banner(f"Listing consumers in vhost {given.vhost} ...")
    return session.rows("list_consumers", tuple(given.words) or columns.CONSUMERS_SHOWN, {"vhost": given.vhost})


def delete_queue(session: Session, given: Given) -> Output:
    name = given.words[0]
    conditions = [word for word in ("empty", "unused") if given.flag(f"if-{word}")]
    only = f" if queue is {' and if queue is '.join(conditions)}" if conditions else ""
    session.banner(f"Deleting queue '{name}' on vhost '{given.vhost}'{only} ...")
    only_if = {"if_empty": given.flag("if-empty"), "if_unused": given.flag("if-unused")}
    deleted = session.ask("delete_queue", {"vhost": given.vhost, "name": name, **only_if})
    if not deleted.get("counted", True):
        return Message("Queue was successfully deleted; its node is down, so how many messages it had is not known")
    return Message(f"Queue was successfully deleted with {deleted['messages']} ready messages")


def purge_queue(session: Session, given: Given) -> Output:
    session.banner(f"Purging queue '{given.words[0]}' in vhost '{given.vhost}' ...")
    session.ask("purge_queue", {"vhost": given.vhost, "name": given.words[0]})
    return None


def close_connection(session: Session, given: Given) -> Output:
    pid, reason = given.words
    session.banner(f"Closing connection {pid}, reason: {reason}...")
    session.ask("close_connection", {"pid": pid, "reason": reason})
    return None


def _close(session: Session, vhost: str | None, user: str | None, reason: str) -> int:
    answer = session.ask("close_connections", {"vhost": vhost, "user": user, "reason": reason})
    for name in answer["missing"]:
        session.warn(f"Warning: node {name} did not answer; its connections are still open")
    return int(answer["closed"])


def close_all_connections(session: Session, given: Given) -> Output:
    if given.flag("global"):
        session.banner(f"Closing all connections to the cluster of {session.name}, reason: {given.words[0]}...")
        count = _close(session, None, None, given.words[0])
    else:
        session.banner(f"Closing all connections in vhost {given.vhost}, reason: {given.words[0]}...")
        count = _close(session, given.vhost, None, given.words[0])
    return Message(f"Closed {count} connections")


def close_all_user_connections(session: Session, given: Given) -> Output:
    user, reason = given.words
    session.banner(f"Closing connections of user {user}, reason: {reason}...")
    _close(session, None, user, reason)
    return None


IN_VHOST: Final = "[--vhost <vhost>] [--no-table-headers] [<column> ...] [--timeout <timeout>]"
ANYWHERE: Final = "[--no-table-headers] [<column> ...] [--timeout <timeout>]"
LIST_SWITCHES: Final[dict[str, str | None]] = {**VHOST, "online": None, "offline": None, "local": None}

COMMANDS: Final = (
    Command(
        "list_bindings", MONITORING, IN_VHOST, "Lists all bindings on a vhost",
        "leveretctl list_bindings source_name destination_name routing_key", list_bindings, 0, None, VHOST,
        columns=columns.BINDINGS,
    ),
    Command(
        "list_channels", MONITORING, ANYWHERE, "Lists all channels in the cluster",
        "leveretctl list_channels name messages_unacknowledged prefetch_count", list_channels, 0, None,
        columns=columns.CHANNELS,
    ),
    Command(
        "list_connections", MONITORING, ANYWHERE, "Lists the clients' connections of the cluster",
        "leveretctl list_connections pid name user state", list_connections, 0, None, columns=columns.CONNECTIONS,
    ),
    Command(
        "list_consumers", MONITORING, IN_VHOST, "Lists all consumers for a vhost", "leveretctl list_consumers",
        list_consumers, 0, None, VHOST, columns=columns.CONSUMERS,
    ),
    Command(
        "list_mqtt_connections", MONITORING, ANYWHERE, "Lists MQTT connections of the cluster",
        "leveretctl list_mqtt_connections client_id conn_name subscriptions", list_mqtt_connections, 0, None,
        columns=columns.MQTT_CONNECTIONS,
    ),
    Command(
        "list_stomp_connections", MONITORING, ANYWHERE, "Lists STOMP connections of the cluster",
        "leveretctl list_stomp_connections session_id conn_name version", list_stomp_connections, 0, None,
        columns=columns.STOMP_CONNECTIONS,
    ),
    Command(
        "list_exchanges", MONITORING, IN_VHOST, "Lists exchanges", "leveretctl list_exchanges name type durable",
        list_exchanges, 0, None, VHOST, columns=columns.EXCHANGES,
    ),
    Command(
        "list_queues", MONITORING,
        "[--vhost <vhost>] [--online] [--offline] [--local] [--no-table-headers] [<queue>] [<column>, ...] "
        "[--timeout <timeout>]",
        "Lists queues and their properties", "leveretctl list_queues name messages consumers node state", list_queues,
        0, None, LIST_SWITCHES, columns=columns.QUEUES, takes_name=True,
        more="--online, --offline: only queues of nodes that are running, or not; --local: only those of this node. "
        "With the name of a queue among the columns, only that queue is listed, for example: leveretctl list_queues "
        "orders slave_pids synchronised_slave_pids",
    ),
    Command(
        "close_all_connections", OPERATIONS, "[--vhost <vhost> | --global] <explanation>",
        "Instructs the broker to close all connections for the specified vhost or entire cluster",
        "leveretctl close_all_connections --global 'maintenance at noon'", close_all_connections, 1, 1,
        {**VHOST, "global": None},
    ),
    Command(
        "close_all_user_connections", OPERATIONS, "<username> <explanation>",
        "Instructs the broker to close all connections of the specified user",
        "leveretctl close_all_user_connections ann 'password changed'", close_all_user_connections, 2, 2,
    ),
    Command(
        "close_connection", OPERATIONS, "<connection pid> <explanation>",
        "Instructs the broker to close the connection with that pid",
        "leveretctl close_connection '<leveret@localhost.1.7.0>' 'too busy'", close_connection, 2, 2,
        more="To find the pid: leveretctl list_connections pid name",
    ),
    Command(
        "delete_queue", QUEUES, "[--vhost <vhost>] <queue_name> [--if-empty] [--if-unused]", "Deletes a queue",
        "leveretctl delete_queue orders --if-empty", delete_queue, 1, 1, {**VHOST, "if-empty": None, "if-unused": None},
    ),
    Command(
        "purge_queue", QUEUES, "[--vhost <vhost>] <queue>", "Purges a queue (removes all messages in it)",
        "leveretctl purge_queue orders", purge_queue, 1, 1, VHOST,
    ),
)  # fmt: skip
