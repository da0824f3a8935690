"""A conversation with one node: asks, waits no longer than it may, and says what to do when there is no answer."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

from leveret.base.control_protocol import ONE_LINE, PLAIN, VALIDATION, WITH_USAGE
from leveret.base.exit_codes import CONFIG, TIMED_OUT, UNAVAILABLE
from leveret.cli.ctl.base.command import Failed, Rows
from leveret.cli.ctl.base.connect import Target
from leveret.cli.ctl.base.progress import Progress
from leveret.links import link
from leveret.links.frame_types import CONTROL
from leveret.links.link import Identity
from leveret.node.config.settings import TlsOptions
from leveret.node.sockets.cookie import FILE_NAME
from leveret.node.sockets.peer_socket import CallFailed, PeerTls, call, peer_tls
from leveret.node.system import local_registry

POLL_S: Final = 0.1
# How long to wait where rabbitmqctl would wait for ever.
PATIENCE_S: Final = 60.0
LIFE_PATIENCE_S: Final = 600.0

COMMON_REASONS: Final = """\
Most common reasons for this are:

 * Target node is unreachable (e.g. due to hostname resolution, TCP connection or firewall issues)
 * CLI tool fails to authenticate with the server (e.g. due to CLI tool's cookie not matching that of the server)
 * Target node is not running"""


class Session:
    """One command's use of a node. `say` prints a line, unless the user wants none; `warn` goes to stderr."""

    def __init__(
        self,
        target: Target,
        command: str,
        timeout_s: float | None,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        bold: Callable[[str], str] = str,
        terminal: TextIO | None = None,
    ) -> None:
        self.target = target
        self.command = command
        self.given_s = timeout_s  # What -t says.
        self.started_s = time.monotonic()
        self.speak = say
        self._warn = warn
        self.bold = bold
        self.terminal = terminal  # Where progress may be told as a line that moves.
        self.progress = Progress(say, terminal)
        self.name = target.name or ""
        self._pending: list[str] = []
        self._tls = None if target.tls is None else _tls(*target.tls)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def say(self, text: str) -> None:
        self.progress.make_room()
        self.speak(text)

    def warn(self, text: str) -> None:
        self.progress.make_room()
        self._warn(text)

    # -- Banners -------------------------------------------------------------------------------------------------

    def banner(self, text: str, now: bool = False) -> None:
        """A line before the result. It waits for the first answer: a command that the node does not even try has none.

        Not so `now`, for what takes its time.
        """
        self._pending.append(text)
        if now:
            self.show_banner()

    def show_banner(self) -> None:
        pending, self._pending = self._pending, []
        for text in pending:
            self.say(text)

    # -- Asking --------------------------------------------------------------------------------------------------

    def begin(self, given_s: float | None = None) -> None:
        """Begin a question that has its own time: what -t says, or what is given here."""
        self.started_s = time.monotonic()
        if given_s is not None:
            self.given_s = given_s

    def speak_by(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Set how banners are printed. Returns how they were."""
        before, self.speak = self.speak, say
        return before

    def timeout_s(self, default_s: float) -> float:
        return default_s if self.given_s is None else self.given_s

    def left_s(self, default_s: float) -> float:
        """Return the seconds that are left of the command's timeout."""
        return self.started_s + self.timeout_s(default_s) - time.monotonic()

    def ask(self, command: str, arguments: dict[str, Any] | None = None, patience_s: float = PATIENCE_S) -> Any:
        """The node's answer. Raises Failed."""
        try:
            answer = self._call({"command": command, "arguments": arguments or {}}, self.left_s(patience_s))
        except CallFailed as error:
            raise self._unanswered(error, patience_s) from None
        return self._open(answer)

    def ask_for_life(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """For what may close the connection it was asked on: if so, ask for the outcome."""
        ticket = secrets.token_hex(16)
        asked = {"command": command, "arguments": arguments or {}, "ticket": ticket}
        try:
            return self._open(self._call(asked, self.left_s(LIFE_PATIENCE_S)))
        except CallFailed as error:
            if error.reason != "closed":
                raise self._unanswered(error, LIFE_PATIENCE_S) from None
        return self._outcome(ticket)

    def ask_with_progress(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """For what takes long: begin it, and tell how far it has come."""
        ticket = secrets.token_hex(16)
        self.ask("begin", {"ticket": ticket, "command": command, "arguments": arguments or {}})
        try:
            return self._outcome(ticket)
        finally:
            self.progress.end()

    def _outcome(self, ticket: str) -> Any:
        while True:
            try:
                outcome = self._open(self._call({"command": "outcome", "arguments": {"ticket": ticket}}, 5.0))
                if outcome["progress"]:
                    self.progress.tell(outcome["progress"])
                if outcome["answer"] is not None:
                    self.progress.end()
                    return self._open(outcome["answer"])
            except CallFailed as error:
                if self.left_s(LIFE_PATIENCE_S) <= 0 or error.reason not in ("closed", "unreachable"):
                    raise self._unanswered(error, LIFE_PATIENCE_S) from None
            self.pause(LIFE_PATIENCE_S)

    def pause(self, patience_s: float) -> None:
        """Before asking again. Raises Failed when the time is over."""
        left_s = self.left_s(patience_s)
        if left_s <= 0:
            raise self._timed_out(patience_s)
        time.sleep(min(POLL_S, left_s))

    def learn_name(self) -> None:
        """Return the name of the node. Raises Failed."""
        name = self.ask("ping")["node"]
        wanted = self.target.name
        # The host in a name with a port is where it was looked for; the node may call itself by another of its host.
        if wanted is not None and wanted.partition("@")[0] != name.partition("@")[0]:
            text = f"the node at {self.target.address} is {name}, not {wanted}"
            raise Failed(UNAVAILABLE, text, ONE_LINE)
        self.name = name

    def rows(
        self,
        command: str,
        columns: tuple[str, ...],
        arguments: dict[str, Any] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Rows:
        """A list, fetched page by page while it is printed. The first page comes at once, so that errors do."""
        asked = {**(arguments or {}), "columns": list(columns)}
        first = self.ask(command, asked, patience_s)

        def pages() -> Iterator[list[Any]]:
            answer, missing = first, []
            while True:
                yield from answer["rows"]
                missing += answer["missing"]
                if answer["next"] is None:
                    break
                answer = self.ask(command, {**asked, "after": answer["next"]}, patience_s)
            for name in dict.fromkeys(missing):
                self.warn(f"Warning: node {name} did not answer; its part is missing")

        return Rows(columns, pages())

    def _call(self, asked: dict[str, Any], timeout_s: float) -> Any:
        if timeout_s <= 0:
            raise CallFailed(link.TIMEOUT, "no time left")
        target = self.target
        me = Identity(f"leveretctl-{os.getpid()}", secrets.token_bytes(link.UUID_BYTES))
        asking = call(
            (target.host, target.port), CONTROL, json.dumps(asked).encode(), timeout_s, me, target.cookie, self._tls
        )
        return json.loads(self._runner.run(asking))

    def _open(self, answer: Any) -> Any:
        if "error" in answer:
            error = answer["error"]
            if error["form"] in (VALIDATION, WITH_USAGE):
                self._pending.clear()
            self.show_banner()
            raise Failed(error["code"], error["text"], error["form"])
        self.show_banner()
        return answer["ok"]

    # -- No answer -----------------------------------------------------------------------------------------------

    def _timed_out(self, patience_s: float) -> Failed:
        used_ms = int(self.timeout_s(patience_s) * 1000)
        name = self.name or self.target.address
        text = f"operation {self.command} on node {name} timed out. Timeout value used: {used_ms}"
        return Failed(TIMED_OUT, text, ONE_LINE)

    def _unanswered(self, error: CallFailed, patience_s: float) -> Failed:
        if error.reason == link.TIMEOUT:
            return self._timed_out(patience_s)
        target = self.target
        name = self.name or target.address
        lines = [
            f"Error: unable to perform an operation on node '{name}'. Please see diagnostics information and "
            "suggestions below.",
            "",
            COMMON_REASONS,
            "",
            "DIAGNOSTICS",
            "===========",
            "",
            f"attempted to contact: {target.address}, the cluster port of {name}",
            f"  * {error}",
            f"  * {_suggestion(error, target)}",
            f"  * cookie from {target.cookie_from}, TLS {'off' if target.tls is None else 'on'}",
        ]
        known = local_registry.entries()
        lines.append(
            "  * nodes of this user on this machine: "
            + (", ".join(f"{entry.name} (cluster port {entry.port})" for entry in known) or "none")
        )
        return Failed(UNAVAILABLE, "\n".join(lines) + "\n", PLAIN)


def _tls(certificate: str, key: str, authority: str) -> PeerTls:
    try:
        return peer_tls(TlsOptions(certfile=certificate, keyfile=key, cacertfile=authority))
    except OSError as error:
        files = f"{certificate}, {key} and {authority}"
        raise Failed(CONFIG, f"cannot use {files} for TLS: {error.strerror or error}", ONE_LINE) from None


def _suggestion(error: CallFailed, target: Target) -> str:
    if "cookie" in str(error) or error.reason == link.COOKIE:
        entry = target.entry
        if entry is not None and target.cookie_from == (entry.cookie_file or os.path.join(entry.data_dir, FILE_NAME)):
            return (
                f"suggestion: {target.cookie_from} was changed after the node was started, which still has the old "
                "cookie. Restore that; or, to use the new one, stop the node by its process id "
                f"(kill {entry.pid}) and start it again"
            )
        return "suggestion: name the cookie file of that node with --cookie-file"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "suggestion: --tls-ca-cert-file must contain the CA that signed that node's certificate"
    if error.reason == "unreachable":
        return f"suggestion: nothing listens there; start the node, or use --port if its port is not {target.port}"
    if error.reason in ("closed", link.GARBAGE, link.VERSION):
        if target.tls is not None:
            return "suggestion: if the certificate was refused, the log of that node says why"
        return "suggestion: is this a cluster port (default 25672, not the AMQP or management port)? Does it need TLS?"
    return "suggestion: see the log of that node"
