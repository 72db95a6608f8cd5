"""The base of synchronous clients: an asynchronous core, run on the shared background loop.

Rule: a synchronous method is made from the core's by `blocking` or `at_any_time`, so that its arguments are the same. A
client that the program has no reference to any more closes, unless it works by itself, as one with a listener does.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from rocketspark.client.connection.loop_thread import LoopThread, ThreadWaiter
from rocketspark.client.validators import name_arguments
from rocketspark.errors import StateError

P = ParamSpec("P")
R = TypeVar("R")


class Core(Protocol):
    """The part of an asynchronous client that its synchronous facade uses."""

    @property
    def client_id(self) -> str: ...

    @property
    def calls_here(self) -> bool: ...

    def _close_unstarted(self) -> bool: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Core)


class Facade(Generic[C]):
    """The start, close and context of a synchronous client whose work `_core` does on the background loop."""

    # False: it works by itself, also where the program keeps no reference to it.
    _closes_unreferenced: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        name_arguments(cls)

    def __init__(self, core: C) -> None:
        self._core = core
        self._thread: LoopThread | None = None
        # Waits for a close that a callback began.
        self._wait_closed: Callable[[], None] | None = None
        self._unreferenced: weakref.finalize[..., Any] | None = None
        # Called last of all if nobody closes it; must not lead to it.
        self._at_end: Callable[[], object] = lambda: None

    @property
    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise StateError("not started, or closed: use it in a with block, or call start()")
        return self._thread

    def start(self) -> None:
        """Begin. As the asynchronous client's `start`."""
        if self._thread is not None:
            raise StateError("started already")
        # At once: a listener may close its consumer before the start has ended.
        self._thread = thread = LoopThread.acquire()
        starting = ThreadWaiter(self._core.start())
        try:
            thread.ask(starting)
        except Exception:
            starting.close()
            if self._thread is None:
                return  # Closed meanwhile, by who releases it.
            self._thread = None
            thread.release()
            raise
        except BaseException:
            # Interrupted: what has begun is ended in the background, so that no half of a client lives on.
            if self._thread is not None:
                self._thread = None
                thread.end_later(_undo(self._core, starting))
            raise
        if self._closes_unreferenced:
            self._unreferenced = weakref.finalize(self, _end_unreferenced, thread, self._core, self._at_end)
            self._unreferenced.atexit = False

    def close(self) -> None:
        """Finish and close. As the asynchronous client's `close`; may be called again.

        An interrupt ends the wait for it, not the closing. In a callback, such as a listener, it does not wait; a
        later call elsewhere does, such as that at the end of a with block.
        """
        self._end(self._core.close())

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        thread, self._thread = self._thread, None
        if self._unreferenced is not None:
            self._unreferenced.detach()
        if thread is None:
            ending.close()
            self._core._close_unstarted()
            if self._wait_closed is not None and not self._core.calls_here:
                self._wait_closed()
            return
        self._wait_closed = thread.end_with(ending, waits=not self._core.calls_here)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._core.__aexit__(kind, error, trace))

    @property
    def client_id(self) -> str:
        """Return the id brokers know this client by."""
        return self._core.client_id


def _end_unreferenced(thread: LoopThread, core: Core, at_end: Callable[[], object]) -> None:
    # In any thread, wherever Python finds that nothing refers to the client: nothing is waited for.
    if not thread.is_dead:
        thread.end_later(_end_work(core, at_end))


async def _end_work(core: Core, at_end: Callable[[], object]) -> None:
    try:
        # As after an error: what was read last may not be done.
        await core.__aexit__(GeneratorExit, None, None)
    finally:
        at_end()


async def _undo(core: Core, starting: ThreadWaiter[None]) -> None:
    if starting.task is not None:
        await asyncio.wait([starting.task])
    await core.close()


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Turn the core's coroutine method into one that waits for its result."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        loop = self._loop
        result: R = loop.call(method(self._core, *args, **kwargs))
        return result

    return call


def at_any_time(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Turn the core's plain method into one that runs on the loop and waits; before the start and after the close it
    runs in the caller's thread.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._thread is None:
            return method(self._core, *args, **kwargs)

        async def run() -> R:
            return method(self._core, *args, **kwargs)

        result: R = self._thread.call(run())
        return result

    return call


def arguments_of(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a function the arguments of the core's method, for type checkers and `help`."""

    def give(function: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        function.__wrapped__ = method  # type: ignore[attr-defined]
        return function

    return give
