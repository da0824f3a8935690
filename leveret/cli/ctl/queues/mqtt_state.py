"""Commands about what the cluster keeps for MQTT clients: retained messages, and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import VHOST, Command, Given, Output
from leveret.cli.ctl.queues.listings import IN_VHOST, MONITORING, OPERATIONS
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session


def list_retained_messages(session: Session, given: Given) -> Output:
    session.banner(f"Listing retained messages in vhost {given.vhost} ...")
    shown = tuple(given.words) or columns.RETAINED_MESSAGES_SHOWN
    return session.rows("list_retained_messages", shown, {"vhost": given.vhost})


def delete_retained_message(session: Session, given: Given) -> Output:
    session.banner(f"Deleting the retained message of topic '{given.words[0]}' in vhost '{given.vhost}' ...")
    session.ask("delete_retained_message", {"vhost": given.vhost, "topic": given.words[0]})
    return None


def list_mqtt_sessions(session: Session, given: Given) -> Output:
    session.banner(f"Listing MQTT sessions in vhost {given.vhost} ...")
    shown = tuple(given.words) or columns.MQTT_SESSIONS_SHOWN
    return session.rows("list_mqtt_sessions", shown, {"vhost": given.vhost})


def delete_mqtt_session(session: Session, given: Given) -> Output:
    session.banner(f"Deleting the session of client id '{given.words[0]}' in vhost '{given.vhost}' ...")
    session.ask("delete_mqtt_session", {"vhost": given.vhost, "client_id": given.words[0]})
    return None


COMMANDS: Final = (
    Command(
        "list_retained_messages", MONITORING, IN_VHOST, "Lists the retained messages of MQTT topics",
        "leveretctl list_retained_messages topic payload", list_retained_messages, 0, None, VHOST,
        columns=columns.RETAINED_MESSAGES, more="expires_in: seconds; payload: its first 200 bytes",
    ),
    Command(
        "list_mqtt_sessions", MONITORING, IN_VHOST, "Lists the sessions of MQTT clients, connected or not",
        "leveretctl list_mqtt_sessions client_id state expires_in", list_mqtt_sessions, 0, None, VHOST,
        columns=columns.MQTT_SESSIONS, more="expires_in: seconds until a session without a connection ends",
    ),
    Command(
        "delete_retained_message", OPERATIONS, "[--vhost <vhost>] <topic>",
        "Deletes the retained message of an MQTT topic", "leveretctl delete_retained_message sensors/attic/state",
        delete_retained_message, 1, 1, VHOST,
    ),
    Command(
        "delete_mqtt_session", OPERATIONS, "[--vhost <vhost>] <client_id>",
        "Ends the session of an MQTT client, with its subscriptions and messages",
        "leveretctl delete_mqtt_session sensor-17", delete_mqtt_session, 1, 1, VHOST,
        more="A client that is connected loses its connection, and its will is published.",
    ),
)  # fmt: skip
