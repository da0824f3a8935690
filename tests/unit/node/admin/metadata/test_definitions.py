from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.mirrors.member_changes import MemberChanges, Place
from leveret.metadata.definitions import SECTIONS
from leveret.metadata.model import commands as c
from leveret.metadata.rules.ha_policy import Defaults
from leveret.metadata.rules.passwords import verify_password
from leveret.node.admin.metadata import definitions
from leveret.node.admin.metadata.definitions import KEPT_MAX, LINES_MAX, LoadFailed, definition_files, load
from leveret.protocol.tables import Field
from tests.support.control_world import FakeServer, ask, cluster, refusal
from tests.support.rabbitmq import DEFINITIONS

EXPORT = DEFINITIONS


@pytest.fixture
def one() -> FakeServer:
    return cluster("one@host")[0]


async def stage(server: FakeServer, document: dict[str, Any]) -> dict[str, Any]:
    """What is left to be asked."""
    sections = {name: value for name, value in document.items() if isinstance(value, list)}
    for section, items in sections.items():
        await ask(server, "stage_definitions", id="i", section=section, text=json.dumps(items))
    remarks = {name: value for name, value in document.items() if name not in sections}
    return {"id": "i", "parts": len(sections), "remarks": remarks}


async def put(server: FakeServer, document: dict[str, Any], vhost: str | None = None) -> Any:
    return await ask(server, "import_definitions", vhost=vhost, **await stage(server, document))


async def refused(server: FakeServer, document: dict[str, Any], vhost: str | None = None) -> str:
    code, text = await refusal(server, "import_definitions", vhost=vhost, **await stage(server, document))
    assert code == 65
    return text


async def export(server: FakeServer, vhost: str | None = None) -> Any:
    made = await ask(server, "export_definitions", vhost=vhost)
    parts = [await ask(server, "definitions_part", id=made["id"], number=number) for number in range(made["parts"])]
    return json.loads("".join(parts))


def queue(name: str, **more: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": {}, **more}


# -- A real one ----------------------------------------------------------------------------------------------------


async def test_an_export_of_rabbitmq_is_imported_whole(one: FakeServer) -> None:
    done = await put(one, json.loads(EXPORT.read_text()))
    assert done["failures"] == []
    keys = "dead-letter-exchange, dead-letter-routing-key, delivery-limit, expires, max-length, max-length-bytes, "
    assert done["notes"] == [
        f"policy 'limits' in vhost 'defs-shop': {keys}message-ttl, overflow, queue-mode have no effect: queues of no "
        "type that it applies to know all its keys",
        "queues[3] 'amq.gen-FA7NnzsGUNyvZrASlU3cpw' in vhost 'defs-shop': left out: names that begin with amq. are "
        "given by the server",
        "bindings[4] from 'lost' to 'brief' in vhost 'defs-shop': left out: no exchange 'lost'",
        "bindings[5] from 'orders' to 'mine' in vhost 'defs-shop': left out: no queue 'mine'",
    ]
    metadata = one.world.metadata
    for name in ("ann", "bob", "cleo", "dan"):  # SHA-256, SHA-512, MD5, and a password that RabbitMQ hashed.
        user = metadata.users[f"defs-{name}"]
        assert verify_password(f"{name} secret", user.password_hash, user.hashing), name
    assert metadata.vhosts["defs-shop"].limits == {"max-connections": 100, "max-queues": 1000}
    assert metadata.policies["defs-shop", "ha-all"].definition["ha-sync-batch-size"] == 400
    assert metadata.operator_policies["defs-shop", "ceiling"].definition == {"expires": 86400000, "max-length": 100000}
    assert metadata.queues["defs-shop", "typed"].arguments["x-max-priority"] == Field("l", 5)
    assert len(metadata.bindings) == 5
    ours = await export(one)
    theirs = json.loads(EXPORT.read_text())
    for section in ("policies", "parameters", "topic_permissions", "permissions"):
        missing = [item for item in theirs[section] if item not in ours[section]]
        assert missing == [], section


async def test_a_second_time_changes_nothing(one: FakeServer) -> None:
    document = json.loads(EXPORT.read_text())
    await put(one, document)
    before = len(one.all.changes)
    assert (await put(one, document))["done"] == dict.fromkeys(SECTIONS, 0)
    assert len(one.all.changes) == before


async def test_policies_for_one_type_of_queue(one: FakeServer) -> None:
    kinds = ("classic_queues", "quorum_queues", "streams")
    policies = [
        {"vhost": "/", "name": kind, "pattern": "^q", "apply-to": kind, "priority": 0, "definition": {"max-age": "1D"}}
        for kind in kinds
    ]
    done = await put(one, {"policies": policies})
    assert done["failures"] == []
    assert [note.partition(":")[0] for note in done["notes"]] == [
        "policy 'classic_queues' in vhost '/'", "policy 'quorum_queues' in vhost '/'",
    ]  # fmt: skip
    assert sorted((await export(one))["policies"], key=lambda policy: str(policy["name"])) == policies


async def test_our_export_fills_an_empty_node(one: FakeServer) -> None:
    await put(one, json.loads(EXPORT.read_text()))
    (other,) = cluster("other@host")
    exported = await export(one)
    await put(other, exported)
    assert await export(other) == exported


async def test_one_vhost_is_copied_into_another(one: FakeServer) -> None:
    await put(one, json.loads(EXPORT.read_text()))
    exported = await export(one, "defs-shop")
    assert exported["original_vhost_name"] == "defs-shop"
    assert "users" not in exported
    assert (await refusal(one, "export_definitions", vhost="none"))[0] == 65
    assert "belong" in await refused(one, {"users": [{"name": "x"}]}, "/")
    assert (await refused(one, exported, "none")) == "Virtual host 'none' does not exist"
    await put(one, exported, "defs-empty")
    assert (await export(one, "defs-empty")) == {**exported, "original_vhost_name": "defs-empty"}


# -- What is wrong -------------------------------------------------------------------------------------------------


async def test_if_anything_is_wrong_nothing_is_imported_and_all_is_told(one: FakeServer) -> None:
    text = await refused(
        one,
        {
            "users": [{"name": "a", "password_hash": "", "hashing_algorithm": "crypt", "tags": []}],
            "vhosts": [{"name": "v" * 300}],
            "permissions": [
                {"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""},
                {"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""},
            ],
            "parameters": [{"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-cats": 1}}],
            "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"message-ttl": -1}}],
            "exchanges": [
                {"vhost": "/", "name": "x", "type": "x-magic", "durable": True, "auto_delete": False},
                {"vhost": "none", "name": "x", "type": "direct", "durable": True, "auto_delete": False},
            ],
            "queues": [
                queue("fine"),
                queue("q", arguments={"x-expires": "a"}),
                queue("r", durable=False, arguments={"x-queue-type": "quorum"}),
                queue("n" * 256),
            ],
        },
    )
    lines = text.split("\n")
    assert lines[0] == "users[0] 'a': unknown password hashing crypt"
    assert lines[1].endswith("a vhost's name is UTF-8 of at most 255 bytes")
    assert lines[2] == "permissions[0] 'nobody' in vhost '/': User \"nobody\" does not exist"
    assert lines[3].startswith("permissions[1] 'guest' in vhost '/': (: ")
    assert lines[4] == "parameters[0] 'limits' in vhost '/': Unrecognised terms [{<<\"max-cats\">>,1}] in limits"
    assert lines[5:9] == [
        "policies[0] 'p' in vhost '/': -1 is not a valid message TTL",
        "exchanges[0] 'x' in vhost '/': unknown exchange type 'x-magic'",
        "exchanges[1] 'x' in vhost 'none': Virtual host 'none' does not exist",
        "queues[1] 'q' in vhost '/': invalid arg 'x-expires' for queue 'q' in vhost '/': \"expected integer, got "
        'longstr"',
    ]
    assert lines[9] == "queues[2] 'r' in vhost '/': invalid property 'non-durable' for queue 'r' in vhost '/'"
    assert lines[-2].endswith("queue name must be UTF-8 of at most 255 bytes")
    assert lines[-1] == "Nothing was imported."
    assert one.all.changes == []


async def test_only_so_much_is_told(one: FakeServer) -> None:
    lines = (await refused(one, {"queues": [queue(f"q{n}", durable=0) for n in range(LINES_MAX + 7)]})).split("\n")
    assert len(lines) == LINES_MAX + 2
    assert lines[-2] == "... and 7 more"


async def test_what_exists_and_differs_stays_and_is_told(one: FakeServer) -> None:
    exchange = {"vhost": "/", "name": "x", "type": "direct", "durable": True, "auto_delete": False}
    await put(one, {"queues": [queue("q")], "exchanges": [exchange]})
    done = await put(one, {"queues": [queue("q", durable=False)], "exchanges": [{**exchange, "type": "topic"}]})
    assert done["notes"] == [
        "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'; it stays as "
        "it is",
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'; it stays as it "
        "is",
    ]
    assert one.world.metadata.queues["/", "q"].durable


async def test_what_the_cluster_refuses_is_told_and_the_rest_is_done(one: FakeServer) -> None:
    limit = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 1}}
    done = await put(one, {"parameters": [limit], "queues": [queue("a"), queue("b")]})
    assert done["failures"] == [
        "queues: 'b': cannot declare queue 'b': queue limit in vhost '/' (1) is reached",
    ]
    assert done["done"]["queues"] == 1


async def test_notes_on_what_does_nothing_here(one: FakeServer) -> None:
    done = await put(
        one,
        {
            "parameters": [{"component": "other", "vhost": "/", "name": "s", "value": {}}],
            "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-age": "1D", "ha-mode": "all"}}],
            "queues": [queue("a", policy="p"), queue("b", policy="p")],
        },
    )
    assert done["notes"] == [
        "parameters[0] 's' in vhost '/': left out: this version has nothing that acts on parameters of component "
        "other",
        "policy 'p' in vhost '/': max-age, ha-mode have no effect: queues of no type that it applies to know all its "
        "keys",
        "queues: 'policy' has no meaning here, and is left out",
    ]


async def test_a_shovel_is_imported_behind_its_queues_and_kept_if_it_is_the_same(one: FakeServer) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://u:p@far", "dest-queue": "b"}
    item = {"component": "shovel", "vhost": "/", "name": "s", "value": value}
    done = await put(one, {"parameters": [item], "queues": [queue("a")]})
    assert (done["done"]["parameters"], done["done"]["queues"]) == (1, 1)
    kinds = [type(command) for command in one.all.changes]
    assert kinds.index(c.DeclareQueue) < kinds.index(c.SetParameter)
    again = await put(one, {"parameters": [item]})
    assert (again["done"]["parameters"], again["same"]["parameters"]) == (0, 1)


async def test_a_shovel_with_faults_is_not_imported(one: FakeServer) -> None:
    item = {"component": "shovel", "vhost": "/", "name": "s", "value": {"src-queue": "a"}}
    text = await refused(one, {"parameters": [item]})
    assert 'Key "src-uri" not found in s' in text


async def test_a_binding_of_other_types_is_the_same_binding(one: FakeServer) -> None:
    for command in (
        c.DeclareQueue("/", "q"),
        c.Bind("/", "amq.headers", "queue", "q", "", {"size": Field("b", 3)}),
    ):
        one.world.apply(command)
    await put(one, {"bindings": (await export(one))["bindings"]})
    assert len(one.world.metadata.bindings) == 1


async def test_bindings_from_the_exchanges_of_a_vhost_that_comes_along(one: FakeServer) -> None:
    bound = {"vhost": "v", "source": "amq.topic", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    done = await put(one, {"vhosts": [{"name": "v"}], "queues": [queue("q", vhost="v")], "bindings": [bound]})
    assert done["notes"] == []
    assert len(one.world.metadata.bindings) == 1


async def test_queues_are_spread_though_many_are_under_way(one: FakeServer) -> None:
    places = [Place(f"{name}@host", f"folder-of-{name}", "run", True) for name in ("one", "two", "three")]
    broker = one.world.broker
    broker.member_changes = MemberChanges(broker, lambda: places, Defaults(locator="min-masters"))
    await put(one, {"queues": [queue(f"q{n}") for n in range(9)]})
    nodes = [spec.node for spec in one.world.metadata.queues.values()]
    assert sorted(nodes.count(place.name) for place in places) == [3, 3, 3]


# -- Staging and fetching ------------------------------------------------------------------------------------------


async def test_what_is_no_part_of_definitions_is_not_kept(one: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for section, text in (("cats", "[]"), ("queues", "{}"), ("queues", "[")):
        assert (await refusal(one, "stage_definitions", id="i", section=section, text=text))[0] == 65
    assert one.control.desk.staged == {}
    monkeypatch.setattr(definitions, "DOCUMENT_BYTES_MAX", 10)
    await ask(one, "stage_definitions", id="i", section="queues", text="[1,2]")
    assert (await refusal(one, "stage_definitions", id="i", section="queues", text="[3,4,5]"))[0] == 65
    assert one.control.desk.staged == {}


async def test_of_many_files_that_are_being_sent_the_oldest_is_dropped(one: FakeServer) -> None:
    for number in range(KEPT_MAX + 1):
        await ask(one, "stage_definitions", id=str(number), section="queues", text="[]")
    assert list(one.control.desk.staged) == [str(number) for number in range(1, KEPT_MAX + 1)]
    # Whoever it was is not told that all was imported.
    assert (await refusal(one, "import_definitions", id="0", parts=1, vhost=None, remarks={}))[0] == 69


async def test_an_export_shows_one_moment_and_is_dropped_when_it_was_fetched(
    one: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "PART_CHARACTERS", 200)
    await put(one, {"queues": [queue(f"q{n}") for n in range(20)]})
    made = await ask(one, "export_definitions", vhost=None)
    one.world.apply(c.DeleteQueue("/", "q7"))
    parts = [await ask(one, "definitions_part", id=made["id"], number=number) for number in range(made["parts"])]
    assert len(parts) > 5
    assert [item["name"] for item in json.loads("".join(parts))["queues"]] == [f"q{n}" for n in range(20)]
    assert (await refusal(one, "definitions_part", id=made["id"], number=0))[0] == 69


async def test_a_name_that_is_no_utf_8_survives(one: FakeServer) -> None:
    name = b"\xff".decode("utf-8", "surrogateescape")
    one.world.apply(c.DeclareQueue("/", name))
    exported = await export(one)
    one.world.apply(c.DeleteQueue("/", name))
    await put(one, exported)
    assert ("/", name) in one.world.metadata.queues


# -- At a start ----------------------------------------------------------------------------------------------------


async def test_a_folder_is_loaded_file_by_file(one: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "2.json").write_text(json.dumps({"queues": [queue("q", vhost="v")]}))
    (tmp_path / "1.json").write_text(json.dumps({"vhosts": [{"name": "v"}]}))
    (tmp_path / "notes.txt").write_text("no JSON")
    assert [Path(name).name for name in definition_files(str(tmp_path))] == ["1.json", "2.json"]
    await load(one.node, str(tmp_path))  # type: ignore[arg-type]
    assert ("v", "q") in one.world.metadata.queues


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not valid JSON"),
        ('{"queue": []}', "is nothing that definitions have"),
        ('{"queues": [{"name": "q"}]}', r"queues\[0\] 'q': vhost is missing"),
    ],
)
async def test_what_cannot_be_loaded_stops_the_start(one: FakeServer, tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(content)
    with pytest.raises(LoadFailed, match=text):
        await load(one.node, str(path))  # type: ignore[arg-type]
    with pytest.raises(LoadFailed, match="cannot read"):
        await load(one.node, str(tmp_path / "none.json"))  # type: ignore[arg-type]
