"""Commands for taking nodes out of service and back: drain, revive, leave, restart, one or all of them in turn.

A rolling restart is led from here, not from a node: every node is restarted, so none could lead it. It asks the nodes
one by one, by the addresses that the cluster has for them, and goes on to the next only when the cluster is as whole as
it was before. So nothing is worse off if it is interrupted at any point: at worst one node is in maintenance, and that
ends with its restart, or with `revive`.

    for each node, the leader last:   whole? ─▶ drain ─▶ restart ─▶ another run serves ─▶ linked with all ─▶ in sync?
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import NO_MIRRORS, ONE_LINE, VALIDATION
from leveret.base.exit_codes import DATA_ERROR, INTERRUPTED, TIMED_OUT, UNAVAILABLE
from leveret.cli.ctl.base.command import Command, Failed, Given, Message, Output, Report
from leveret.cli.ctl.queues.rebalance import is_cut_short, summary

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

UPGRADE: Final = "Upgrades and maintenance"
NODE_S: Final = 300.0  # That one node has, unless told otherwise.
DRAIN_S: Final = 600.0
ASK_S: Final = 10.0
NAMES_SHOWN: Final = 5



# -- One node ------------------------------------------------------------------------------------------------------


def drain(session: Session, given: Given) -> Output:
    reports = [_drain(one, given) for one in _meant(session, given)]
    if len(reports) == 1:
        return reports[0]
    return Report([one.value for one in reports], "\n".join(one.text for one in reports))


def _drain(session: Session, given: Given) -> Report:
    session.banner(
        f"Will put node {session.name} into maintenance mode. The node will no longer serve any client traffic!",
        now=True,
    )
    answer = session.ask_with_progress("drain", {"move_unmirrored": given.flag("move-unmirrored")})
    _warn_of_kept(session, answer)
    text = (
        f"Node {session.name} is in maintenance: {answer['clients']} connections closed, {answer['handed_over']} "
        f"queues handed over to mirrors, {answer['moved']} moved, {answer['kept_count']} stay"
    )
    return Report({"node": session.name, "result": "ok", **answer}, text)


def _warn_of_kept(session: Session, answer: dict[str, Any]) -> None:
    kept, count = answer["kept"], answer["kept_count"]
    if not count:
        return
    names = ", ".join(f"{one['name']} in {one['vhost']} ({one['why']})" for one in kept[:NAMES_SHOWN])
    more = f" and {count - NAMES_SHOWN} more" if count > NAMES_SHOWN else ""
    advice = (
        f" Move those without mirrors with: {session.command} --move-unmirrored"
        if any(one["why"] == NO_MIRRORS for one in kept)
        else ""
    )
    session.warn(
        f"Warning: node {session.name} is still the master of {count} queues: {names}{more}. They are unavailable "
        f"while it is stopped.{advice}"
    )


def revive(session: Session, given: Given) -> Output:
    for one in _meant(session, given):
        one.banner(
            f"Will put node {one.name} back into regular operating mode. The node will again serve client traffic and "
            "host primary queue replicas."
        )
        one.ask("revive")
    return None


def _meant(session: Session, given: Given) -> Iterator[Session]:
    """Yields a session with each node that is meant: this one, and with --machine all processes of its machine."""
    from leveret.metadata.rules.placement import MACHINE

    if not given.flag("machine"):
        yield session
        return
    members = session.ask("cluster_status")["members"]
    labels = {one["name"]: one["labels"].get(MACHINE) for one in members}
    for one in members:
        is_meant = one["name"] == session.name or (labels[session.name] and labels[one["name"]] == labels[session.name])
        if is_meant:
            there = _session_with(session, one["name"], one["address"])
            try:
                yield there
            finally:
                if there is not session:
                    there.close()


def _session_with(main: Session, name: str, address: str) -> Session:
    from leveret.cli.ctl.base.connect import parse_address
    from leveret.cli.ctl.base.session import Session

    if name == main.name:
        return main
    place = parse_address(address)
    there = main.target._replace(host=place.host, port=place.port, name=name, entry=None)
    return Session(there, main.command, None, main.say, main.warn, terminal=main.terminal)


def restart_node(session: Session, given: Given) -> Output:
    session.banner(f"Restarting node {session.name} ...", now=True)
    seconds = session.timeout_s(NODE_S)
    before = session.ask("service_state")["run"]
    session.ask("restart_node")
    _await_run(session, before, seconds)
    return Message(f"Node {session.name} is back")


def post_upgrade(session: Session, given: Given) -> Output:
    session.banner("Executing post upgrade tasks...", now=True)
    session.banner("Rebalancing queue masters...", now=True)
    return Message(_rebalanced(session))


def leave_cluster(session: Session, given: Given) -> Output:
    name = session.name
    session.banner(f"Moving the queues of node {name} to the other nodes, then leaving the cluster ...", now=True)
    arguments: dict[str, Any] = {"force": given.flag("force")}
    if session.given_s is not None:
        arguments["seconds"] = int(session.given_s)
        session.given_s += DRAIN_S  # That is how long clients have; queues take their own time.
    session.ask_with_progress("leave_cluster", arguments)
    return Message(f"Node {name} has left its cluster; its data is deleted and its application is stopped")


# -- Waiting -------------------------------------------------------------------------------------------------------


def _ask(session: Session, command: str, arguments: dict[str, Any] | None = None) -> Any:
    """One of many questions, each of which has its own time."""
    session.begin(ASK_S)
    return session.ask(command, arguments)


def _ask_long(session: Session, command: str, arguments: dict[str, Any]) -> Any:
    session.begin(DRAIN_S)
    return session.ask_with_progress(command, arguments)


def _state(session: Session) -> dict[str, Any] | None:
    """None: the node does not answer now."""
    try:
        answer: dict[str, Any] = _ask(session, "service_state")
        return answer
    except Failed as failed:
        if failed.code not in (UNAVAILABLE, TIMED_OUT):
            raise
        return None


def _until(fits: Callable[[], bool], seconds: float) -> bool:
    from leveret.cli.ctl.base.session import POLL_S

    deadline = time.monotonic() + seconds
    while not fits():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _await_run(session: Session, before: str | None, seconds: float) -> None:
    """Until another run of the node serves clients. Raises Failed."""

    def is_back() -> bool:
        state = _state(session)
        return state is not None and state["run"] not in (None, before) and bool(state["serves"])

    if not _until(is_back, seconds):
        raise Failed(
            TIMED_OUT,
            f"node {session.name} did not serve clients again within {seconds:g} seconds. Its log says what it waits "
            f"for, or why it ended; see also: leveretctl -n {session.name} cluster_status",
            ONE_LINE,
        )


# -- All nodes -----------------------------------------------------------------------------------------------------


class Rolling:
    """One rolling restart."""

    def __init__(self, session: Session, given: Given) -> None:
        self.session = session
        self.seconds = session.timeout_s(NODE_S)
        self.command = given.text("command", "")
        self.move = given.flag("move-unmirrored")
        self.sync = given.flag("sync")
        self.force = given.flag("force")
        self.only = given.texts("nodes")
        self.sessions: dict[str, Session] = {}
        self.done: list[str] = []

    def begin(self) -> list[str]:
        """The nodes in their order. Raises Failed."""
        state = _ask(self.session, "restart_state")
        names = [one["name"] for one in state["members"]]
        unknown = [name for name in self.only or () if name not in names]
        if unknown:
            raise Failed(
                DATA_ERROR, f"not in the cluster: {', '.join(unknown)}; members are {', '.join(names)}", ONE_LINE
            )
        meant = [name for name in names if self.only is None or name in self.only]
        begun = {one["name"] for one in state["members"] if one["state"] is not None}
        for one in state["members"]:
            self.sessions[one["name"]] = _session_with(self.session, one["name"], one["address"])
        # One that is in maintenance was left so by a run before; the leader last, so that it changes once only.
        return sorted(meant, key=lambda name: (name not in begun, name == state["leader"], name))

    def close(self) -> None:
        for session in self.sessions.values():
            if session is not self.session:
                session.close()

    # -- Is it whole? --------------------------------------------------------------------------------------------

    def problem(self, node: str, wait: bool) -> str | None:
        """Why that node must not be stopped now, after a while in which it may come right; None: it may."""
        found: list[str | None] = [None]

        def is_fine() -> bool:
            found[0] = self._problem(node)
            if found[0] is not None and wait:
                self.session.progress.tell(f"{node}: waiting: {found[0]}")
            return found[0] is None

        _until(is_fine, self.seconds if wait else 0)
        self.session.progress.end()
        return found[0]

    def _problem(self, node: str) -> str | None:
        for name, session in self.sessions.items():
            try:
                state = _ask(session, "restart_state")
            except Failed as failed:
                return f"node {name} does not answer: {failed.text.splitlines()[0]}"
            problem = self._trouble(state, node)
            if problem is not None:
                return problem
        return None

    def _trouble(self, state: dict[str, Any], node: str) -> str | None:
        """In what one node sees."""
        seen_by, members = state["node"], state["members"]
        if state["leader"] is None or not state["has_majority"]:
            return f"node {seen_by} is not in contact with a majority, or there is no leader"
        for one in members:
            if not one["running"]:
                return f"node {seen_by} is not in contact with node {one['name']}"
            if one["paused"]:
                return f"node {one['name']} is paused by a partition"
            if not one["voter"]:
                return f"node {one['name']} has just joined, and is catching up"
            if one["state"] is not None and one["name"] != node:
                return f"node {one['name']} is in maintenance; end that with: leveretctl -n {one['name']} revive"
        if state["unsynced_count"]:
            return self._unsynced(state)
        if len(members) < 2 and not self.force:
            return "the cluster has 1 node, and clients have to wait while it is stopped. --force restarts it anyway"
        return None

    def _unsynced(self, state: dict[str, Any]) -> str:
        late = state["unsynced"]
        by_hand = [one for one in late if not one["by_itself"]]
        if self.sync:
            for one in by_hand:
                _ask(self.session, "sync_queue", {"vhost": one["vhost"], "name": one["name"]})
        names = ", ".join(f"{one['name']} in {one['vhost']} at {', '.join(one['nodes'])}" for one in late[:NAMES_SHOWN])
        text = f"mirrors of {state['unsynced_count']} queues are not synchronised: {names}"
        if by_hand and not self.sync:
            text += ". Their policy does not synchronise them: --sync does, or leveretctl sync_queue"
        return text

    # -- One after the other -------------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        """Raises Failed."""
        session = self.sessions[name]
        before = _ask(session, "service_state")["run"]
        answer = _ask_long(session, "drain", {"move_unmirrored": self.move})
        _warn_of_kept(session, answer)
        self.session.say(
            f"{name}: drained, {answer['clients']} connections closed, {answer['handed_over']} queues handed over"
        )
        if self.command:
            self._run_command(name)
        else:
            _ask(session, "restart_node")
        self.session.progress.tell(f"{name}: waiting until it serves clients again")
        _await_run(session, before, self.seconds)
        self.session.progress.end()
        problem = self.problem(name, wait=True)
        if problem is not None:
            raise Failed(TIMED_OUT, f"node {name} is back, but {problem}", ONE_LINE)
        self.done.append(name)

    def _run_command(self, name: str) -> None:
        host = name.partition("@")[2]
        words = [word.replace("{node}", name).replace("{host}", host) for word in shlex.split(self.command)]
        try:
            code = subprocess.run(words, check=False).returncode
        except OSError as error:
            raise Failed(UNAVAILABLE, f"cannot run {words[0]}: {error.strerror or error}", ONE_LINE) from None
        if code:
            raise Failed(UNAVAILABLE, f"'{shlex.join(words)}' ended with code {code}", ONE_LINE)


def rolling_restart(session: Session, given: Given) -> Output:
    if "command" in given.switches and not given.text("command", "").strip():
        raise Failed(DATA_ERROR, "Bad argument: --command is empty", VALIDATION)
    rolling = Rolling(session, given)
    try:
        order = rolling.begin()
        session.banner(f"Restarting {len(order)} nodes, one after the other: {', '.join(order)}", now=True)
        if given.flag("dry-run"):
            return _planned(rolling, order)
        for number, name in enumerate(order):
            began_s = time.monotonic()
            problem = rolling.problem(name, wait=rolling.sync or number > 0)
            if problem is not None:
                raise Failed(UNAVAILABLE, f"node {name} is not restarted: {problem}", ONE_LINE)
            try:
                rolling.restart(name)
            except Failed as failed:
                raise _with_rest(failed, order[number:], given) from None
            except KeyboardInterrupt:
                text = f"interrupted at node {name}: it comes back if it is stopping, else it may be in maintenance"
                raise _with_rest(Failed(INTERRUPTED, text, ONE_LINE), order[number:], given) from None
            session.say(f"{name}: back, and all mirrors are synchronised, after {time.monotonic() - began_s:.1f} s")
        if given.flag("rebalance"):
            session.say(_rebalanced(session))
        return Report({"result": "ok", "restarted": rolling.done}, f"{len(order)} nodes were restarted")
    finally:
        rolling.close()


def _rebalanced(session: Session) -> str:
    """Rebalances until nothing is left to move, or nothing can be. What was moved, and what is still uneven."""
    answer: dict[str, Any] = {}
    moved, before = 0, None
    while True:
        answer = _ask_long(session, "rebalance", {"kind": "all"})
        before = before or answer["before"]
        moved += answer["done"]
        if not is_cut_short(answer) or not answer["done"]:
            return summary({**answer, "before": before}, moved)


def _planned(rolling: Rolling, order: list[str]) -> Output:
    problem = rolling.problem(order[0], wait=False) if order else None
    alone = _ask(rolling.session, "restart_state")["unmirrored"]
    lines = [
        f"{number}. {name}" + (f": {alone[name]} queues without mirrors" if alone.get(name) else "")
        for number, name in enumerate(order, 1)
    ]
    lines.append("the restart could begin now" if problem is None else f"the restart could not begin now: {problem}")
    return Report({"order": order, "problem": problem, "unmirrored": alone}, "\n".join(lines))


def _with_rest(failed: Failed, left: list[str], given: Given) -> Failed:
    """Return the command that goes on with the nodes that are left."""
    words = [f"--{name}" for name in ("move-unmirrored", "sync", "rebalance", "force") if given.flag(name)]
    if "command" in given.switches:
        words += ["--command", given.text("command", "")]
    again = shlex.join(["leveretctl", "rolling_restart", "--nodes", ",".join(left), *words])
    when = "Continue" if failed.code == INTERRUPTED else "When this is fixed, continue"
    text = f"{failed.text}\nStopped. The other nodes are as they were. {when} with: {again}"
    return Failed(failed.code, text, failed.form)


COMMANDS: Final = (
    Command(
        "drain", UPGRADE, "[--move-unmirrored] [--machine] [--timeout <timeout>]",
        "Puts the node in maintenance mode. Such nodes will not serve any client traffic or host any primary queue "
        "replicas",
        "leveretctl -n two@localhost drain", drain, switches={"move-unmirrored": None, "machine": None},
        more="Closes the listeners and connections of clients, hands over mirrored queues to mirrors in sync, and "
        "makes another node the Raft leader. Queues without mirrors stay, and clients of other nodes can use them "
        "until the node stops; with --move-unmirrored they are first moved to other nodes. --machine: all processes of "
        "the node's machine. This lasts until revive, or until the node is started again.",
    ),
    Command(
        "revive", UPGRADE, "[--machine] [--timeout <timeout>]",
        "Puts the node out of maintenance and into regular operating mode. Such nodes will again serve client traffic "
        "and host primary queue replicas",
        "leveretctl -n two@localhost revive", revive, switches={"machine": None},
        more="--machine: all processes of the node's machine. Queues that were handed over stay where they are. To "
        "spread them again: leveretctl rebalance all",
    ),
    Command(
        "post_upgrade", UPGRADE, "[--timeout <timeout>]", "Runs post-upgrade tasks: rebalances queues",
        "leveretctl post_upgrade", post_upgrade,
    ),
    Command(
        "restart_node", UPGRADE, "[--timeout <timeout>]",
        "Stops a node in an orderly way, and starts it again as the same process with the same arguments",
        "leveretctl -n two@localhost drain && leveretctl -n two@localhost restart_node", restart_node,
        more="The node then runs the version that is installed. The command returns when the node serves clients "
        "again; the default timeout is 300 seconds. To restart all nodes safely, use rolling_restart.",
    ),
    Command(
        "rolling_restart", UPGRADE,
        "[--nodes <node,...>] [--dry-run] [--command <command>] [--move-unmirrored] [--sync] [--rebalance] [--force] "
        "[--timeout <timeout>]",
        "Restarts the nodes of the cluster one after the other; nothing is lost",
        'leveretctl rolling_restart --command "ssh {host} systemctl restart leveret" --rebalance', rolling_restart,
        switches={
            "nodes": "nodes", "dry-run": None, "command": "command", "move-unmirrored": None, "sync": None,
            "rebalance": None, "force": None,
        },
        more="Each node is drained and restarted; then the command waits until it serves clients, is in contact with "
        "all others, and all mirrors are synchronised. The Raft leader is the last one. The command does not begin, "
        "or stops, if a node is down or a mirror is not synchronised, and prints how to continue. --timeout: seconds "
        "that one node may take (300). Without --command a node restarts itself (see restart_node). --sync: "
        "synchronises mirrors whose policy does not. --rebalance: spreads masters over all nodes at the end. "
        "--dry-run: shows the order, and whether the restart could begin.",
    ),
    Command(
        "leave_cluster", UPGRADE, "[--force] [--timeout <timeout>]",
        "Makes a node leave its cluster; no message is lost",
        "leveretctl -n two@localhost leave_cluster && leveretctl -n two@localhost stop", leave_cluster,
        switches={"force": None},
        more="The queues of the node move to the others while they are in use, and it accepts no new clients. As "
        "long as clients publish or consume through it, it reports them and stays a member; when they are gone, the "
        "others remove it and rebalance. --timeout: how long clients have; after that the command ends, and the node "
        "stays as it is until revive, or leave_cluster again. --force disconnects clients, at once or after "
        "--timeout. If something fails in between, the node stays a member. (reset leaves without moving queues.)",
    ),
)  # fmt: skip
