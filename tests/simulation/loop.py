"""Virtual time: one scheduler steps every loop and thread of all nodes; a seed chooses who is next.

Rule: nothing here waits for anybody. Where a real thread would wait, its strand gives way to the scheduler; when nobody
can go on, time jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import sys
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import greenlet
import msgspec

# What a turn of a strand takes: without it a loop that waits for time to pass would never see it do so.
TURN_S = 5e-6


class Halt(Exception):
    """Nothing can ever happen again, and the scenario has not ended."""


class Clock:
    """A machine's clock. `drift`: how fast it goes; `jump` sets the wall alone, as an operator or NTP does.

    `stand` stops the wall alone: it tells one time until `go_on`, and what measures durations goes on.
    """

    def __init__(self, scheduler: Scheduler, wall_s: float) -> None:
        self._scheduler = scheduler
        self._wall_s = wall_s
        self._drift = 1.0
        # What the wall tells while it stands.
        self._stands_at_s: float | None = None
        self._since_s, self._steady_s = scheduler.now_s, scheduler.now_s

    @property
    def drift(self) -> float:
        return self._drift

    @drift.setter
    def drift(self, rate: float) -> None:
        self._steady_s, self._since_s = self.steady(), self._scheduler.now_s
        self._drift = rate

    def steady(self) -> float:
        """Seconds that never go back."""
        return self._steady_s + (self._scheduler.now_s - self._since_s) * self._drift

    def wall(self) -> float:
        """Seconds since 1970, as this machine believes."""
        return self._wall_s + self.steady() if self._stands_at_s is None else self._stands_at_s

    def jump(self, seconds: float) -> None:
        self._wall_s += seconds
        if self._stands_at_s is not None:
            self._stands_at_s += seconds

    def stand(self) -> None:
        """Stop the wall."""
        self._stands_at_s = self.wall()

    def go_on(self, *, is_set: bool) -> None:
        """Let the wall go again. `is_set`: to the time that it had without the stop; else it stays behind."""
        if self._stands_at_s is not None and not is_set:
            self._wall_s = self._stands_at_s - self.steady()
        self._stands_at_s = None


class Strand:
    """A loop or a thread of a process: it runs until it gives way."""

    def __init__(self, process: Any, run: Callable[[], None], loop: SimLoop | None, name: str) -> None:
        self.process, self.loop, self.name = process, loop, name
        self.scheduler: Scheduler = process.scheduler
        self.number = next(self.scheduler.numbers)
        self.is_queued = False
        self.ended = False
        self._turn = 0
        own = greenlet.greenlet(run, self.scheduler.hub)
        own.gr_context = contextvars.Context()
        self.switch = own.switch

    def wake(self) -> None:
        if not self.is_queued and not self.ended:
            self.is_queued = True
            self.scheduler.runnable.append(self)

    def pause(self, seconds: float | None = None) -> None:
        """Give way until `wake`, or for so long."""
        self._turn += 1
        if seconds is not None:
            turn = self._turn

            def due() -> None:
                if self._turn == turn:
                    self.wake()

            self.scheduler.after(max(seconds, 0) / self.process.node.clock.drift, due)
        self.scheduler.give_way()
        self._turn += 1


class Scheduler:
    """Time, and who is next."""

    def __init__(self, seed: Any) -> None:
        self.now_s = 0.0
        self.numbers = itertools.count(1)
        self.random = random.Random(f"{seed}/order")
        self.runnable: list[Strand] = []
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.hub = greenlet.getcurrent()
        self.strand: Strand | None = None
        self.turns = 0
        self.stopped = False

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when_s, next(self._order), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + seconds, next(self._order), call))

    def give_way(self) -> None:
        """Switch from the strand that runs to the scheduler."""
        assert self.strand is not None
        self.hub.switch()

    def run(self, limit_s: float) -> None:
        """Go on until `stopped`. Raises Halt if that cannot come, TimeoutError at `limit_s`."""
        try:
            self._run(limit_s)
        finally:
            events._set_running_loop(None)
            self.strand = None

    def _run(self, limit_s: float) -> None:
        heap, runnable, draw = self.heap, self.runnable, self.random.random
        running: SimLoop | None = None
        while not self.stopped:
            while heap and heap[0][0] <= self.now_s:
                heapq.heappop(heap)[2]()
            if runnable:
                strand = runnable.pop(int(draw() * len(runnable)) if len(runnable) > 1 else 0)
                strand.is_queued = False
                process = strand.process
                if process.is_dead or strand.ended:
                    continue
                if process.is_halted:
                    process.set_aside.append(strand)
                    continue
                self.strand = strand
                if strand.loop is not running:
                    running = strand.loop
                    events._set_running_loop(running)
                strand.switch()
                self.strand = None
                self.now_s += TURN_S
                self.turns += 1
            elif heap:
                self.now_s = heap[0][0]
                if self.now_s > limit_s:
                    raise TimeoutError(f"the scenario has not ended after {limit_s:.0f} virtual seconds")
            else:
                raise Halt("everybody waits, and nothing will ever happen")


_hashes = itertools.count(1)


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future whose place in a set does not depend on where it is in memory."""

    __slots__ = ("_number",)

    def __init__(self, *, loop: Any) -> None:
        super().__init__(loop=loop)
        self._number = next(_hashes)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set does not depend on where it is in memory."""

    __slots__ = ("_number",)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._number = next(_hashes)
        super().__init__(*arguments, **more)

    def __hash__(self) -> int:
        return self._number


def number_objects() -> None:
    """Have the place of the product's own objects in sets not depend on where they or their classes are in memory."""

    def numbered(self: Any) -> int:
        found: int | None = self.__dict__.get("_simulation_number")
        if found is None:
            found = self.__dict__["_simulation_number"] = next(_hashes)
        return found

    def of_fields(self: Any) -> int:
        return hash(msgspec.structs.astuple(self))

    modules = [module for name, module in sys.modules.items() if name.startswith("rocketspark")]
    for kind in {id(each): each for module in modules for each in vars(module).values()}.values():
        if not isinstance(kind, type) or not str(kind.__module__).startswith("rocketspark"):
            continue
        # What a struct has for a hash has the address of its class in it.
        if (
            kind.__hash__ is msgspec.Struct.__hash__
            and issubclass(kind, msgspec.Struct)
            and kind.__struct_config__.frozen
        ):
            kind.__hash__ = of_fields  # type: ignore[method-assign,assignment]
        # One that has slots alone has no room for a number.
        if kind.__hash__ is object.__hash__ and kind.__dictoffset__:
            kind.__hash__ = numbered  # type: ignore[method-assign,assignment]


def _task(loop: Any, coroutine: Any, **more: Any) -> Any:
    return SimTask(coroutine, loop=loop, **more)


class SimLoop(base_events.BaseEventLoop):
    """The event loop of one process, in the time of its machine."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.scheduler: Scheduler = process.scheduler
        self.strand: Strand | None = None
        super().__init__()
        self._network = process.node.world.network
        self._steady = process.node.clock.steady
        self.set_exception_handler(self._noted)
        self.set_task_factory(_task)
        self.slow_callback_duration = 1e9

    def create_future(self) -> Any:
        return SimFuture(loop=self)

    def _noted(self, loop: Any, context: dict[str, Any]) -> None:
        self.process.node.world.unhandled(self.process, context)

    def time(self) -> float:
        return float(self._steady())

    def is_running(self) -> bool:
        return self.strand is not None and not self.strand.ended

    def _write_to_self(self) -> None:
        if self.strand is not None:
            self.strand.wake()

    def call_outside(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call something that came from outside: a packet."""
        if not self.process.is_dead:
            self.call_soon(call, *arguments, context=contextvars.Context())
            if self.strand is not None:
                self.strand.wake()

    def run_main(self, main: Coroutine[Any, Any, Any], done: Callable[[asyncio.Task[Any]], None]) -> None:
        """Start: everything that follows happens in the loop's strand."""

        def run() -> None:
            task = self.create_task(main)
            task.add_done_callback(done)
            while not self._stopping:
                self._run_once()
            assert self.strand is not None
            self.strand.ended = True

        self.strand = Strand(self.process, run, self, "loop")
        self.strand.wake()

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        strand, scheduler = self.strand, self.scheduler
        now = self._steady()
        while scheduled:
            handle = scheduled[0]
            if handle._cancelled:
                heapq.heappop(scheduled)._scheduled = False
                self._timer_cancelled_count = max(self._timer_cancelled_count - 1, 0)
                continue
            if handle._when > now + 1e-9:
                break
            heapq.heappop(scheduled)._scheduled = False
            ready.append(handle)
        if not ready:
            strand.pause(max(scheduled[0]._when - now, 1e-9) if scheduled else None)
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                # As Handle._run does, which would be a call more for each.
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as e:
                    context = {"message": f"Exception in callback {handle._callback!r}", "exception": e}
                    self.call_exception_handler(context)
        handle = None
        heap = scheduler.heap
        if scheduler.runnable or (heap and heap[0][0] <= scheduler.now_s) or scheduler.stopped:
            strand.wake()
            scheduler.hub.switch()
        else:
            scheduler.now_s += TURN_S

    # -- the network ---------------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return await self._network.connect(self, protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return self._network.listen(self, protocol_factory, host, port)

    async def create_datagram_endpoint(self, protocol_factory: Any, local_addr: Any = None, **more: Any) -> Any:
        return self._network.datagrams(self, protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        return self._network.look_up(self.process.node, host, port)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return


class SimLock:
    """threading.Lock: who waits for it gives way."""

    def __init__(self) -> None:
        self._holder: Any = None
        self._waiting: deque[Strand] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        strand = None if _scheduler is None else _scheduler.strand
        if self._holder is None:
            self._holder = strand or True
            return True
        if not blocking:
            return False
        assert strand is not None, "a lock is held for ever outside the simulation"
        end_s = strand.process.node.clock.steady() + timeout if timeout >= 0 else None
        while self._holder is not None:
            left_s = None if end_s is None else end_s - strand.process.node.clock.steady()
            if left_s is not None and left_s <= 0:
                return False
            self._waiting.append(strand)
            strand.pause(left_s)
            if strand in self._waiting:
                self._waiting.remove(strand)
        self._holder = strand
        return True

    def release(self) -> None:
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        if self._waiting:
            self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: object, error: object, where: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._holder = None
        self._waiting.clear()


class SimRLock(SimLock):
    """threading.RLock."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._holder is not None and self._holder is (current_strand() or True):
            self._count += 1
            return True
        if super().acquire(blocking, timeout):
            self._count = 1
            return True
        return False

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            super().release()

    # threading.Condition asks for these.

    def _is_owned(self) -> bool:
        return self._holder is not None and self._holder is (current_strand() or True)

    def _release_save(self) -> int:
        count, self._count = self._count, 0
        super().release()
        return count

    def _acquire_restore(self, count: int) -> None:
        super().acquire()
        self._count = count


class SimThread:
    """threading.Thread: a strand of the process that started it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon = name or "thread", bool(daemon)
        self.ident: int | None = None
        self._number = next(_hashes)
        self._strand: Strand | None = None
        self._joining: list[Strand] = []

    def __hash__(self) -> int:
        return self._number

    def start(self) -> None:
        own = current_strand()
        assert own is not None, "threads are of a node's process"
        self._strand = strand = Strand(own.process, self._run, None, self.name)
        self.ident = strand.number
        own.process.strands.append(strand)
        strand.wake()

    def _run(self) -> None:
        assert self._strand is not None
        try:
            self.run()
        except Exception as e:
            self._strand.process.node.world.unhandled(
                self._strand.process, {"message": f"thread {self.name}", "exception": e}
            )
        self._strand.ended = True
        for strand in self._joining:
            strand.wake()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.ended

    def join(self, timeout: float | None = None) -> None:
        own = current_strand()
        if own is None or not self.is_alive():
            return
        self._joining.append(own)
        own.pause(timeout)
        while timeout is None and self.is_alive():
            own.pause()


# One world runs in a process at a time.
_scheduler: Scheduler | None = None


def set_scheduler(scheduler: Scheduler | None) -> None:
    global _scheduler
    _scheduler = scheduler


def current_strand() -> Strand | None:
    """Return the strand that runs; None outside of the simulation."""
    return None if _scheduler is None else _scheduler.strand


def current_process() -> Any:
    strand = None if _scheduler is None else _scheduler.strand
    return None if strand is None else strand.process
