"""The synchronous clients: the asynchronous ones, run on a background loop. Rule: same methods, same signatures."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rocketspark.client import validate
from rocketspark.client.loop_thread import LoopThread
from rocketspark.client.outgoing import make_message, pack
from rocketspark.client.producer import GROUP, AsyncProducer
from rocketspark.client.results import SendResult
from rocketspark.client.routes import DEFAULT_TOPIC
from rocketspark.errors import StateError
from rocketspark.model import Message, MessageQueue

# Enough for any broker; with many more in flight, Python's garbage collector looks at them again and again.
FUTURES_IN_FLIGHT_MAX = 4096


class Core(Protocol):
    """An asynchronous client, as its facade sees it."""

    @property
    def client_id(self) -> str: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Core)


class Facade(Generic[C]):
    """Start, close and context of a synchronous client whose work `_core` does on the background loop."""

    def __init__(self, core: C) -> None:
        self._core = core
        self._thread: LoopThread | None = None

    @property
    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise StateError("not started, or closed: use it in a with block, or call start()")
        return self._thread

    def start(self) -> None:
        """Begin. As the asynchronous client's `start`."""
        if self._thread is not None:
            raise StateError("started already")
        thread = LoopThread.acquire()
        try:
            thread.call(self._core.start())
        except BaseException:
            thread.release()
            raise
        self._thread = thread

    def close(self) -> None:
        """Finish and close. As the asynchronous client's `close`; may be called again."""
        self._end(self._core.close())

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            ending.close()
            return
        try:
            thread.call(ending)
        finally:
            thread.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._core.__aexit__(kind, error, trace))

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._core.client_id


class Room:
    """Bounds what is in flight. A semaphore would make every send fight for its lock; these counters don't."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._left = 0
        self._numbers = itertools.count(1)
        self._freed = threading.Condition()
        self._waiting = False

    def enter(self) -> None:
        """Wait until fewer than the most are in flight. Called by many threads."""
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max:
            return
        with self._freed:
            while number - self._left > self._count_max:
                self._waiting = True
                self._freed.wait(0.1)

    def leave(self) -> None:
        """One less is in flight. Called by the loop's thread alone."""
        self._left += 1
        if self._waiting:
            with self._freed:
                self._waiting = False
                self._freed.notify_all()


class Producer(Facade[AsyncProducer]):
    """Sends messages; may be used from many threads. Arguments and rules: those of AsyncProducer.

    >>> with Producer("127.0.0.1:9876", "orders") as producer:
    ...     producer.send("orders", b"42 apples", tag="fruit")
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = GROUP,
        *,
        send_timeout_ms: float = 3000,
        retries: int = 2,
        compress_over_bytes: int = 4096,
        compression: str = "zlib",
        compress_level: int = 5,
        body_bytes_max: int = validate.BODY_BYTES_MAX,
        default_topic: str = DEFAULT_TOPIC,
        default_queue_count: int = 4,
        instance_name: str | None = None,
        client_ip: str | None = None,
        route_interval_ms: float = 30_000,
        heartbeat_interval_ms: float = 30_000,
    ) -> None:
        core = AsyncProducer(
            namesrv,
            group,
            send_timeout_ms=send_timeout_ms,
            retries=retries,
            compress_over_bytes=compress_over_bytes,
            compression=compression,
            compress_level=compress_level,
            body_bytes_max=body_bytes_max,
            default_topic=default_topic,
            default_queue_count=default_queue_count,
            instance_name=instance_name,
            client_ip=client_ip,
            route_interval_ms=route_interval_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
        )
        super().__init__(core)
        self.group = core.group
        self._room = Room(FUTURES_IN_FLIGHT_MAX)

    def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        wait_store_ok: bool = True,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it. As AsyncProducer.send."""
        return self._loop.call(
            self._core.send(
                message,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                delay_level=delay_level,
                flag=flag,
                wait_store_ok=wait_store_ok,
                queue=queue,
                timeout_ms=timeout_ms,
            )
        )

    def send_future(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        wait_store_ok: bool = True,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> Future[SendResult]:
        """Send one message without waiting; the future becomes its result, or the error `send` raises.

        Raises MessageIllegal at once. With 4096 in flight it waits until one of them ends. Callbacks of the future
        run on the client's own thread: they must not block.
        """
        loop = self._loop
        message = make_message(message, body, tag, keys, properties, sharding_key, delay_level, flag, wait_store_ok)
        # Packed here, so that the caller may change the message as soon as this returns.
        out = pack(message, self._core.packing)
        self._room.enter()
        return loop.submit(self._core.send_packed(out, message.sharding_key, queue, timeout_ms), self._room.leave)

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request. As AsyncProducer.send_batch."""
        return self._loop.call(self._core.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_oneway(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        wait_store_ok: bool = True,
        queue: MessageQueue | None = None,
    ) -> None:
        """Send one message without waiting for a reply: it may be lost. As AsyncProducer.send_oneway."""
        self._loop.call(
            self._core.send_oneway(
                message,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                delay_level=delay_level,
                flag=flag,
                wait_store_ok=wait_store_ok,
                queue=queue,
            )
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic's messages are sent to. As AsyncProducer.queues."""
        return self._loop.call(self._core.queues(topic))
