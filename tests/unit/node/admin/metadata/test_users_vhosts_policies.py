"""Texts and exit codes here were compared with rabbitmqctl 3.10.8."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.rules.passwords import SHA256, hash_password, verify_password
from leveret.node.cluster.consensus import AdminError
from tests.support.control_world import FakeServer, ask, cluster, refusal

HASH = hash_password("secret", b"salt")


@pytest.fixture
def one() -> FakeServer:
    return cluster("one@host")[0]


async def add(server: FakeServer, name: str, password_hash: str = HASH) -> None:
    await ask(server, "add_user", name=name, password_hash=password_hash, hashing=SHA256)


# -- Users ---------------------------------------------------------------------------------------------------------


async def test_a_user_from_beginning_to_end(one: FakeServer) -> None:
    await add(one, "ann")
    assert await refusal(one, "add_user", name="ann", password_hash=HASH, hashing=SHA256) == (
        70,
        'User "ann" already exists',
    )
    await ask(one, "set_user_tags", name="ann", tags=["administrator", "monitoring", "administrator"])
    assert await ask(one, "list_users") == [
        {"user": "guest", "tags": ["administrator"]},
        {"user": "ann", "tags": ["administrator", "monitoring"]},
    ]
    await ask(one, "authenticate_user", name="ann", password="secret")
    await ask(one, "change_password", name="ann", password_hash=hash_password("new", b"abcd"), hashing=SHA256)
    user = one.world.metadata.users["ann"]
    assert verify_password("new", user.password_hash)
    assert user.tags == ("administrator", "monitoring")  # Stay.
    code, text = await refusal(one, "authenticate_user", name="ann", password="secret")
    assert (code, text) == (
        65,
        "Error: failed to authenticate user \"ann\"\nuser 'ann' - invalid credentials",
    )
    await ask(one, "clear_password", name="ann")
    assert (await refusal(one, "authenticate_user", name="ann", password="new"))[0] == 65
    await ask(one, "delete_user", name="ann")
    assert "ann" not in one.world.metadata.users


async def test_who_does_not_exist_cannot_be_told_from_a_wrong_password(one: FakeServer) -> None:
    code, text = await refusal(one, "authenticate_user", name="nobody", password="x")
    assert code == 65
    assert text.endswith("user 'nobody' - invalid credentials")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("change_password", {"password_hash": HASH, "hashing": SHA256}),
        ("clear_password", {}),
        ("set_user_tags", {"tags": ["x"]}),
        ("delete_user", {}),
    ],
)
async def test_a_user_that_does_not_exist(one: FakeServer, command: str, arguments: dict[str, Any]) -> None:
    assert await refusal(one, command, name="nobody", **arguments) == (67, 'User "nobody" does not exist')


async def test_a_user_without_a_name_or_with_an_unknown_hash(one: FakeServer) -> None:
    assert (await refusal(one, "add_user", name="", password_hash=HASH, hashing=SHA256))[0] == 65
    assert (await refusal(one, "add_user", name="ann", password_hash=HASH, hashing="md5"))[0] == 65
    assert one.all.changes == []


async def test_what_the_cluster_refuses_is_handed_on(one: FakeServer) -> None:
    code, text = await refusal(one, "add_user", name="a" * 256, password_hash=HASH, hashing=SHA256)
    assert (code, text) == (69, "user name must be UTF-8 of at most 255 bytes")
    assert one.node is not None
    one.node.cluster.refusal = AdminError("no majority")
    assert await refusal(one, "delete_user", name="guest") == (69, "no majority")


# -- Vhosts and permissions ----------------------------------------------------------------------------------------


async def test_vhosts(one: FakeServer) -> None:
    await ask(one, "add_vhost", name="v", description="shop", tags=["a"])
    await ask(one, "add_vhost", name="v")  # No error, and nothing is lost.
    spec = one.world.metadata.vhosts["v"]
    assert (spec.description, spec.tags) == ("shop", ("a",))
    await ask(one, "set_vhost_tags", name="v", tags=["b"])
    assert one.world.metadata.vhosts["v"].tags == ("b",)
    assert await refusal(one, "set_vhost_tags", name="w", tags=[]) == (65, 'Virtual host "w" does not exist')
    await ask(one, "delete_vhost", name="v")
    assert await refusal(one, "delete_vhost", name="v") == (65, "Virtual host 'v' does not exist")


async def test_permissions(one: FakeServer) -> None:
    await add(one, "ann")
    three = {"configure": "^ann-.*", "write": ".*", "read": ""}
    await ask(one, "set_permissions", user="ann", vhost="/", **three)
    assert {"user": "ann", **three} in await ask(one, "list_permissions", vhost="/")
    assert await ask(one, "list_user_permissions", user="ann") == [{"vhost": "/", **three}]
    await ask(one, "clear_permissions", user="ann", vhost="/")
    assert await ask(one, "list_user_permissions", user="ann") == []
    assert await refusal(one, "set_permissions", user="nobody", vhost="/", **three) == (
        67,
        "User nobody does not exist",
    )
    assert await refusal(one, "set_permissions", user="ann", vhost="v", **three) == (
        69,
        "Virtual host v does not exist",
    )
    code, text = await refusal(one, "set_permissions", user="ann", vhost="/", configure="(", write="", read="")
    assert code == 69
    assert text.startswith("regular expression '(' is invalid")
    assert await refusal(one, "list_permissions", vhost="v") == (65, "Virtual host 'v' does not exist")


async def test_topic_permissions(one: FakeServer) -> None:
    await add(one, "ann")
    two = {"write": "^a", "read": "^b"}
    await ask(one, "set_topic_permissions", user="ann", vhost="/", exchange="amq.topic", **two)
    await ask(one, "set_topic_permissions", user="ann", vhost="/", exchange="other", **two)
    assert await ask(one, "list_topic_permissions", vhost="/") == [
        {"user": "ann", "exchange": "amq.topic", **two},
        {"user": "ann", "exchange": "other", **two},
    ]
    await ask(one, "clear_topic_permissions", user="ann", vhost="/", exchange="other")
    assert await ask(one, "list_user_topic_permissions", user="ann") == [{"vhost": "/", "exchange": "amq.topic", **two}]
    await ask(one, "clear_topic_permissions", user="ann", vhost="/")
    assert await ask(one, "list_user_topic_permissions", user="ann") == []
    code, _ = await refusal(one, "set_topic_permissions", user="ann", vhost="/", exchange="x", write="(", read="^b")
    assert code == 69


# -- Policies and parameters ---------------------------------------------------------------------------------------


def policy(**changes: Any) -> dict[str, Any]:
    given = {"vhost": "/", "name": "p", "pattern": "^q", "apply_to": "all", "priority": 2, "operator": False}
    return {**given, "definition": {"message-ttl": 1000}, **changes}


async def test_policies(one: FakeServer) -> None:
    await ask(one, "set_policy", **policy())
    await ask(one, "set_policy", **policy(operator=True, name="o", apply_to="queues"))
    shown = {"vhost": "/", "pattern": "^q", "definition": '{"message-ttl":1000}', "priority": 2}
    assert await ask(one, "list_policies", vhost="/", operator=False) == [{**shown, "name": "p", "apply-to": "all"}]
    assert await ask(one, "list_policies", vhost="/", operator=True) == [{**shown, "name": "o", "apply-to": "queues"}]
    await ask(one, "clear_policy", vhost="/", name="p", operator=False)
    assert await refusal(one, "clear_policy", vhost="/", name="p", operator=False) == (69, "Parameter does not exist")
    assert await refusal(one, "clear_policy", vhost="/", name="p", operator=True) == (69, "Parameter does not exist")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"definition": {"ha-mod": "all"}},
            '[{<<"ha-mod">>,<<"all">>}] are not recognised policy settings\n'
            "There is no key 'ha-mod' for a policy; did you mean 'ha-mode'?",
        ),
        ({"definition": []}, "a policy's definition is a JSON object"),
        ({"apply_to": "x"}, "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'"),
    ],
)
async def test_bad_policies(one: FakeServer, changes: dict[str, Any], text: str) -> None:
    assert await refusal(one, "set_policy", **policy(**changes)) == (69, f"Validation failed\n\n{text}\n")
    assert one.all.changes == []


async def test_a_policy_for_a_vhost_that_does_not_exist(one: FakeServer) -> None:
    assert await refusal(one, "set_policy", **policy(vhost="v")) == (65, "Virtual host 'v' does not exist")


async def test_parameters_of_no_component(one: FakeServer) -> None:
    other = {"vhost": "/", "component": "other", "name": "s", "value": {"a": 1}}
    assert await refusal(one, "set_parameter", **other) == (69, "Validation failed\n\ncomponent other not found\n")
    code, text = await refusal(one, "set_parameter", **{**other, "component": "policy"})
    assert (code, text) == (69, "policies may not be set using this method")
    assert await ask(one, "list_parameters", vhost="/") == []
    assert (await refusal(one, "clear_parameter", vhost="/", component="other", name="s"))[0] == 69


async def test_a_shovel_is_set_listed_without_passwords_and_cleared(one: FakeServer) -> None:
    shovel = {"vhost": "/", "component": "shovel", "name": "s"}
    assert await refusal(one, "set_parameter", **shovel, value={"dest-uri": "amqp://", "src-queue": "a"}) == (
        69,
        'Validation failed\n\nKey "src-uri" not found in s\n',
    )
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": ["amqp://ann:secret@far"], "dest-queue": "b"}
    await ask(one, "set_parameter", **shovel, value=value)
    (listed,) = await ask(one, "list_parameters", vhost="/")
    assert "secret" not in listed["value"] and "amqp://far" in listed["value"]
    await ask(one, "clear_parameter", **shovel)
    assert await ask(one, "list_parameters", vhost="/") == []


async def test_global_parameters(one: FakeServer) -> None:
    await ask(one, "set_global_parameter", name="g", value={"a": [1, None]})
    assert await ask(one, "list_global_parameters") == [{"name": "g", "value": '{"a":[1,null]}'}]
    await ask(one, "clear_global_parameter", name="g")
    assert await refusal(one, "clear_global_parameter", name="g") == (69, "Parameter does not exist")


# -- Limits --------------------------------------------------------------------------------------------------------


async def test_vhost_limits(one: FakeServer) -> None:
    await ask(one, "set_vhost_limits", vhost="/", limits={"max-queues": 5})
    await ask(one, "set_vhost_limits", vhost="/", limits={"max-connections": 64})  # In place of the others.
    assert await ask(one, "list_vhost_limits", vhost="/") == [{"vhost": "/", "limits": '{"max-connections":64}'}]
    assert await ask(one, "list_vhost_limits") == [{"vhost": "/", "limits": '{"max-connections":64}'}]
    await ask(one, "clear_vhost_limits", vhost="/")
    assert await ask(one, "list_vhost_limits") == []
    assert await refusal(one, "clear_vhost_limits", vhost="/") == (69, "Parameter does not exist")
    assert await refusal(one, "list_vhost_limits", vhost="v") == (65, "Virtual host 'v' does not exist")
    code, text = await refusal(one, "set_vhost_limits", vhost="/", limits={"max-queues": "x"})
    assert (code, text) == (69, 'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n')


async def test_user_limits(one: FakeServer) -> None:
    await ask(one, "set_user_limits", user="guest", limits={"max-channels": 5})
    await ask(one, "set_user_limits", user="guest", limits={"max-connections": 64})  # Besides the others.
    both = '{"max-channels":5,"max-connections":64}'
    assert await ask(one, "list_user_limits", user="guest") == [{"user": "guest", "limits": both}]
    assert await ask(one, "list_user_limits") == [{"user": "guest", "limits": both}]
    await ask(one, "clear_user_limits", user="guest", name="max-channels")
    assert await ask(one, "list_user_limits") == [{"user": "guest", "limits": '{"max-connections":64}'}]
    await ask(one, "clear_user_limits", user="guest", name="all")
    assert await ask(one, "list_user_limits") == []
    code, text = await refusal(one, "set_user_limits", user="guest", limits={"bogus": 1})
    assert (code, text) == (69, 'Unrecognised terms [{<<"bogus">>,1}] in user-limits')
    assert await refusal(one, "list_user_limits", user="nobody") == (69, 'User "nobody" does not exist')


async def test_what_of_a_policy_will_not_act_is_told(one: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    policy = {"vhost": "/", "name": "p", "pattern": "", "apply_to": "queues", "priority": 0, "operator": False}
    assert await ask(one, "set_policy", definition={"max-length": 5, "delivery-limit": 2}, **policy) == []
    assert caplog.text == ""
    (note,) = await ask(one, "set_policy", definition={"queue-mode": "lazy", "delivery-limit": 2}, **policy)
    assert note.endswith("have no effect: queues of no type that it applies to know all its keys")
    assert f"policy 'p' in vhost '/': {note}" in caplog.text
