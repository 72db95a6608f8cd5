"""The base of all asynchronous clients: an instance, hooks, a life cycle. Rule: started once, closed for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from rocketspark.client.connection.instance import Instance
from rocketspark.client.hooks import Hooks, HookSet
from rocketspark.client.message_trace import Tracer
from rocketspark.client.options import ClientOptions
from rocketspark.client.validators import arguments_of, name_arguments, unknown_argument
from rocketspark.errors import ConfigError, StateError
from rocketspark.protocol.trace import TOPIC as TRACE_TOPIC


class Life:
    """Something that is started and closed on the running asyncio loop, by hand or as a context manager. `kind`: what
    errors call it.
    """

    kind = "client"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        name_arguments(cls)

    def __init__(self) -> None:
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop's thread.
        self._ident = 0
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        """Return the state at the beginning of `start`. Raises StateError if it began before."""
        if self._state != "new":
            raise StateError(f"the {self.kind} is {self._state}: make a new one")
        self._state, self._loop, self._ident = "started", asyncio.get_running_loop(), get_ident()

    def _close_unstarted(self) -> bool:
        """Count as closed for good if it was never started; tells whether that is so."""
        if self._state != "new":
            return False
        self._state = "closed"
        return True

    @property
    def calls_here(self) -> bool:
        """Tell whether the current thread is inside a function of the application (a listener, a callback) that `close`
        waits for.
        """
        return False

    def _check_loop(self) -> None:
        """Raise StateError on another event loop than that of the start: nothing here would ever wake it."""
        if self._loop is not None and asyncio._get_running_loop() not in (None, self._loop):
            raise StateError(
                f"the {self.kind} was started on another event loop: use and close it there, and make one for each loop"
            )

    def _check_started(self) -> None:
        self._check_loop()
        if self._state == "closed":
            raise StateError(f"the {self.kind} is closed: make a new one")
        if self._state != "started":
            raise StateError(f"the {self.kind} is not started: call start(), or use it in a with block")

    async def _start_once(
        self, start: Callable[[], Coroutine[Any, Any, None]], close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run `start`, after `_begin`. If it is cancelled, `close` undoes what it did.

        What fails by itself undoes itself. In both cases the state is closed.
        """
        self._starting = asyncio.ensure_future(start())
        try:
            await asyncio.shield(self._starting)
        except BaseException:
            self._starting.cancel()
            await self._close_once(close)
            raise
        if self._state == "closed":
            raise StateError(f"the {self.kind} was closed while it started")

    async def _close_once(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `close` once: a second caller waits for the same run, and it goes on if its callers are cancelled.

        A start that is under way ends first; after one that failed there is nothing to close.
        """
        self._check_loop()
        if self._closing is None:
            begun, self._state = self._state == "started", "closed"
            if not begun:
                return
            self._closing = asyncio.ensure_future(self._run_close(close))
        await asyncio.shield(self._closing)

    async def _run_close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        starting = self._starting
        if starting is not None:
            await asyncio.wait([starting])
            if starting.cancelled() or starting.exception() is not None:
                return
        await close()

    async def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish what is under way, and close it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(Life):
    """The base of producers and consumers: it makes the connection to the cluster (an `Instance`), and keeps the
    application's hooks, message traces and telemetry.
    """

    def __init__(self, namesrv: str | None, options: ClientOptions, **more: Any) -> None:
        super().__init__()
        self._check_names(options)
        hooks = options.pop("hooks", ())
        trace = options.pop("trace", False)
        telemetry = options.pop("telemetry", None)
        self._hooks = HookSet(hooks)
        if telemetry is not False and (spans := _telemetry(needed=bool(telemetry))) is not None:
            self._hooks.add(spans)
        self._instance = Instance.of(namesrv, self._hooks, **options, **more)
        self._namespace = self._instance.namespace
        self._trace_topic = TRACE_TOPIC if trace is True else (trace or None)
        self._tracer: Tracer | None = None

    def _check_names(self, options: ClientOptions) -> None:
        for name in options.keys() - ClientOptions.__optional_keys__:
            raise unknown_argument(type(self).__name__, name, arguments_of(type(self).__init__))

    def _trace_as(self, group: str, what: str) -> None:
        if self._trace_topic:
            self._tracer = Tracer(self._instance, self._trace_topic, group, what)
            self._hooks.add(self._tracer)

    @property
    def client_id(self) -> str:
        """Return the id brokers know this client by."""
        return self._instance.client_id


def _telemetry(*, needed: bool) -> Hooks | None:
    try:
        from rocketspark.client import telemetry
    except ImportError:
        if needed:
            raise ConfigError("telemetry needs OpenTelemetry: pip install 'rocketspark[otel]'") from None
        return None
    return telemetry.Telemetry() if needed or telemetry.is_set_up() else None
