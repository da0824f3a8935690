from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.metadata import command_codec
from leveret.metadata.command_codec import BadEncoding, decode_command, encode_command
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import View
from leveret.protocol.tables import DEPTH_MAX, Field
from tests.unit.metadata.strategies import commands, tables


@given(commands)
def test_commands_come_back_as_they_were(command: c.Command) -> None:
    data = encode_command(command)
    assert data.isascii() and b"\n" not in data
    back = decode_command(data)
    assert back == command
    assert repr(back) == repr(command)  # Which tells True from 1 and -0.0 from 0.0.


@given(tables)
def test_tables_keep_their_types(table: dict[str, Field]) -> None:
    assert repr(command_codec.load_table(json.loads(json.dumps(command_codec.dump_table(table))))) == repr(table)


def test_the_format_is_stable() -> None:
    """Journals are read by later versions: these lines must stay readable for ever."""
    arguments = {"x-max-length": Field("I", 5), "x": Field("x", b"\x00\xff"), "d": Field("D", (2, 150))}
    queue = c.DeclareQueue("/", "q", True, True, False, arguments, "a/7", "a")
    table = b'{"x-max-length":["I",5],"x":["x","AP8="],"d":["D",[2,150]]}'
    line = b'[1,"DeclareQueue","/","q",true,true,false,' + table + b',"a/7","a"]'
    assert encode_command(queue) == line[:-1] + b",null]"
    assert decode_command(line) == queue
    assert decode_command(b'[1,"DeclareQueue","/","q"]') == c.DeclareQueue("/", "q")
    assert encode_command(c.Bind("/", "x", "queue", "q", "k")) == b'[1,"Bind","/","x","queue","q","k",{}]'
    assert encode_command(c.PutUser("u", "h", "s", ("a", "b"))) == b'[1,"PutUser","u","h","s",["a","b"]]'
    assert encode_command(c.NodeStarted("a")) == b'[1,"NodeStarted","a",false,""]'
    view = View(3, 2, "a", ("a", "b"), (("a", "1"), ("b", "2")), 1)
    seen = b'[1,"ChangeView","/","q",7,[3,2,"a",["a","b"],[["a","1"],["b","2"]],1,0]]'
    assert encode_command(c.ChangeView("/", "q", 7, view)) == seen
    assert decode_command(seen) == c.ChangeView("/", "q", 7, view)


def test_every_command_has_an_encoding() -> None:
    for kind in get_args(c.Command):
        assert kind.__name__ in command_codec._COMMANDS
        assert command_codec._layout(kind)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "not a list"),
        (b"[]", "not a command"),
        (b"[" * 100_000, "not JSON"),
        (b"[" + b"9" * 5000 + b"]", "not JSON"),
        (b'[2,"NodeStarted","a"]', "version 2"),
        (b'[1,"Nonsense"]', "unknown command 'Nonsense'"),
        (b'[1,"NodeStarted"]', "NodeStarted without its node"),
        (b'[1,"NodeStarted","a",true,"r",1]', "NodeStarted with 4 fields"),
        (b'[1,"NodeStarted","a",1]', "NodeStarted.alone: expected bool, found 1"),
        (b'[1,"DeleteQueue","/","q",true]', "DeleteQueue.id: expected int, found True"),
        (b'[1,"Bind","/","x","stream","q","k",{}]', "Bind.destination_kind: expected queue or exchange"),
        (b'[1,"Bind","/","x",["queue"],"q","k",{}]', "Bind.destination_kind: expected queue or exchange"),
        (b'[1,"Bind","/","x","queue","q","k",{"a":5}]', "Bind.arguments: expected a typed value"),
        (b'[1,"Bind","/","x","queue","q","k",{"a":["I",2147483648]}]', "out of range for type I"),
        (b'[1,"Bind","/","x","queue","q","k",{"a":["d",1]}]', "expected float"),
        (b'[1,"Bind","/","x","queue","q","k",{"a":["q",1]}]', "no value of type 'q'"),
        (b'[1,"Bind","/","x","queue","q","k",{"a":["x","*"]}]', "expected base64"),
        (b'[1,"SetGlobalParameter","n",1e999]', "not a finite number"),
        (b'[1,"SetGlobalParameter","n",NaN]', "NaN is not JSON"),
        (b'[1,"SetPolicy","/","p","","all",0,[]]', "SetPolicy.definition: expected dict"),
    ],
)
def test_bad_bytes_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(BadEncoding, match=what.replace("(", r"\(")):
        decode_command(data)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        decode_command(data)
    except BadEncoding:
        pass


def nested(depth: int) -> dict[str, Field]:
    table: dict[str, Field] = {}
    for _ in range(depth - 1):
        table = {"t": Field("F", table)}
    return table


@pytest.mark.parametrize(
    "command",
    [
        c.SetGlobalParameter("n", float("inf")),
        c.SetGlobalParameter("n", b"bytes"),  # type: ignore[arg-type]
        c.SetGlobalParameter("n", {1: 2}),  # type: ignore[dict-item]
        c.Bind("/", "x", "queue", "q", "k", {"a": Field("I", "text")}),
        c.Bind("/", "x", "queue", "q", "k", {"a": Field("B", -1)}),
        c.Bind("/", "x", "queue", "q", "k", {"a": ("I", 1)}),  # type: ignore[dict-item]
        c.Bind("/", "x", "queue", "q", "k", nested(DEPTH_MAX + 1)),
        c.Bind("/", "x", "queue", "q", b"k"),  # type: ignore[arg-type]
        c.Bind("/", "x", "nowhere", "q", "k"),  # type: ignore[arg-type]
        c.DeleteQueue("/", "q", True),
        c.PutUser("u", "h", "s", "administrator"),  # type: ignore[arg-type]
        c.SetGlobalParameter("n", "x" * command_codec.COMMAND_BYTES_MAX),
    ],
)
def test_what_could_not_be_read_is_not_written(command: c.Command) -> None:
    with pytest.raises(BadEncoding):
        encode_command(command)


def test_the_deepest_table_is_written_and_read() -> None:
    command = c.Bind("/", "x", "queue", "q", "k", nested(DEPTH_MAX))
    assert decode_command(encode_command(command)) == command


def test_other_objects_are_no_commands() -> None:
    stranger: Any = object()
    with pytest.raises(BadEncoding, match="object is no command"):
        encode_command(stranger)
