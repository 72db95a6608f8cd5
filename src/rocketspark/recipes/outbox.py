"""The outbox: messages that could not be sent, or were written in the application's own transaction, are sent later.

Rule: a message is in the table before any caller learns that it is kept, and leaves it only once a broker has stored
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, Unpack

from rocketspark.client.base import Life
from rocketspark.client.facade import Facade, arguments_of, at_any_time, blocking
from rocketspark.client.producer.prepared_message import make_message
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.producer.send_path import KeyGate
from rocketspark.client.results import SendResult
from rocketspark.client.sync import ProducerFacade
from rocketspark.errors import ConfigError, RocketSparkError, StateError
from rocketspark.model import Message, MessageFields
from rocketspark.recipes.outbox_entries import Kept, PreparedEntry, is_our_own, is_refused_for_good, prepare
from rocketspark.recipes.outbox_store import OutboxStore
from rocketspark.recipes.relay import Relay, Relayed, RelayRules, task_of

THREADS = 4


class OutboxOptions(TypedDict, total=False):
    """The arguments of an outbox that say how it resends; AsyncOutbox explains them, and has the defaults."""

    relay: bool
    backoff_ms: int
    backoff_max_ms: int
    poll_ms: float
    lease_ms: int
    send_timeout_ms: float
    in_flight_max: int
    keep_sent_ms: float


class AsyncOutbox(Life):
    """Keeps messages in a database until a broker has stored them, on the running asyncio loop.

    At least once: a message keeps its unique id over all its sends, and its key travels as the property `outbox_key`,
    so that consumers can tell a repetition (`deduplicate`). Messages of one sharding key (and topic) are sent in the
    order they were kept; one that fails holds back those after it, of its own key alone. What a broker refuses for good
    is parked with the error, and those after it go on. Several relays may work on one table.

    Args:
        producer: a started AsyncProducer; it is closed after the outbox.
        store: an OutboxStore, or the URL of its database: `sqlite:///shop.db`, `postgresql://user@host/name`.
        relay: resend in the background; with False another process does (`rocketspark outbox relay`).
        backoff_ms, backoff_max_ms: the wait after a failure, doubled by each further one.
        poll_ms: how often to look for what others wrote; `wake` has it look at once.
        lease_ms: after a relay was killed, what it had in work is taken over once this has passed.
        send_timeout_ms: of one attempt; below the lease.
        in_flight_max: how many messages a relay has in work at once.
        keep_sent_ms: how long a key that was sent is remembered; added again, it is not sent again.

    Use it as a context manager, or `start` and `close` it.
    """

    kind = "outbox"

    def __init__(
        self,
        producer: AsyncProducer,
        store: OutboxStore | str,
        *,
        relay: bool = True,
        backoff_ms: int = 1000,
        backoff_max_ms: int = 60_000,
        poll_ms: float = 1000,
        lease_ms: int = 30_000,
        send_timeout_ms: float = 3000,
        in_flight_max: int = 100,
        keep_sent_ms: float = 86_400_000,
    ) -> None:
        super().__init__()
        if min(backoff_ms, poll_ms, send_timeout_ms, in_flight_max) <= 0 or backoff_max_ms < backoff_ms:
            raise ConfigError("times and in_flight_max must be over 0, and backoff_max_ms not below backoff_ms")
        if lease_ms <= send_timeout_ms:
            raise ConfigError("lease_ms must be over send_timeout_ms: a lease must not end during a send")
        self.store = OutboxStore(store) if isinstance(store, str) else store
        self._producer = producer
        self._rules = RelayRules(
            backoff_ms, backoff_max_ms, poll_ms, lease_ms, send_timeout_ms, in_flight_max, keep_sent_ms
        )
        self._relays = relay
        self._lanes = KeyGate()
        self._pool: ThreadPoolExecutor | None = None
        self._relay: Relay | None = None
        self._task: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the outbox; it relays from now on, unless `relay` is false. Raises ConfigError if there is no table
        (`create_tables`), DatabaseFailed, StateError.
        """
        self._begin()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="rocketspark-outbox")
        try:
            await self._in_thread(self.store.check)
        except BaseException:
            self._state = "closed"
            self._pool.shutdown(wait=False)
            raise
        self._relay = Relay(self.store, self._producer, self._rules, self._in_thread)
        if self._relays:
            self._task = task_of(self._relay.run())

    async def close(self) -> None:
        """Finish the sends that have begun, and close; messages that were not sent stay in the table. May be called
        again.
        """
        started, self._state = self._state == "started", "closed"
        if not started:
            return
        assert self._relay is not None
        assert self._pool is not None
        await self._relay.stop()
        if self._task is not None:
            await self._task
        self._pool.shutdown(wait=False)
        self.store.close()

    @property
    def client_id(self) -> str:
        """Return the id brokers know the producer by."""
        return self._producer.client_id

    # -- sending and keeping -------------------------------------------------------------------------------------

    async def send_or_keep(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult | Kept:
        """Send one message, or keep it if it cannot be sent now.

        Args:
            message: a Message; or a topic, with `body` and `fields`, the other fields of a Message.
            key: what is kept under this key, or was sent from here lately, is neither sent nor kept again.
            timeout_ms: the budget of the send, if not the producer's.

        A message is kept without a send if others of its sharding key wait here, so that it does not overtake them.

        Raises:
            MessageIllegal, SendFailed: the message is refused for good; it is not kept.
            DatabaseFailed: it could be neither sent nor kept; the cause is why it was not sent.
            StateError: before start or after close.
        """
        prepared = prepare(make_message(message, body, fields), key, self._producer.packing)
        relay = self._running()
        lane = prepared.lane
        if lane is not None:
            await self._lanes.enter(lane)
        try:
            if key is None and lane is None:
                return await self._send_or_keep(prepared, timeout_ms)
            if await self._in_thread(self.store.must_be_kept, key, lane):
                return Kept(prepared.key, await self._in_thread(self.store.keep, prepared, None, 0))
            return await self._send_or_keep(prepared, timeout_ms)
        finally:
            if lane is not None:
                self._lanes.leave(lane)
            relay.wake()

    async def _send_or_keep(self, prepared: PreparedEntry, timeout_ms: float | None) -> SendResult | Kept:
        try:
            return await self._producer.resend(prepared.message, prepared.message_id, timeout_ms=timeout_ms)
        except RocketSparkError as e:
            if is_refused_for_good(e) or is_our_own(e):
                raise
            text = f"{type(e).__name__}: {e}"
            pause_ms = self._rules.pause_ms(1)
            return Kept(prepared.key, await self._in_thread(self.store.keep, prepared, text, pause_ms), e)

    async def add(
        self,
        connection: Any,
        message: Message | str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Kept:
        """Write one message in the application's own transaction: it is sent if, and after, that commits.

        `connection`: one to the outbox's database, or a cursor of it: of sqlite3 or psycopg, also an AsyncConnection.
        The rest is as for `send_or_keep`. Works before start, too. Raises MessageIllegal, and what the driver raises.
        """
        return await self.store.add_async(connection, self.prepare(message, body, key, fields))

    def prepare(
        self, message: Message | str, body: bytes | None, key: str | None, fields: MessageFields
    ) -> PreparedEntry:
        """Return the row that `add` writes. Raises MessageIllegal."""
        return prepare(make_message(message, body, fields), key, self._producer.packing)

    # -- relaying ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at once for messages that are due, such as those a transaction has just committed; else within
        `poll_ms`.
        """
        if self._relay is not None:
            self._relay.wake()

    async def relay_once(self) -> Relayed:
        """Send the messages that are due now, and return how many were sent, failed and were parked. Raises
        DatabaseFailed, StateError.
        """
        return await self._running().run_once()

    def relayed(self) -> Relayed:
        """Return how many messages were sent and parked since the start, and how many attempts failed."""
        return self._relay.relayed if self._relay is not None else Relayed()

    def _running(self) -> Relay:
        self._check_started()
        if self._relay is None:
            raise StateError("the outbox is not started: wait until start() returns")
        return self._relay

    def _in_thread(self, function: Any, *arguments: Any) -> Awaitable[Any]:
        assert self._pool is not None
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


class Outbox(Facade[AsyncOutbox]):
    """Keeps messages in a database until a broker has stored them. Arguments and rules: those of AsyncOutbox.

    >>> with Producer("127.0.0.1:9876") as producer, Outbox(producer, "sqlite:///shop.db") as outbox:
    ...     outbox.send_or_keep("orders", b"42 apples", key="order-7")
    """

    def __init__(
        self, producer: ProducerFacade[Any], store: OutboxStore | str, **options: Unpack[OutboxOptions]
    ) -> None:
        # Both run on the loop that all synchronous clients share.
        super().__init__(AsyncOutbox(producer._core, store, **options))
        # It closes where nothing refers to it.
        self._producer = producer
        self.store = self._core.store

    send_or_keep = blocking(AsyncOutbox.send_or_keep)
    relay_once = blocking(AsyncOutbox.relay_once)
    relayed = at_any_time(AsyncOutbox.relayed)
    wake = at_any_time(AsyncOutbox.wake)

    @arguments_of(AsyncOutbox.add)
    def add(
        self,
        connection: Any,
        message: Message | str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Kept:
        """Write one message in the application's own transaction, as AsyncOutbox.add does; in the calling thread, as a
        connection may belong to it.
        """
        return self.store.add(connection, self._core.prepare(message, body, key, fields))
