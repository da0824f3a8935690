"""One machine of the simulated cluster: a place in the network, a disk, and perhaps a running process.

The process is the real `Server` on a `NodeLoop`. It sees the world through `SimSurroundings`: a disk that loses what
was not synced when the power fails, workers whose jobs take time and take effect at some moment of it, a wall clock
that jumps. After the process has died, calls through these objects have no effect.

A process ends in three ways. *Killed*: its writes stay, synced or not, since the kernel has them, and the kernel closes
its connections. *Power failure*: what was not synced is lost in part, and its connections just fall silent.
*Terminated*: it stops in its own time. The first two may happen in the middle of a write to disk.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.node.config.settings import Listener, Settings
from leveret.node.server import Server
from simulation.core import borrowed_folder
from simulation.core.disk import Crashed, FaultyDisk
from simulation.core.loop import NodeLoop

if TYPE_CHECKING:
    from leveret.node.system.data_folder import Place
    from leveret.storage.segments.disk import Disk
    from simulation.world import World

AMQP_PORT: Final = 5672
CLUSTER_PORT: Final = 25672
MQTT_PORT: Final = 1883
COOKIE: Final = b"a cookie for all of them"
WALL_MS: Final = 1_700_000_000_000
MEMORY_BYTES: Final = 1 << 34
MEMORY_USED: Final = 1 << 26
DESCRIPTORS: Final = 1 << 16
STALL_STEP_S: Final = 0.25
LOCK_S: Final = 0.02  # Interval at which a start tries to lock the folder.
DISK_BYTES: Final = 1 << 30
DISK_RESERVE: Final = 1 << 20  # The nodes' `disk_free_limit`.


class LifeDisk:
    """A machine's disk as one process sees it: once the process is dead, it cannot change the disk."""

    def __init__(self, disk: FaultyDisk, loop: NodeLoop, on_crashed: Callable[[], None]) -> None:
        self._disk = disk
        self._loop = loop
        self._on_crashed = on_crashed
        self.failures: set[int] = set()  # Errors that the process has seen.

    def _check(self) -> None:
        if not self._loop.alive:
            raise Crashed

    def names(self, folder: str) -> list[str]:
        self._check()
        return self._disk.names(folder)

    def size(self, path: str) -> int:
        self._check()
        return self._disk.size(path)

    def read(self, path: str, offset: int, size: int) -> bytes:
        self._check()
        return self._disk.read(path, offset, size)

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None:
        self._change(self._disk.write, path, offset, buffers)

    def sync(self, path: str) -> None:
        self._change(self._disk.sync, path)

    def truncate(self, path: str, size: int) -> None:
        self._change(self._disk.truncate, path, size)

    def rename(self, old: str, new: str) -> None:
        self._change(self._disk.rename, old, new)

    def delete(self, path: str) -> None:
        self._change(self._disk.delete, path)

    def make_folder(self, path: str) -> None:
        self._check()
        self._disk.make_folder(path)

    def sync_folder(self, path: str) -> None:
        self._change(self._disk.sync_folder, path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes() if self._loop.alive else 0

    def _change(self, what: Callable[..., None], *args: Any) -> None:
        self._check()
        try:
            what(*args)
        except Crashed:
            self._on_crashed()
            raise
        except OSError as error:
            self.failures.add(error.errno or 0)
            raise


class SimWorker:
    """A thread beside the loop, whose jobs take time and take effect at some moment of it."""

    def __init__(self, machine: Machine, loop: NodeLoop) -> None:
        self._machine = machine
        self._loop = loop
        self._jobs: deque[tuple[Callable[[], None], Callable[[Exception | None], None]]] = deque()
        self._busy = False
        self._stopped = False

    def submit(
        self,
        work: Callable[[], None],
        then: Callable[[Exception | None], None],
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if meanwhile is not None:
            meanwhile()
        if self._stopped:
            return  # As by a thread that has ended.
        self._jobs.append((work, then))
        if self._busy:
            return
        delay = self._machine.disk_delay(self._loop.rng)
        if delay < wait_s and self._loop.scheduler.now >= self._machine.stalled_until:
            self._perform(None)
        else:
            self._begin(delay)

    def stop(self) -> None:
        while self._jobs and self._loop.alive:
            self._perform(0.0)
        self._stopped = True

    def _begin(self, delay: float) -> None:
        self._busy = True
        self._loop.scheduler.after(delay, self._on_time)

    def _on_time(self) -> None:
        if self._loop.scheduler.now < self._machine.stalled_until:
            self._loop.scheduler.after(STALL_STEP_S, self._on_time)
        elif self._loop.alive and self._jobs:
            self._perform(self._machine.disk_delay(self._loop.rng) / 2)
            if self._jobs:
                self._begin(self._machine.disk_delay(self._loop.rng))
            else:
                self._busy = False

    def _perform(self, delay: float | None) -> None:
        """Performs the next job. The loop is told later; `delay` is None: it waits for the job."""
        work, then = self._jobs.popleft()
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        except Crashed:
            return
        if delay is None:
            then(error)
        else:
            self._loop.scheduler.after(delay, self._loop.call_soon, then, error)


class SimSurroundings:
    """Everything outside itself that a process sees."""

    def __init__(self, machine: Machine, loop: NodeLoop) -> None:
        self.machine = machine
        self.loop: asyncio.AbstractEventLoop = loop
        self.life_disk = LifeDisk(machine.disk, loop, lambda: machine.on_crashed(loop))
        self.disk: Disk = self.life_disk
        self.random_source = random.Random(loop.rng.random())
        self._loop = loop

    def worker(self, name: str) -> SimWorker:
        return SimWorker(self.machine, self._loop)

    def wall_ms(self) -> int:
        return WALL_MS + int(self._loop.scheduler.now * 1000) + self.machine.skew_ms

    def precise_s(self) -> float:
        return self._loop.scheduler.now

    def random_bytes(self, count: int) -> bytes:
        return self.random_source.randbytes(count)

    def memory_used(self) -> int:
        return self.machine.memory_used

    def memory_unused(self) -> int:
        return 0

    def has_unused_memory(self) -> bool:
        return False

    def memory_total(self) -> int:
        return MEMORY_BYTES

    def descriptors_max(self) -> int:
        return self.machine.descriptors_max

    def release_memory(self) -> None:
        return None

    def yield_to_writer(self) -> None:
        return None

    def yield_processor(self) -> None:
        return None

    def place(self) -> Place | None:
        return borrowed_folder.place_of(self.machine)

    def is_held(self, place: Place) -> bool:
        return borrowed_folder.is_held(self.machine, place)

    def take(self, place: Place) -> borrowed_folder.BorrowedFolder | None:
        return borrowed_folder.take(self.machine, self._loop, place)

    def close(self) -> None:
        return None


class Process(Protocol):
    """The process on a machine: a node, or a witness."""

    loop: asyncio.AbstractEventLoop
    fatal: str | None
    stopped: asyncio.Future[None]

    async def start(self) -> Any: ...
    async def stop(self) -> None: ...
    def request_stop(self) -> None: ...


class Machine:
    """A machine with a name and a disk, on which a process may be running."""

    def __init__(self, world: World, name: str, seeds: tuple[tuple[str, int], ...]) -> None:
        self.world = world
        self.name = name
        self.seeds = seeds  # The nodes that a node without data asks to join.
        self.disk = FaultyDisk(random.Random(f"{world.seed}/disk/{name}"), DISK_BYTES)
        self.lives = 0
        self.loop: NodeLoop | None = None
        self.process: Process | None = None
        self.server: Server | None = None  # The same, if it is a node.
        self.life_disk: LifeDisk
        self.served = False  # Whether this process has served clients.
        self.skew_ms = 0
        self.slow_until = 0.0
        self.stalled_until = 0.0  # No request to its disk is done before.
        self.memory_used = MEMORY_USED
        self.descriptors_max = DESCRIPTORS
        self.power_next = False  # Whether a crash of the disk is a power failure, or a kill.
        self.at_death: list[Callable[[], None]] = []
        self.wanted = False  # Whether it is restarted if it ends.
        self.borrowed: borrowed_folder.BorrowedFolder | None = None  # Another node reads the folder of this one.
        self.died_at = 0.0
        self.is_dark = False  # The power has failed.
        self.usual_s = random.Random(f"{world.seed}/{name}").choice((0.000_1, 0.000_5, 0.002, 0.01))

    @property
    def node_name(self) -> str:
        return f"leveret@{self.name}"

    @property
    def alive(self) -> bool:
        return self.loop is not None and self.loop.alive

    @property
    def is_frozen(self) -> bool:
        """Returns whether its process is frozen."""
        return self.loop is not None and self.loop.is_paused

    @property
    def serving(self) -> bool:
        return self.alive and self.server is not None and self.server.prepared and bool(self.server.listeners.servers)

    def settings(self) -> Settings:
        plan = self.world.plan
        rng = random.Random(f"{plan.seed}/settings")
        return Settings(
            node_name=self.node_name,
            data_dir=f"data of {self.name}",
            tcp_listeners=(Listener("", AMQP_PORT),),
            cluster_listener=Listener("", CLUSTER_PORT),
            cluster_host=self.name,
            join=self.seeds,
            loopback_users=frozenset(),
            heartbeat_s=10,
            segment_bytes=rng.choice((2_048, 16_384, 1 << 20)),
            content_cache_bytes=rng.choice((0, 2_000, 1 << 26)),
            disk_free_absolute=DISK_RESERVE,
            partition_handling=plan.partition_handling(),
            rebalance=plan.schedule(),
            trusts_refusals=plan.proofs().trusts_refusals,
            mqtt_listeners=(Listener("", MQTT_PORT),) if self.world.speaks_mqtt else (),
            mqtt_subscription_ttl_ms=None,
            **self.world.more_settings,
        )

    def disk_delay(self, rng: random.Random) -> float:
        usual = self.usual_s * (0.2 + rng.random() * 2)
        if rng.random() < 0.02:
            usual *= 20
        return usual + (rng.random() if self.world.scheduler.now < self.slow_until else 0.0)

    def relieve(self) -> None:
        """Ends all shortages."""
        self.memory_used, self.descriptors_max = MEMORY_USED, DESCRIPTORS

    # -- Life and death ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.wanted = True
        if self.alive:
            return
        world = self.world
        if self.borrowed is not None and not self.borrowed.is_over:
            world.scheduler.after(LOCK_S, self._again)
            return
        self.borrowed, self.is_dark = None, False
        world.network.turn_on(self.name)
        self.lives += 1
        rng = random.Random(f"{world.seed}/{self.name}/{self.lives}")
        loop = self.loop = NodeLoop(world.scheduler, world.network, self.name, rng, world.on_fault(self.name))
        loop.after_pass = lambda: world.observe(self)
        world.note(self.name, "starts")
        surroundings = SimSurroundings(self, loop)
        self.life_disk, self.served = surroundings.life_disk, False
        process = self.process = self.make(surroundings)
        world.on_started(self)
        task = loop.create_task(self._live(process))
        task.add_done_callback(lambda _: self._on_end(loop, task))

    def make(self, surroundings: SimSurroundings) -> Process:
        self.server = Server(self.settings(), surroundings, COOKIE)
        return self.server

    async def _live(self, process: Process) -> None:
        """Runs the process like `leveret.node.server.serve`, without signals."""
        starting = process.loop.create_task(process.start())
        try:
            await asyncio.wait([starting, process.stopped], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self.served = True
                await process.stopped
            else:
                starting.cancel()
        finally:
            if not process.loop.is_closed():
                await process.stop()

    def _on_end(self, loop: NodeLoop, task: asyncio.Task[None]) -> None:
        if not loop.alive or self.loop is not loop:
            return
        error = None if task.cancelled() else task.exception()
        assert self.process is not None
        reason = self.process.fatal or (repr(error) if error is not None else None)
        self.world.note(self.name, f"has ended: {reason or 'as it was told to'}")
        if reason is not None and not self.is_excused():
            self.world.fail(f"{self.name} ended by itself: {reason}")
        self.world.scheduler.after(0.0, self._die, loop, False, reason is None)
        if reason is not None:
            self.world.scheduler.after(1.0, self._again)

    def is_excused(self) -> bool:
        """Returns whether a process may stop: after a failed disk, or at its start without disk space."""
        failures = self.life_disk.failures
        return errno.EIO in failures or (errno.ENOSPC in failures and not self.served)

    def _again(self) -> None:
        if self.wanted:
            self.start()

    def terminate(self) -> None:
        self.wanted = False
        if self.alive and self.process is not None:
            self.world.note(self.name, "is told to stop")
            self.process.request_stop()

    def kill(self, power: bool) -> None:
        self.wanted = False
        if self.loop is not None and self.loop.alive:
            self._die(self.loop, power)

    def wipe(self, seeds: tuple[tuple[str, int], ...]) -> None:
        """The disk is lost, and with it everything the node was. The next process is to join the others."""
        self.kill(power=True)
        self.disk = FaultyDisk(random.Random(f"{self.world.seed}/disk/{self.name}/{self.lives}"), DISK_BYTES)
        self.seeds = seeds

    def on_crashed(self, loop: NodeLoop) -> None:
        """The disk crashes the process in the middle of a write."""
        if loop.alive:
            self._die(loop, self.power_next)
            self.world.scheduler.after(1.0, self._again)

    def _die(self, loop: NodeLoop, power: bool, clean: bool = False) -> None:
        if not loop.alive:
            return
        world = self.world
        world.note(self.name, "loses its power" if power else "is dead")
        loop.alive = False
        self.died_at, self.is_dark = world.scheduler.now, power
        if power:
            world.network.turn_off(loop)
            self.disk.crash()
        else:
            world.network.kill(loop)
            self.disk.crash_after = None
        world.on_died(self, clean)
        world.scheduler.after(0.0, loop.kill)
