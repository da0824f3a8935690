"""The topics below `$SYS`: figures of a node, for those who subscribe to them."""

from __future__ import annotations

from leveret.metadata.model import commands as c
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import Reason
from leveret.sessions.mqtt.limits import MqttLimits
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, connected, messages


def payloads(packets: list[k.Packet]) -> dict[str, bytes]:
    return {topic.removeprefix("$SYS/broker/"): payload for topic, payload, _ in messages(packets)}


def tick(client: MqttClient, now_ms: int) -> dict[str, bytes]:
    client.world.broker.now_ms = now_ms
    client.connection.on_tick(now_ms)
    return payloads(client.heard())


def test_what_a_subscriber_gets() -> None:
    world = World()
    world.broker.now_ms = 25_000
    publisher, gone = connected(world, "p"), connected(world, "g", properties={Prop.SESSION_EXPIRY: 100})
    gone.subscribe("x", qos=1)
    gone.publish("x", b"1", 1, retain=True)
    gone.lose()
    client = connected(world)
    got = client.subscribe("$SYS/#", qos=1)
    assert all(one.retain and not one.qos for one in got if isinstance(one, k.Publish))
    found = payloads(got)
    assert len(found) == 14 and found["version"].startswith(b"Leveret ") and found["uptime"] == b"25 seconds"
    assert (found["clients/connected"], found["clients/maximum"]) == (b"2", b"2")
    assert (found["clients/disconnected"], found["clients/total"]) == (b"1", b"3")
    assert (found["messages/received"], found["messages/sent"]) == (b"1", b"1")
    assert (found["retained messages/count"], found["subscriptions/count"]) == (b"1", b"1")
    assert int(found["bytes/received"]) > 0 and int(found["bytes/sent"]) > 0
    publisher.publish("x")
    assert tick(client, 29_900) == {}
    found = tick(client, 30_000)
    assert (found["messages/received"], found["uptime"]) == (b"2", b"30 seconds")
    assert not found.keys() & {"version", "clients/connected", "clients/total", "retained messages/count"}
    assert tick(client, 31_000) == {}
    client.unsubscribe("$SYS/#")
    assert client.connection.subscriptions.system is None and tick(client, 50_000) == {}


def test_one_topic() -> None:
    client = connected(World())
    assert payloads(client.subscribe("$SYS/broker/clients/+")).keys() == {
        "clients/connected", "clients/disconnected", "clients/maximum", "clients/total",
    }  # fmt: skip
    assert payloads(client.subscribe("$SYS/broker/uptime", packet_id=2)) == {"uptime": b"0 seconds"}
    assert tick(client, 10_000) == {"uptime": b"10 seconds"}


def test_wildcards_do_not_match_them() -> None:
    client = connected(World())
    assert payloads(client.subscribe("#", "+/broker/uptime")) == {} and tick(client, 60_000) == {}


def test_they_can_be_turned_off() -> None:
    client = connected(World(), limits=MqttLimits(sys_interval_s=0))
    assert payloads(client.subscribe("$SYS/#")) == {} and tick(client, 60_000) == {}


def test_nobody_publishes_them() -> None:
    (answer,) = connected(World()).publish("$SYS/broker/uptime", qos=1)
    assert isinstance(answer, k.Disconnect) and answer.reason == Reason.TOPIC_NAME_INVALID
    (connack,) = MqttClient(World()).connect(will=k.Will("$SYS/broker/uptime", b"x"))
    assert isinstance(connack, k.Connack) and connack.reason == Reason.TOPIC_NAME_INVALID


def test_who_may_not_read_them() -> None:
    world = World()
    world.apply(c.SetTopicPermissions("guest", "/", "amq.topic", ".*", "^own"))
    (suback,) = connected(world).subscribe("$SYS/#", qos=1)
    assert isinstance(suback, k.Suback) and suback.reasons == [Reason.NOT_AUTHORIZED]


def test_a_session_that_goes_on() -> None:
    world = World()
    lasting = {Prop.SESSION_EXPIRY: 100}
    client = connected(world, properties=lasting)
    client.subscribe("$SYS/broker/uptime", qos=1)
    client.lose()
    client = connected(world, clean=False, properties=lasting)
    assert tick(client, 10_000) == {"uptime": b"10 seconds"}
