"""What all asynchronous clients are: an instance, hooks, a life. Rule: started once, closed for good."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rocketspark.client.hooks import Hooks, HookSet
from rocketspark.client.instance import Instance
from rocketspark.client.options import ClientOptions
from rocketspark.client.tracer import Tracer
from rocketspark.errors import ConfigError, StateError
from rocketspark.protocol.trace import TOPIC as TRACE_TOPIC


class Life:
    """What is started and closed on the running asyncio loop, by hand or as a context manager. `kind`: for errors."""

    kind = "client"

    def __init__(self) -> None:
        self._state = "new"

    def _begin(self) -> None:
        """The state at the beginning of `start`. Raises StateError if it began before."""
        if self._state != "new":
            raise StateError(f"the {self.kind} is {self._state}: make a new one")
        self._state = "started"

    def _check_started(self) -> None:
        if self._state == "closed":
            raise StateError(f"the {self.kind} is closed: make a new one")
        if self._state != "started":
            raise StateError(f"the {self.kind} is not started: call start(), or use it in a with block")

    async def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish and close."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(Life):
    """A client of a cluster: its instance, its hooks."""

    def __init__(self, namesrv: str | None, options: ClientOptions, **more: Any) -> None:
        super().__init__()
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

    def _trace_as(self, group: str, what: str) -> None:
        if self._trace_topic:
            self._tracer = Tracer(self._instance, self._trace_topic, group, what)
            self._hooks.add(self._tracer)

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._instance.client_id


def _telemetry(*, needed: bool) -> Hooks | None:
    try:
        from rocketspark.client import telemetry
    except ImportError:
        if needed:
            raise ConfigError("telemetry needs OpenTelemetry: pip install 'rocketspark[otel]'") from None
        return None
    return telemetry.Telemetry() if needed or telemetry.is_set_up() else None
