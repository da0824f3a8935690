from __future__ import annotations

import json
from typing import Any

import pytest

from leveret.base.json_values import Json
from leveret.metadata.definitions import (
    SECTIONS,
    BadDefinition,
    Reader,
    Skipped,
    document_problems,
    from_table,
    gather,
    shown,
    to_table,
    unread_fields,
)
from leveret.metadata.model import commands as c
from leveret.metadata.rules.passwords import MD5, SHA256
from leveret.metadata.store import Metadata
from leveret.protocol.tables import DEPTH_MAX, Field
from tests.support.rabbitmq import DEFINITIONS

EXPORT = DEFINITIONS


def reader(vhost: str | None = None, version: Json = "3.10.8") -> Reader:
    return Reader(lambda password: f"hash of {password}", vhost, version)


def read(section: str, vhost: str | None = None, version: Json = "3.10.8", /, **item: Any) -> list[c.Command] | Skipped:
    return reader(vhost, version).read(section, {name.replace("_to", "-to"): value for name, value in item.items()})


def items(metadata: Metadata, vhost: str | None = None) -> dict[str, list[dict[str, Json]]]:
    found = gather(metadata, vhost).items()
    return {section: [shown(record, whole=vhost is None) for record in records] for section, records in found}


def filled() -> Metadata:
    metadata = Metadata()
    for command in (
        c.AddVhost("/", "The first"),
        c.AddVhost("v", "", ("a",)),
        c.SetVhostLimits("v", {"max-queues": 10}),
        c.PutUser("ann", "hash", SHA256, ("administrator",)),
        c.SetUserLimits("ann", {"max-channels": 3}),
        c.SetPermissions("ann", "v", "a", "b", "c"),
        c.SetTopicPermissions("ann", "v", "amq.topic", "w", "r"),
        c.DeclareExchange("v", "x", "direct", arguments={"n": Field("b", 1)}),
        c.DeclareExchange("v", "hidden", "fanout", internal=True),
        c.DeclareExchange("v", "later", "x-delayed-message", arguments={"x-delayed-type": Field("S", "direct")}),
        c.DeclareQueue("v", "q", arguments={"x-queue-type": Field("S", "quorum")}),
        c.DeclareQueue("v", "own", exclusive=True, owner="somebody"),
        c.DeclareQueue("v", "amq.gen-1"),
        c.Bind("v", "x", "queue", "q", "key", {"t": Field("T", 5)}),
        c.Bind("v", "x", "queue", "own", "key"),
        c.Bind("v", "x", "exchange", "hidden", ""),
        c.SetPolicy("v", "p", "^q", "queues", 2, {"ha-mode": "all"}),
        c.SetPolicy("v", "o", "", "queues", 1, {"max-length": 5}, operator=True),
        c.SetGlobalParameter("internal_cluster_id", f"leveret-cluster-id-{'0' * 32}"),
        c.SetGlobalParameter("cluster_name", "shop"),
    ):
        assert metadata.apply(command).refused is None, command
    return metadata


# -- Values --------------------------------------------------------------------------------------------------------


def test_types_of_arguments_are_those_that_rabbitmq_chooses() -> None:
    said: Json = {"i": 1, "f": 1.5, "s": "x", "t": True, "n": None, "l": [1, ["x"]], "o": {"k": False}}
    table = to_table(said)
    assert {name: field.kind for name, field in table.items()} == dict(zip("ifstnlo", "ldStVAF", strict=True))
    assert from_table(table) == said


def test_other_types_become_plain_values() -> None:
    table = {"x": Field("x", b"abc"), "D": Field("D", (2, 125)), "T": Field("T", 9), "b": Field("b", -1)}
    assert from_table(table) == {"x": "abc", "D": 1.25, "T": 9, "b": -1}


def test_arguments_that_no_table_can_hold() -> None:
    deep: Json = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    cases: list[tuple[Json, str]] = [([1], "must be an object"), ({"n": 1 << 63}, "too large"), ({"d": deep}, "nested")]
    for bad, text in cases:
        with pytest.raises(BadDefinition, match=text):
            to_table(bad)
    assert to_table([]) == to_table(None) == {}


# -- Export --------------------------------------------------------------------------------------------------------


def test_what_is_exported_and_what_is_not() -> None:
    found = items(filled())
    assert set(found) == set(SECTIONS)
    names = {section: [one.get("name") for one in found[section]] for section in ("vhosts", "exchanges", "queues")}
    # Not the predeclared exchanges, nor exclusive queues, nor the hidden of the delayed exchange.
    assert names == {"vhosts": ["/", "v"], "exchanges": ["x", "hidden", "later"], "queues": ["q", "amq.gen-1"]}
    assert [one["destination"] for one in found["bindings"]] == ["q", "hidden"]
    assert found["global_parameters"] == [{"name": "cluster_name", "value": "shop"}]
    assert [(one["component"], one["name"]) for one in found["parameters"]] == [
        ("vhost-limits", "limits"),
        ("operator_policy", "o"),
    ]


def test_a_vhost_alone_is_not_named() -> None:
    found = items(filled(), "v")
    assert set(found) == {"parameters", "policies", "queues", "exchanges", "bindings"}
    assert all("vhost" not in one for some in found.values() for one in some)
    assert items(filled(), "/")["queues"] == []


def test_what_is_exported_can_be_read_and_is_the_same_again() -> None:
    before = items(filled())
    metadata, by_hand = Metadata(), reader()
    for section in SECTIONS:
        for item in before[section]:
            commands = by_hand.read(section, item)
            if isinstance(commands, Skipped):
                assert item["name"] == "amq.gen-1"
                continue
            for command in commands:
                assert metadata.apply(command).refused is None, command
    before["queues"] = [one for one in before["queues"] if one["name"] != "amq.gen-1"]
    assert items(metadata) == before


def test_fields_have_the_names_that_rabbitmq_gives_them() -> None:
    theirs, ours = json.loads(EXPORT.read_text()), items(filled())
    for section in SECTIONS:
        if section == "topic_permissions" or theirs[section]:
            missing = set(theirs[section][0]) - set(ours[section][0])
            assert not missing, section


# -- Import --------------------------------------------------------------------------------------------------------


def test_all_of_a_real_export_can_be_read() -> None:
    document = json.loads(EXPORT.read_text())
    assert document_problems(document) == []
    for section in SECTIONS:
        for item in document[section]:
            assert unread_fields(section, item) == []
            result = reader().read(section, item)
            assert isinstance(result, Skipped) == str(item.get("name", "")).startswith("amq."), item


def test_users_in_all_their_forms() -> None:
    assert read("users", name="a", password_hash="h", tags="administrator, monitoring,") == [
        c.PutUser("a", "h", SHA256, ("administrator", "monitoring"))
    ]
    assert read("users", None, "3.5.7", name="a", password_hash="h", tags=[]) == [c.PutUser("a", "h", MD5)]
    assert read("users", name="a", password="secret", tags=[]) == [c.PutUser("a", "hash of secret", SHA256)]
    assert read("users", name="a", tags=[]) == [c.PutUser("a", "", SHA256)]  # Nobody enters by a password.
    assert read("users", name="a", password_hash="h", tags=["x", "x"], limits={"max-channels": 1}) == [
        c.PutUser("a", "h", SHA256, ("x",)),
        c.SetUserLimits("a", {"max-channels": 1}, replace=True),
    ]


def test_vhosts_of_either_tool() -> None:
    wanted = [c.AddVhost("v", "text", ("a", "b")), c.SetVhostLimits("v", {"max-queues": 3}, replace=True)]
    pairs = [["max-queues", 3]]
    assert read("vhosts", name="v", metadata={"description": "text", "tags": ["a", "b"]}, limits=pairs) == wanted
    assert read("vhosts", name="v", description="text", tags="a,b", limits={"max-queues": 3}) == wanted
    assert read("vhosts", name="v") == [c.AddVhost("v")]


@pytest.mark.parametrize("definition", [{"max-length": 5}, [["max-length", 5]]], ids=["HTTP", "rabbitmqctl"])
def test_operator_policies_of_either_tool(definition: Json) -> None:
    value = {"pattern": "^q", "definition": definition, "priority": 1, "apply-to": "queues"}
    item = {"component": "operator_policy", "name": "o", "vhost": "/", "value": value}
    assert read("parameters", **item) == [c.SetPolicy("/", "o", "^q", "queues", 1, {"max-length": 5}, True, cost=1)]


def test_the_type_of_a_queue_may_stand_beside_its_arguments() -> None:
    plain = {"vhost": "/", "name": "q", "durable": True, "auto_delete": False}
    assert read("queues", type="quorum", arguments={}, **plain) == [
        c.DeclareQueue("/", "q", arguments={"x-queue-type": Field("S", "quorum")})
    ]
    assert read("queues", type="classic", arguments={}, **plain) == [c.DeclareQueue("/", "q")]


@pytest.mark.parametrize(
    ("section", "item", "text"),
    [
        ("queues", 5, "is not an object"),
        ("queues", {"name": "q", "durable": True, "auto_delete": False}, "vhost is missing"),
        ("queues", {"vhost": "/", "name": "", "durable": True, "auto_delete": False}, "name must not be empty"),
        ("queues", {"vhost": "/", "name": "q", "durable": 1, "auto_delete": False}, "durable must be true or false"),
        ("queues", {"vhost": "/", "name": "q", "auto_delete": False}, "durable is missing"),
        ("queues", {"vhost": "/", "name": 7, "durable": True, "auto_delete": False}, "name must be a string"),
        ("users", {"name": "a", "password_hash": "h"}, "tags are missing"),
        ("users", {"name": "a", "password_hash": "h", "tags": [1]}, "tags must be a list of strings"),
        ("users", {"name": "a", "password_hash": "h", "tags": [], "limits": {"x": "y"}}, "that of x is none"),
        ("vhosts", {"name": "v", "limits": 3}, "limits must be an object"),
        ("policies", {"vhost": "/", "name": "p", "pattern": "", "definition": []}, "definition must be an object"),
        ("policies", {"vhost": "/", "name": "p", "definition": {}}, "pattern is missing"),
        (
            "policies",
            {"vhost": "/", "name": "p", "pattern": "", "definition": {}, "priority": "1"},
            "priority must be a whole number",
        ),
        ("parameters", {"vhost": "/", "component": "operator_policy", "name": "o"}, "value is missing"),
        (
            "bindings",
            {"vhost": "/", "source": "x", "destination": "q", "destination_type": "table", "routing_key": ""},
            "destination_type must be queue or exchange",
        ),
    ],
)
def test_what_cannot_be_read_says_why(section: str, item: Json, text: str) -> None:
    with pytest.raises(BadDefinition, match=text):
        reader().read(section, item)


@pytest.mark.parametrize(
    ("section", "item"),
    [
        ("parameters", {"vhost": "/", "component": "other", "name": "s", "value": {}}),
        ("global_parameters", {"name": "internal_cluster_id", "value": "x"}),
        ("exchanges", {"vhost": "/", "name": "", "type": "direct", "durable": True, "auto_delete": False}),
        ("exchanges", {"vhost": "/", "name": "amq.topic", "type": "topic", "durable": True, "auto_delete": False}),
        ("queues", {"vhost": "/", "name": "amq.gen-1", "durable": True, "auto_delete": False}),
        (
            "bindings",
            {"vhost": "/", "source": "", "destination": "q", "destination_type": "queue", "routing_key": "q"},
        ),
    ],
)
def test_what_has_no_meaning_here_is_left_out(section: str, item: Json) -> None:
    assert isinstance(reader().read(section, item), Skipped)


def test_a_file_of_one_vhost_goes_where_it_is_told() -> None:
    assert read("queues", "here", name="q", durable=True, auto_delete=False) == [c.DeclareQueue("here", "q")]
    assert document_problems({"queues": [], "tags": ["x"], "users": []}, "here") == []
    assert document_problems({"users": [{}]}, "here") == [
        "users belong to no single vhost: import this file without -p"
    ]


def test_what_is_no_definitions_at_all() -> None:
    assert document_problems([1]) == ["definitions are a JSON object"]
    assert document_problems({"queues": {}}) == ["queues must be a list"]
    (problem,) = document_problems({"queue": []})
    assert problem.startswith("'queue' is nothing that definitions have")
