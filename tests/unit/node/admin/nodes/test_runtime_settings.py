"""Settings that are changed at all nodes."""

from __future__ import annotations

from tests.support.control_world import ask, cluster, refusal


async def test_at_all_nodes_that_run() -> None:
    one, two = cluster("one", "two")
    answer = await ask(one, "set_env", name="channel_max", value="7", everywhere=True)
    assert answer == {"nodes": ["one", "two"], "missing": []}
    assert one.settings.channel_max == two.settings.channel_max == 7
    await ask(two, "set_env", name="channel_max", value="8")
    assert (one.settings.channel_max, two.settings.channel_max) == (7, 8)
    await ask(two, "clear_env", name="channel_max", everywhere=True)
    assert one.settings == one.configured and two.settings == two.configured


async def test_a_node_that_does_not_answer() -> None:
    one, _ = cluster("one", "two")
    one.all.cut_off.add("two")
    code, text = await refusal(one, "set_env", name="channel_max", value="7", everywhere=True)
    assert (code, "done at one" in text) == (69, True)
    assert "two" in text and one.settings.channel_max == 7


async def test_a_wrong_value_changes_no_node() -> None:
    one, two = cluster("one", "two")
    assert (await refusal(one, "set_env", name="channel_max", value="x", everywhere=True))[0] == 65
    assert one.settings == one.configured and two.settings == two.configured


async def test_the_app_is_stopped() -> None:
    (one,) = cluster("one")
    await one.stop_app()
    await ask(one, "set_env", name="heartbeat", value="7")
    assert one.settings.heartbeat_s == 7
    assert (await refusal(one, "set_env", name="heartbeat", value="8", everywhere=True))[0] == 69
    assert (await refusal(one, "set_alarm", resource="disk"))[0] != 0
