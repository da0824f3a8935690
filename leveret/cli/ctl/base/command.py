"""How a command of leveretctl is described, what it is given, what it may give back, and how it fails.

Nothing here talks to a node or loads anything that does: `leveretctl help` is to be there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.base.control_protocol import HEADED

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session


class Failed(Exception):
    """The command ends with this exit code, and says so."""

    def __init__(self, code: int, text: str, form: str = HEADED, value: Any = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.form = form
        self.value = value  # For programs that asked for JSON: a check that fails has something to tell, too.


class Given(NamedTuple):
    """The words and options of a command line."""

    words: list[str]  # after the command's name
    switches: dict[str, str | bool]  # by long name without dashes: the command's own and those all have

    @property
    def vhost(self) -> str:
        return str(self.switches.get("vhost", "/"))

    def flag(self, name: str) -> bool:
        return bool(self.switches.get(name))

    def text(self, name: str, default: str) -> str:
        return str(self.switches.get(name, default))

    def texts(self, name: str) -> list[str] | None:
        """A list with commas between; None if it was not given."""
        if name not in self.switches:
            return None
        return [word.strip() for word in str(self.switches[name]).split(",") if word.strip()]

    def only(self) -> str | None:
        """The name that came before the columns of a list, if one did."""
        name = self.switches.get("only")
        return None if name is None else str(name)

    def timeout_s(self, default_s: float) -> float:
        value = self.switches.get("timeout")
        return default_s if value is None else float(value)


class Rows(NamedTuple):
    """A table. Values stand in the order of the columns."""

    columns: tuple[str, ...]
    rows: Iterable[list[Any]]
    headers: bool = True


class Message(NamedTuple):
    """A sentence, or a few lines."""

    text: str


class Report(NamedTuple):
    """Something with a shape of its own, for programs and for people."""

    value: Any
    text: str


Output = Rows | Message | Report | None
Run = Callable[["Session", Given], Output]
Alone = Callable[[Given], Output]


class Command(NamedTuple):
    """One command."""

    name: str
    group: str
    usage: str  # what follows the name
    about: str
    example: str
    run: Run
    least: int = 0  # words
    most: int | None = 0  # None: any number
    switches: dict[str, str | None] = {}  # noqa: RUF012 (read only) name: what its value is called; None: it has none
    more: str = ""
    columns: tuple[str, ...] = ()  # of a list that can be asked for by name
    secret: int | None = None  # the place among the words from which on they are not repeated
    waits: bool = False  # for a node that is not there yet
    takes_name: bool = False  # one word that is no column may be the name of what is listed
    alone: Alone | None = None  # for what needs no node: this is run instead


VHOST: Final[dict[str, str | None]] = {"vhost": "vhost"}
