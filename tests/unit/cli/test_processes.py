"""Several nodes of one machine: the settings of each."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.base.exit_codes import CONFIG, SOFTWARE, UNAVAILABLE
from leveret.cli import processes, server
from leveret.cli.processes import Child, Supervisor, left_out, node_at, of_process, problem, supervise, taken_address
from leveret.node.cluster import witness
from leveret.node.config.load import load
from leveret.node.config.settings import Listener, Settings
from leveret.node.system import systemd
from leveret.node.system.data_folder import METADATA

WAIT_S = 30.0


def settings_of(tmp_path: Path, text: str = "", **environ: str) -> Settings:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"processes = 3\nnode_name = rabbit@burrow\nlisteners.tcp.default = 5672\n{text}")
    return load([], {"HOME": str(tmp_path), **environ}, str(conf)).settings


def test_the_first_is_the_node_that_it_was(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    first = of_process(settings, 1)
    assert (first.node_name, first.data_dir) == (settings.node_name, settings.data_dir)
    assert first.cluster_listener == settings.cluster_listener and first.join == settings.join


def test_others_have_names_folders_and_ports_of_their_own(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "log.file = broker.log\n")
    found = [of_process(settings, number) for number in (1, 2, 3)]
    assert [one.node_name for one in found] == ["rabbit@burrow", "rabbit-2@burrow", "rabbit-3@burrow"]
    assert [Path(one.data_dir).name for one in found] == [one.node_name for one in found]
    assert [one.cluster_listener.port for one in found] == [25_672, 25_673, 25_674]
    assert [one.prometheus_listeners[0].port for one in found] == [15_692, 15_693, 15_694]
    assert len({one.log_file for one in found}) == 3
    first, second, third = ("burrow", 25_672), ("burrow", 25_673), ("burrow", 25_674)
    assert [one.join for one in found] == [(), (first, third), (first, second)]  # Only the first founds a cluster.


def test_they_share_the_ports_of_clients_and_one_cookie(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "mqtt.listeners.tcp.1 = 1883\nmanagement.tcp.port = 15672\n")
    found = [of_process(settings, number) for number in (1, 2, 3)]
    for one in found:
        assert one.tcp_listeners == (Listener("", 5_672),) and one.mqtt_listeners == (Listener("", 1_883),)
        assert one.management_listeners[-1] == Listener("", 15_672)
        assert one.cookie_file == f"{settings.data_dir}/cookie"
        assert one.node_labels["machine"] == "burrow"
    assert len({one.management_listeners[0] for one in found}) == 3  # By which others refer clients to them.


@pytest.mark.parametrize("kind", ["tcp", "ssl"])
def test_http_is_at_no_interface_but_the_configured_one(tmp_path: Path, kind: str) -> None:
    text = f"cluster.listener = 0.0.0.0:25672\nmanagement.{kind}.ip = 127.0.0.1\nmanagement.{kind}.port = 15672\n"
    if kind == "ssl":
        for key in ("certfile", "keyfile"):
            (tmp_path / key).touch()
            text += f"management.ssl.{key} = {tmp_path}/{key}\n"
    second = of_process(settings_of(tmp_path, text), 2)
    found = second.management_listeners if kind == "tcp" else second.management_tls_listeners
    assert found == (Listener("127.0.0.1", 26_673), Listener("127.0.0.1", 15_672))


def test_memory_is_divided(tmp_path: Path) -> None:
    relative = of_process(settings_of(tmp_path, "vm_memory_high_watermark.relative = 0.6\n"), 2)
    assert relative.memory_watermark_relative == pytest.approx(0.2)
    absolute = of_process(settings_of(tmp_path, "vm_memory_high_watermark.absolute = 300\n"), 2)
    assert (absolute.memory_watermark_relative, absolute.memory_watermark_absolute) == (None, 100)


def test_a_folder_of_another_name_has_others_beside_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"data_dir = {tmp_path}/data\n")
    assert of_process(settings, 3).data_dir == f"{tmp_path}/data-3"


def test_the_first_joins_the_others_if_only_they_have_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    first, beside_first = node_at(settings, "1/3")
    _, beside_third = node_at(settings, "3/3")
    assert first.join == beside_first() == ()
    for number in (1, 2, 3):
        make_member(settings, number)
    # Also if it was started before they had any, and has left since.
    assert beside_first() == (("burrow", 25_673), ("burrow", 25_674)) and beside_third() == ()


def make_member(settings: Settings, number: int) -> None:
    folder = Path(processes.data_dir(settings, number)) / METADATA
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log-00000000000000000001").touch()


def test_a_node_that_was_never_a_member_is_not_waited_for(tmp_path: Path) -> None:
    # It was killed in its first start, or has left: the first one would wait for it, and it for the first one.
    settings = settings_of(tmp_path)
    for number in (1, 2, 3):
        folder = Path(processes.data_dir(settings, number)) / METADATA
        folder.mkdir(parents=True)
        (folder / "identity").touch()
    assert processes.members_beside(settings, 1) == ()
    # Nor does the first one found a second cluster, when it is killed before it has joined that of the others.
    make_member(settings, 2)
    assert processes.members_beside(settings, 1) == (("burrow", 25_673),)


def test_a_folder_that_cannot_be_read_is_taken_for_that_of_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To found a second cluster would be worse.
    settings = settings_of(tmp_path)
    for number in (2, 4):
        make_member(settings, number)
    listed = os.listdir

    def denied(path: str) -> list[str]:
        if "rabbit-2@" in path or "rabbit-4@" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", denied)
    assert processes.members_beside(settings, 1) == (("burrow", 25_673),)
    assert left_out(settings) == ["rabbit-4@burrow"]


def test_another_number_in_the_configuration_is_for_the_next_start_of_all(tmp_path: Path) -> None:
    # A node that starts again reads the configuration anew.
    before, changed = settings_of(tmp_path), settings_of(tmp_path, "processes = 1\n")
    assert (before.processes, changed.processes) == (3, 1)
    for place, number in (("1/3", 1), ("2/3", 2), ("3/3", 3)):
        assert node_at(changed, place)[0] == of_process(before, number)
    for wrong in ("4", "abc", "2/", "/2", "", "1/0", "0/3", "5/3", "1/1000"):
        with pytest.raises(ValueError, match="LEVERET_PROCESSES is how many"):
            node_at(before, wrong)


def test_a_member_that_is_not_started_is_named(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    for number in (1, 2, 3, 4, 6):
        make_member(settings, number)
    (Path(processes.data_dir(settings, 5)) / METADATA).mkdir(parents=True)  # It has left.
    assert left_out(settings) == ["rabbit-4@burrow", "rabbit-6@burrow"]


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    assert "0, any free one" in (problem(settings_of(tmp_path, "", LEVERET_PORT="0")) or "")
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        environ = {"LEVERET_PORT": str(port), "LEVERET_MANAGEMENT_PORT": "none", "LEVERET_CLUSTER_PORT": "20000"}
        assert "another process does" in (taken_address(settings_of(tmp_path, "", **environ)) or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("management.tcp.port = 5672\n", "port 5672 cannot be for both AMQP and HTTP:"),
        (
            "cluster.port = 5670\n",
            "port 5672 cannot be for both AMQP and other nodes to reach rabbit-3@burrow:",
        ),
        (
            "management.tcp.port = 26673\n",
            "port 26673 cannot be for both HTTP and HTTP of rabbit-2@burrow (its cluster port and 1000):",
        ),
        (
            "mqtt.listeners.tcp.1 = 15694\n",
            "port 15694 cannot be for both MQTT and Prometheus of rabbit-3@burrow:",
        ),
        (
            "cluster.port = 15692\n",
            "port 15692 cannot be for both other nodes to reach rabbit@burrow and Prometheus of",
        ),
        ("listeners.tcp.default = 127.0.0.1:5672\nmqtt.listeners.tcp.1 = 5672\n", "port 5672 cannot be for both AMQP"),
        ("listeners.tcp.default = localhost:5672\nmqtt.listeners.tcp.1 = 127.0.0.1:5672\n", "port 5672 cannot be for"),
    ],
)
def test_one_port_for_two_services_is_refused(tmp_path: Path, text: str, said: str) -> None:
    # They would both get it, for it can be shared; and the clients of one would meet the other.
    assert (problem(settings_of(tmp_path, text)) or "").startswith(said)


def test_one_port_at_two_addresses_may_be_for_two_services(tmp_path: Path) -> None:
    listeners = ("tcp.default = 127.0.0.1:5672", "tcp.2 = ::1:5672", "tcp.3 = 127.0.0.1:5672")
    text = "".join(f"listeners.{one}\n" for one in listeners) + "mqtt.listeners.tcp.1 = 127.0.0.2:5672\n"
    assert problem(settings_of(tmp_path, text)) is None


def test_any_free_port_for_prometheus_is_one_for_each(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "prometheus.tcp.port = 0\n")
    assert [of_process(settings, number).prometheus_listeners[0].port for number in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("key", ["cluster.port", "prometheus.tcp.port"])
def test_ports_behind_the_last_one_are_refused(tmp_path: Path, key: str) -> None:
    assert "there are no 3 ports from" in (problem(settings_of(tmp_path, f"{key} = 65534\n")) or "")


def test_an_address_that_this_machine_lacks_is_told_from_one_in_use(tmp_path: Path) -> None:
    environ = {"LEVERET_HOST": "192.0.2.1", "LEVERET_MANAGEMENT_PORT": "none", "LEVERET_CLUSTER_PORT": "20000"}
    said = taken_address(settings_of(tmp_path, "", **environ)) or ""
    assert said.startswith("cannot listen at 192.0.2.1:5672: ") and "another process" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listeners.tcp.default = 0\n", "none of them can be 0"),
        ("cluster.port = 65000\n", "there are no 3 ports from 66000 on"),
        ("management.tcp.port = 5672\n", "cannot be for both"),
        ("data_dir = {folder}/broker.conf/data\n", "give the node another folder with --data, or data_dir in its"),
    ],
)
def test_a_wrong_configuration_ends_as_with_one_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    # A service manager does not start it again then.
    assert supervise(settings_of(tmp_path, text.format(folder=tmp_path))) == CONFIG
    assert said in capsys.readouterr().err


def test_an_address_in_use_is_tried_again_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = settings_of(tmp_path, f"management.tcp.port = {other.getsockname()[1]}\n", LEVERET_PORT="20001")
        assert supervise(settings) == UNAVAILABLE


def test_pauses_between_starts_grow_to_a_limit() -> None:
    assert [processes._pause_s(crashes) for crashes in (1, 2, 3, 6, 7, 2_000)] == [1.0, 2.0, 4.0, 30.0, 30.0, 30.0]


def test_a_process_that_takes_no_signals_yet_outlives_a_request_to_open_logs_anew() -> None:
    done = subprocess.run(
        ["sh", "-c", "kill -HUP $$; echo alive"], preexec_fn=processes._before_exec, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == b"alive\n"


def test_a_witness_says_that_it_is_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(witness, "run", lambda settings: 0)
    for count in (1, 3):
        (tmp_path / "broker.conf").write_text(f"processes = {count}\ndata_dir = {tmp_path}/data\n")
        assert server.start([], str(tmp_path / "broker.conf"), as_witness=True) == 0
    assert capsys.readouterr().err == "leveret: warning: processes: has no effect: a witness is one process\n"


class Sleeper(Child):
    """A process that is stopped while the system starts it."""

    on_spawning: Callable[[], None]

    async def spawn(self) -> None:
        self.on_spawning()
        self.process = await asyncio.create_subprocess_exec("sleep", "600", stdout=asyncio.subprocess.PIPE)


def test_a_process_that_is_just_being_started_is_stopped_with_the_others(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)

    async def run() -> int:
        supervisor, sleeper = Supervisor(settings), Sleeper(settings, 1)
        supervisor.children = [sleeper]
        sleeper.on_spawning = supervisor.stop
        try:
            return await asyncio.wait_for(supervisor.run(), WAIT_S)
        finally:
            sleeper.send(signal.SIGKILL)

    assert asyncio.run(run()) == 0


class Script(Child):
    """A process that ends in some way before it is ready."""

    text = ""

    async def spawn(self) -> None:
        self.process = await asyncio.create_subprocess_exec("sh", "-c", self.text, stdout=asyncio.subprocess.PIPE)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("exit 0", 0, "rabbit-2@burrow was stopped"),
        ("exit 69", 69, "rabbit-2@burrow ended with code 69"),
        ("kill -9 $$", 70, "rabbit-2@burrow was killed by signal 9"),
    ],
)
def test_a_group_that_stops_with_one_process_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    settings = settings_of(tmp_path)

    async def run() -> int:
        supervisor, script = Supervisor(settings), Script(settings, 2)
        supervisor.children, script.text = [script], text
        return await asyncio.wait_for(supervisor.run(), WAIT_S)

    assert asyncio.run(run()) == code
    assert capsys.readouterr().err == f"leveret: {said}; all processes stop with it\n"


SERVES = "echo ready amqp=1; exec sleep 600"
NO_PROCESS = "the system has none left"


class Scripts(Script):
    """A process that does something else at each start, and at the end always the same."""

    texts: list[str]
    on_spawned: Callable[[], None]

    async def spawn(self) -> None:
        self.text = self.texts[0] if len(self.texts) == 1 else self.texts.pop(0)
        if self.text == NO_PROCESS:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        await super().spawn()
        self.on_spawned()


def supervised(settings: Settings, *texts: list[str], until: Callable[[Supervisor], bool] = lambda _: False) -> int:
    """Runs processes that do these things, one at each start, and stops them when `until` holds at the start of one.
    Returns the exit code."""

    async def run() -> int:
        supervisor = Supervisor(settings)
        supervisor.children = [Scripts(settings, number) for number, _ in enumerate(texts, 1)]
        for child, each in zip(supervisor.children, texts, strict=True):
            assert isinstance(child, Scripts)
            child.texts = each
            child.on_spawned = lambda: supervisor.stop() if until(supervisor) else None
        try:
            return await asyncio.wait_for(supervisor.run(), WAIT_S)
        finally:
            for child in supervisor.children:
                child.send(signal.SIGKILL)

    return asyncio.run(run())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the service manager is told. Processes are started again at once."""
    found: list[str] = []
    monkeypatch.setattr(processes, "RESTART_S", 0.01)
    monkeypatch.setattr(processes, "RESTART_S_MAX", 0.1)
    monkeypatch.setattr(systemd, "tell", found.append)
    return found


@pytest.mark.parametrize("code", [65, 69, 70])
def test_others_with_data_go_on_without_a_process_that_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: list[str], code: int
) -> None:
    # Only they can be told to forget what a node was that has lost its data.
    settings = settings_of(tmp_path)
    make_member(settings, 1)
    # Whoever waits for the service can use it.
    assert supervised(settings, [SERVES], [f"exit {code}"], until=lambda _: "READY=1" in told) == 0
    said = capsys.readouterr()
    assert f"leveret: rabbit-2@burrow ended with code {code}; it is started again in " in said.err
    assert said.out == "ready processes=1 amqp=1\n"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("code", [65, 69])
def test_a_group_of_which_none_can_start_ends(tmp_path: Path, code: int) -> None:
    settings = settings_of(tmp_path)
    for number in (1, 2):
        make_member(settings, number)
    assert supervised(settings, [f"exit {code}"], [f"exit {code}"]) == code


@pytest.mark.parametrize("code", [64, 78])
def test_what_is_wrong_for_all_stops_all(tmp_path: Path, code: int) -> None:
    settings = settings_of(tmp_path)
    make_member(settings, 1)
    assert supervised(settings, [SERVES], [f"exit {code}"]) == code


@pytest.mark.usefixtures("told")
def test_a_process_that_has_served_is_started_again_while_others_still_start(tmp_path: Path) -> None:
    def is_again(supervisor: Supervisor) -> bool:
        return supervisor.children[0].crashes == 1

    texts = ["echo ready amqp=1; exit 70", SERVES], ["exec sleep 600"]
    assert supervised(settings_of(tmp_path), *texts, until=is_again) == 0


@pytest.mark.usefixtures("told")
def test_a_process_that_the_system_does_not_start_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_again(supervisor: Supervisor) -> bool:
        return supervisor.children[0].crashes == 3

    texts = ["echo ready amqp=1; exit 70", NO_PROCESS, NO_PROCESS, SERVES], [SERVES]
    assert supervised(settings_of(tmp_path), *texts, until=is_again) == 0
    why = os.strerror(errno.EAGAIN)
    assert capsys.readouterr().err.count(f"rabbit@burrow cannot be started: {why}; it is started again in") == 2


def test_a_group_that_the_system_does_not_start_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert supervised(settings_of(tmp_path), [SERVES], [NO_PROCESS]) == 70
    why = os.strerror(errno.EAGAIN)
    assert f"leveret: rabbit-2@burrow cannot be started: {why}; all processes stop with it" in capsys.readouterr().err


STAYS = "trap '' TERM; echo ready amqp=1; exec sleep 600"


def test_a_terminal_that_is_closed_stops_a_group_and_does_not_kill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shell sends SIGHUP, and then the kernel does.
    supervisors: list[Supervisor] = []
    killed: list[bool] = []

    def on_told(state: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        if state == "STOPPING=1":
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_both() -> None:
        killed.append(supervisors[0].killing)
        supervisors[0].children[0].send(signal.SIGKILL)

    async def run() -> None:
        supervisors.append(Supervisor(settings_of(tmp_path)))
        stays = Script(supervisors[0].settings, 1)
        supervisors[0].children, stays.text = [stays], STAYS
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, on_both)
        await asyncio.wait_for(supervisors[0].run(), WAIT_S)

    monkeypatch.setattr(systemd, "tell", on_told)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    asyncio.run(run())
    assert killed == [False]


@pytest.mark.parametrize(
    ("text", "times", "said"),
    [
        (STAYS, 2, "rabbit@burrow has not stopped, and is killed"),
        (
            "trap 'exit 70' TERM; echo ready amqp=1; while :; do sleep 0.05; done",
            1,
            "rabbit@burrow ended with code 70 when it was to",
        ),
        (
            "trap 'kill -9 $$' TERM; echo ready amqp=1; while :; do sleep 0.05; done",
            1,
            "rabbit@burrow was killed by signal 9 when",
        ),
    ],
)
def test_a_stop_that_was_no_orderly_one_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    times: int,
    said: str,
) -> None:
    supervisors: list[Supervisor] = []

    def on_told(state: str) -> None:
        for _ in range(times if state == "READY=1" else 0):
            supervisors[0].stop()

    async def run() -> int:
        supervisors.append(Supervisor(settings_of(tmp_path)))
        script = Script(supervisors[0].settings, 1)
        supervisors[0].children, script.text = [script], text
        return await asyncio.wait_for(supervisors[0].run(), WAIT_S)

    monkeypatch.setattr(systemd, "tell", on_told)
    assert asyncio.run(run()) == SOFTWARE
    assert f"leveret: {said}" in capsys.readouterr().err
