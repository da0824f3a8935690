"""What requests say in their bodies, and RabbitMQ's words for what is wrong with it.

RabbitMQ answers 400 with a term of Erlang's as the reason, `[{key_missing,name}]` or the list `["not_boolean", "x"]`;
some tools show that, so it is the same here. Where RabbitMQ has no answer but 500, because nobody thought of it, the
reason is a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import shortened
from leveret.management.http.http_messages import Problem, bad_request
from leveret.management.http.json_decoding import BadJson
from leveret.metadata.definitions import BadDefinition, to_table
from leveret.protocol.tables import Table

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request

LINE: Final = 80
SHOWN_CHARACTERS_MAX: Final = 1_000  # Of what was wrong.
DOUBLY: Final = "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
NAME_BYTES_MAX: Final = 255
INTEGER_CHARACTERS_MAX: Final = 20


async def object_of(request: Request, *required: str) -> dict[str, Any]:
    """The body as an object that has these keys; an empty one if there is none, or `null`. Raises Problem."""
    if not request.body:
        value: Any = {}
    else:
        try:
            value = await request.decoded()
        except BadJson:
            raise bad_request("not_json") from None
    if value is None:
        value = {}
    if isinstance(value, str):
        raise bad_request(DOUBLY)
    if not isinstance(value, dict):
        raise bad_request("not_json")
    missing = [f"{{key_missing,{name}}}" for name in required if name not in value]
    if missing:
        one_line = f"[{','.join(missing)}]"
        raise bad_request(one_line if len(one_line) <= LINE else f"[{(',' + chr(10) + ' ').join(missing)}]")
    return value


def reason(*words: object) -> Problem:
    """A reason of several words: what it is, and what it was found in."""
    shown = [shortened(word, SHOWN_CHARACTERS_MAX) if isinstance(word, str) else word for word in words]
    return Problem(400, "bad_request", shown)


def check_name(what: str, name: str) -> None:
    """Check that a name fits into AMQP's short string. Raises Problem."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise bad_request(f"{what} should be less than {NAME_BYTES_MAX} bytes, actually was {size}\n")


def text(body: dict[str, Any], name: str, default: str = "") -> str:
    """Raises Problem."""
    value = body.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # RabbitMQ takes a number for a routing key.
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string")
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    """Raises Problem."""
    value = body.get(name, False)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise reason("not_boolean", value)
    return value


def integer(value: Any) -> int:
    """Raises Problem."""
    if isinstance(value, str) and len(value) <= INTEGER_CHARACTERS_MAX and value.removeprefix("-").isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise reason("not_integer", value)
    return value


def arguments(body: dict[str, Any], name: str = "arguments") -> Table:
    """Raises Problem."""
    value = body.get(name)
    if _has_null(value, 0):
        raise bad_request("null_not_allowed")
    try:
        return to_table(value)
    except BadDefinition as error:
        raise bad_request(str(error)) from None


def _has_null(value: Any, depth: int) -> bool:
    """Inside of it. How deep it may be is checked elsewhere."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < LINE and any(one is None or _has_null(one, depth + 1) for one in inner)


def tags(value: Any) -> tuple[str, ...]:
    """Return the tags of a user or a vhost from a list, or from words with commas between. Raises Problem."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(word for one in value.split(",") if (word := one.strip())))
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise bad_request("tags must be a list of strings, or one string with commas")
    return tuple(dict.fromkeys(value))
