"""The two brokers, each started for the occasion, with vhosts in which conversations go on side by side.

A vhost has a name of one letter, as long as `/`: RabbitMQ cuts texts at 255 bytes, and where it cuts must not depend on
the vhost. User `limited` may do everything with names that begin with `mine`, and nothing else.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Final

from benchmarks.ruler.brokers import CONTROL_TIMEOUT_S, RabbitMQ, prepared
from benchmarks.ruler.rabbitmq_programs import CONTROLS, first_program
from leveret.cli.ctl import main as ctl
from leveret.metadata.defaults import first_boot
from leveret.metadata.model.commands import AddVhost, PutUser, SetPermissions
from leveret.metadata.rules.passwords import SHA256, hash_password
from tests.support.servers import Server, prepare

VHOSTS: Final = "ABCDEFGHIJKLMNOPQRSTUVWX"
VERSION: Final = "3.10.8"
PLUGINS: Final = "[rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange].\n"
INSTALL: Final = ("apt-get", "install", "--yes", "--no-install-recommends", "rabbitmq-server")
RABBITMQ_QUIET_S: Final = 0.12
LEVERET_QUIET_S: Final = 0.03
BEHIND_S: Final = 0.15
TOOLS_MAX: Final = 3
# Makes users and vhosts at once; rabbitmqctl takes seconds for each command.
_SET_UP: Final = """
lists:foreach(fun (Letter) ->
    Vhost = <<Letter>>,
    rabbit_vhost:add(Vhost, <<"compare">>),
    rabbit_auth_backend_internal:set_permissions(
        <<"guest">>, Vhost, <<".*">>, <<".*">>, <<".*">>, <<"compare">>),
    case Letter of
        $A -> rabbit_auth_backend_internal:add_user(<<"limited">>, <<"limited">>, <<"compare">>);
        _ -> ok
    end,
    rabbit_auth_backend_internal:set_permissions(
        <<"limited">>, Vhost, <<"^mine">>, <<"^mine">>, <<"^mine">>, <<"compare">>)
end, "LETTERS").
"""

Ended = tuple[int, str]  # Exit code, complaints.


class Missing(RuntimeError):
    """There is no RabbitMQ to compare with."""


class Answering:
    """A broker that runs. `tool` takes the words of a command and gives exit code and complaints."""

    def __init__(self, name: str, port: int, node: str, quiet_s: float, tool: Callable[[list[str]], Ended]) -> None:
        self.name = name
        self.port = port
        self.node = node
        self.quiet_s = quiet_s
        self.behind_s = BEHIND_S
        self.tool = tool

    def control(self, vhost: str, text: str) -> str:
        """`ok`, or what the tool complains about."""
        command, *words = shlex.split(text)
        code, complaint = self.tool([command, "-p", vhost, *words] if vhost else [command, *words])
        return "ok" if code == 0 else f"{code} {' '.join(complaint.split())}"


def rabbitmqctl(broker: RabbitMQ) -> Callable[[list[str]], Ended]:
    """Each is a virtual machine that starts: more of them at once are not over sooner, and all of them late."""
    program = first_program(CONTROLS)
    assert program is not None
    turns = BoundedSemaphore(TOOLS_MAX)

    def run(words: list[str]) -> Ended:
        with turns:
            done = subprocess.run(
                [program, "--quiet", "--node", broker.node, *words],
                env=broker.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CONTROL_TIMEOUT_S,
                text=True,
                check=False,
            )
        return done.returncode, done.stderr

    return run


def leveretctl(server: Server) -> Callable[[list[str]], Ended]:
    """In this process, as starting one takes a hundred times as long; one at a time, as what it prints is caught."""
    address = ["--host", "127.0.0.1", "--port", str(server.cluster_port), "--cookie-file", str(server.data / "cookie")]
    turn = Lock()

    def run(words: list[str]) -> Ended:
        complaint = StringIO()
        with turn, redirect_stdout(StringIO()), redirect_stderr(complaint):
            code = ctl.main(["--quiet", *address, *words])
        return code, complaint.getvalue()

    return run


def install_rabbitmq() -> None:
    """Raises Missing where it is not installed and we may not do it."""
    if RabbitMQ.program() is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(f"RabbitMQ is not installed. As root: {' '.join(INSTALL)}")
    print("Installing RabbitMQ from the distribution's packages", file=sys.stderr, flush=True)
    # The package would start the server; 101 tells it not to.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(INSTALL, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    finally:
        if ours:
            policy.unlink()
    if RabbitMQ.program() is None:
        raise Missing("rabbitmq-server is installed, but not where it should be")


@contextmanager
def rabbitmq() -> Iterator[Answering]:
    install_rabbitmq()
    with prepared(RabbitMQ) as broker:
        assert isinstance(broker, RabbitMQ)
        (broker.folder / "enabled_plugins").write_text(PLUGINS)
        broker.start()
        if broker.version != VERSION:
            raise Missing(f"RabbitMQ {VERSION} is compared with, and this one is {broker.version}")
        target = Answering("rabbitmq", broker.port, broker.node, RABBITMQ_QUIET_S, rabbitmqctl(broker))
        answer = target.control("", f"eval {shlex.quote(_SET_UP.replace('LETTERS', VHOSTS))}")
        assert answer == "ok", answer
        yield target


@contextmanager
def leveret(folder: Path | None = None) -> Iterator[Answering]:
    with tempfile.TemporaryDirectory(prefix="leveret-compare-", dir=folder) as made:
        server = Server(Path(made), environment={"LEVERET_FSYNC": "never"})
        users = [PutUser("limited", hash_password("limited", b"salt", SHA256), SHA256, ())]
        vhosts = [AddVhost(letter) for letter in VHOSTS]
        given = [SetPermissions("guest", letter, ".*", ".*", ".*") for letter in VHOSTS]
        given += [SetPermissions("limited", letter, "^mine", "^mine", "^mine") for letter in VHOSTS]
        prepare(server.data, [*first_boot(b"salt"), *users, *vhosts, *given])
        try:
            server.start()
            yield Answering("leveret", server.port, "leveret@localhost", LEVERET_QUIET_S, leveretctl(server))
        finally:
            server.end()
