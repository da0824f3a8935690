"""Deliberate bugs in what serves clients of MQTT, for each of the checks of `simulation.mqtt`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation

MQTT: Final = (
    Mutation(
        "a QoS 2 message has another identifier at another node",
        3,
        "MqttConsumer._number_of",
        "first = batch.first_number if isinstance(batch, RemoteBatch) else 0",
        "first = 0",
    ),
    Mutation(
        "what a queue refuses is acknowledged",
        3,
        "mqtt.publisher:Publisher.send_confirms",
        "self.tell(answer, Reason.QUOTA_EXCEEDED if refused else Reason.SUCCESS)",
        "self.tell(answer, Reason.SUCCESS)",
        first=3,
    ),
    Mutation(
        "a QoS 2 publish that is sent again has another number",
        3,
        "mqtt.publisher:Publisher._number",
        "number = self.received.get(packet_id)",
        "number = None",
        first=1,
    ),
    Mutation(
        "the identifier of a refused publish is not forgotten",
        3,
        "mqtt.publisher:Publisher._give_up",
        "self._change(change, encode(answer, V5), on_agreed)",
        "on_agreed()\nself.connection.send(answer)",
        first=3,
    ),
    Mutation(
        "a refusal is forgotten before its client has read it",
        3,
        "mqtt.publisher:Publisher._give_up",
        "change = SessionChange(received=((packet_id, 1, 0),), completed=ranges_of(oldest))",
        "change = SessionChange(completed=ranges_of([packet_id]))",
        first=5,
    ),
    Mutation(
        "what a client has taken is not remembered",
        1,
        "MqttConsumer._numbered",
        "if deliveries.has_taken(own): ...",
        "if False: ...",
        first=2,
    ),
    Mutation(
        "an identifier can be used again before it is released",
        1,
        "Deliveries._on_received",
        "change = SessionChange(releasing=ranges_of(ids), taken_of=self.taken_of, taken=taken)",
        "change = SessionChange(taken_of=self.taken_of, taken=taken)",
        first=2,
    ),
    Mutation(
        "a QoS 2 message of a shared subscription stays with the group",
        1,
        "MqttConsumer._numbered",
        "if qos == 2 and self.group and deliveries.is_kept: ...",
        "if False: ...",
        first=3,
    ),
    Mutation(
        "swaps what is published in one go",
        1,
        "mqtt.publisher:Publisher.submit",
        "contents, keys, expected = self.contents, self.keys, self.expected",
        "contents, keys, expected = self.contents[::-1], self.keys, self.expected",
    ),
    Mutation(
        "the first retained message of a turn is kept",
        1,
        "RetainedMessages.keep",
        "waiting.message, waiting.size = message, size",
        "waiting.size = size",
    ),
    Mutation(
        "a connection that is taken over stays",
        3,
        "mqtt.connection:Connection.on_taken_over",
        "self.end(Reason.SESSION_TAKEN_OVER, 'another connection has the client id')",
        "pass",
    ),
    Mutation(
        "a will has another number each time it is published",
        3,
        "Wills._publish",
        "origin = Origin(PRODUCER, will.number, through.get(queue.spec.id, 0))",
        "origin = Origin(b'will %d' % broker.now_ms, 1, 0)",
    ),
    Mutation(
        "a goodbye does not keep the will back",
        1,
        "mqtt.connection:Connection._on_disconnect",
        "self._shut('closed by the client', packet.reason != Reason.SUCCESS, expiry_s)",
        "self._shut('closed by the client', True, expiry_s)",
    ),
    Mutation(
        "a session ends with its connection",
        1,
        "MqttLogin._expiry",
        "return min(wanted, limit)",
        "return 0",
    ),
)
