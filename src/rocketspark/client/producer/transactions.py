"""Transactions: a message that consumers see only once the application's own transaction is committed.

Rule: the local transaction runs only after its half message is stored safely; whatever then fails is settled by the
broker's check (rule: TransactionMQProducer, 5.x).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark import machine
from rocketspark.client.callbacks import passes_on
from rocketspark.client.connection import client_api
from rocketspark.client.connection.real_threads import DaemonThreads
from rocketspark.client.facade import arguments_of, blocking
from rocketspark.client.hooks import Ending, guarded, is_coroutine_function
from rocketspark.client.options import ProducerOptions
from rocketspark.client.producer.given_columns import Given, Rows, check_rows
from rocketspark.client.producer.prepared_message import key_of, make_message, pack
from rocketspark.client.producer.producer import GROUP, AsyncProducer
from rocketspark.client.results import SendManyResult, SendResult, SendStatus
from rocketspark.client.sync import ProducerFacade
from rocketspark.errors import ConfigError, MessageIllegal, RocketSparkError, ServerError, StateError, UsageError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, is_logical, namespace
from rocketspark.model.message import ROWS_TRANSACTION
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import CheckTransactionHeader, EndHalfRangesHeader, EndTransactionHeader
from rocketspark.protocol.message import half_ranges, properties, sysflags
from rocketspark.protocol.message.message_ids import parse_offset_message_id, unique_ids
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.client")
# A header holds little, and an error may tell much.
REMARK_CHARACTERS_MAX = 1000
# For so long the end of a batch of rows is told again, which outlasts the election of a master.
ENDS_S = 10.0

T = TypeVar("T")


class TransactionState(StrEnum):
    """The outcome of a local transaction. UNKNOWN: not known yet, the broker will ask."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


_OUTCOMES = {
    TransactionState.COMMIT: sysflags.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: sysflags.TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}


class Transaction(msgspec.Struct, frozen=True):
    """The transaction that `execute` gets. `id`: of the half message, the `message_id` that `check` is asked about."""

    id: str
    argument: Any
    sent: SendResult


class TransactionResult(msgspec.Struct, frozen=True):
    """The result of a transaction. `error`: what `execute` raised, which left the state UNKNOWN."""

    sent: SendResult
    state: TransactionState
    error: BaseException | None = None


class RowsTransaction(msgspec.Struct, frozen=True):
    """The transaction that `execute_many` gets. `id`: the `transaction_id` of the message of each row, about which
    `check` is asked by itself; `sent`: where each is stored.
    """

    id: str
    topic: str
    argument: Any
    sent: SendManyResult

    @property
    def is_safe(self) -> bool:
        """Tell whether every row is stored as safely as it should be."""
        return all(each.result and each.result.status is SendStatus.SEND_OK for each in self.sent.outcomes)

    @property
    def text(self) -> str:
        """Name it, for the log."""
        return f"{len(self.sent)} rows of topic {self.topic}"


class RowsTransactionResult(msgspec.Struct, frozen=True):
    """The result of a transaction of many rows. `error`: what `execute_many` raised, which left the state UNKNOWN; why
    rows were not stored, which rolls all of them back, stands in `sent`.
    """

    sent: SendManyResult
    state: TransactionState
    error: BaseException | None = None


class TransactionListener(Protocol):
    """The application's side of transactions; plain functions, or coroutine functions for the asyncio producer.

    For `send_many_in_transaction` it has a method `execute_many(transaction)` too, which gets a RowsTransaction and
    returns what `execute` does.
    """

    def execute(self, message: Message, transaction: Transaction) -> Any:
        """Run the local transaction; returns its TransactionState. Anything else, or an exception, means UNKNOWN."""

    def check(self, message: ReceivedMessage) -> Any:
        """Look up how the local transaction of a half message ended; returns its TransactionState."""


class Half(msgspec.Struct, frozen=True):
    """A half message that is stored, and its transaction as the listener's `execute` gets it."""

    message: Message
    topic: str
    transaction: Transaction

    @property
    def text(self) -> str:
        """Name it, for the log."""
        return f"message {self.transaction.id} of topic {self.topic}"


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages in transactions, on the running asyncio loop.

    Args:
        listener: an object with `execute` and `check`; plain functions run in threads, coroutine functions on the loop.
        check_threads: how many checks may run at once in threads.
        others: see AsyncProducer; `group` names who is asked about unknown transactions, so give it a name of its own.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = GROUP,
        *,
        listener: TransactionListener,
        check_threads: int = 4,
        **others: Unpack[ProducerOptions],
    ) -> None:
        for name in ("execute", "check"):
            if not callable(getattr(listener, name, None)):
                raise ConfigError(f"the transaction listener {listener!r} has no method {name!r}")
        if check_threads < 1:
            raise ConfigError("check_threads must be 1 or more")
        super().__init__(namesrv, group, **others)
        self._listener = listener
        self._check_threads = check_threads
        self._pool: DaemonThreads | None = None

    @property
    def calls_here(self) -> bool:
        """Tell whether the current thread is running a call of the transaction listener."""
        return self._pool is not None and self._pool.is_current

    async def _start(self) -> None:
        self._pool = DaemonThreads(self._check_threads, "rocketspark-transactions")
        await super()._start()
        # Not earlier: another producer of the group may be in use here, and this one fails to start.
        self._instance.asked.checks[self.group] = self._check

    async def _close(self) -> None:
        """Close the producer; the broker asks another producer of the group about transactions left open."""
        try:
            await super()._close()
        finally:
            if self._instance.asked.checks.get(self.group) == self._check:
                del self._instance.asked.checks[self.group]
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    # -- sending -------------------------------------------------------------------------------------------------

    async def send_in_transaction(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        argument: Any = None,
        check_after_s: int = 0,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> TransactionResult:
        """Send a half message, run the listener's `execute`, and commit or roll back as it says.

        `argument` is handed to `execute`. `check_after_s`: the broker waits at least so long before it asks for an
        outcome that it was not told. If the half message is stored with another status than SEND_OK, it is rolled back
        without `execute`. The commit itself goes out without a reply: if it is lost, the broker's check brings it
        about. Raises as `send` does; nothing was begun then.
        """
        half = await self.send_half(
            message, body, argument=argument, check_after_s=check_after_s, timeout_ms=timeout_ms, **fields
        )
        state, error = TransactionState.ROLLBACK, None
        if half.transaction.sent.status is SendStatus.SEND_OK:
            state, error = await self._execute(half.text, self._listener.execute, half.message, half.transaction)
        return await self.end(half, state, error)

    async def send_half(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        argument: Any = None,
        check_after_s: int = 0,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> Half:
        """Send a half message, the first step of `send_in_transaction`: consumers don't see the message before `end`
        commits it.
        """
        message = make_message(message, body, fields)
        if message.delay_level or message.delay_ms or message.deliver_at_ms:
            raise MessageIllegal("a message in a transaction cannot be delayed", topic=message.topic)
        out = pack(message, self.packing)
        out = msgspec.structs.replace(
            out,
            properties=out.properties + self._half_properties(check_after_s),
            sys_flag=out.sys_flag | sysflags.TRANSACTION_PREPARED,
        )
        sent = await self.send_packed(out, key_of(message), None, timeout_ms)
        # A copy: the application's stays as it is.
        message = msgspec.structs.replace(message, transaction_id=out.message_id)
        return Half(message, out.topic, Transaction(out.message_id, argument, sent))

    async def end(self, half: Half, state: TransactionState, error: BaseException | None = None) -> TransactionResult:
        """End a transaction, the last step of `send_in_transaction`; what fails here is left to the broker's check."""
        sent = half.transaction.sent
        try:
            peer, header = await self._end_of(half.topic, sent, state)
            client_api.end_transaction(peer, header, _remark("execute", error) if error else None)
            self._tell_end(peer, header, half.topic, half.message.tag, _words(half.message.keys), state)
        except RocketSparkError as e:
            log.warning("transaction %s: %s is not told, the broker will ask: %s", half.transaction.id, state, e)
        return TransactionResult(sent, state, error)

    async def _end_of(self, topic: str, sent: SendResult, state: TransactionState) -> tuple[Peer, EndTransactionHeader]:
        """Return the request that ends a half message, and the connection to its broker."""
        header = EndTransactionHeader(
            topic=topic,
            producer_group=self.group,
            half_offset=sent.queue_offset,
            physical_offset=parse_offset_message_id(sent.offset_message_id)[2],
            outcome=_OUTCOMES[state],
            message_id=sent.message_id,
            transaction_id=sent.transaction_id,
            broker_name=sent.queue.broker_name,
        )
        if is_logical(sent.queue):
            # Its queue may move to another broker; the half message stays where it is.
            host, port, _ = parse_offset_message_id(sent.offset_message_id)
            return await self._instance.broker(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), header
        return await self._send_attempts.peer_to_end(self._in_namespace(sent.queue)), header

    # -- many rows -----------------------------------------------------------------------------------------------

    async def send_many_in_transaction(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        tags: str | Iterable[Any] | None = None,
        keys: str | Iterable[Any] | None = None,
        sharding_keys: str | Iterable[Any] | None = None,
        properties: Mapping[str, str | Iterable[Any]] | Iterable[Any] | None = None,
        argument: Any = None,
        check_after_s: int = 0,
        timeout_ms: float | None = None,
    ) -> RowsTransactionResult:
        """Send many half messages, given as columns, run the listener's `execute_many` once, and commit or roll back
        all of them as it says.

        Columns and `timeout_ms` are those of `send_many`, the other arguments those of `send_in_transaction`. If a row
        cannot be stored, or not as safely as it should be, all are rolled back without `execute_many`; the result's
        `sent` says why. `check` is asked about each row by itself, whose `transaction_id` is that of all. Brokers of
        RocketSpark take half messages and their ends in batches, others one by one.

        Raises as `send_many` does, and UsageError if the listener has no `execute_many`; nothing was begun then.
        """
        execute = self.execute_many
        transaction_id = unique_ids.next()
        given = Given(bodies, tags, keys, sharding_keys, properties)
        rows = self.half_rows(transaction_id, topic, given, check_after_s)
        transaction = await self.send_half_rows(transaction_id, rows, argument, timeout_ms)
        state, error = TransactionState.ROLLBACK, None
        if transaction.is_safe:
            state, error = await self._execute(transaction.text, execute, transaction)
        return await self.end_rows(transaction, state, error)

    @property
    def execute_many(self) -> Callable[..., Any]:
        """The listener's method. Raises UsageError if it has none."""
        found: Callable[..., Any] | None = getattr(self._listener, "execute_many", None)
        if not callable(found):
            raise UsageError(f"the transaction listener {self._listener!r} has no method 'execute_many'")
        return found

    def half_rows(self, transaction_id: str, topic: str, given: Given, check_after_s: int) -> Rows:
        """Check columns, and return their rows as half messages. Raises MessageIllegal, UsageError, ConfigError."""
        more = f"{ROWS_TRANSACTION}\x01{transaction_id}\x02{self._half_properties(check_after_s)}"
        rows = check_rows(topic, given, self.packing, more.encode())
        if rows.delays_ms is not None:
            raise MessageIllegal("rows in a transaction cannot be delayed", topic=topic)
        return rows

    async def send_half_rows(
        self, transaction_id: str, rows: Rows, argument: Any, timeout_ms: float | None
    ) -> RowsTransaction:
        """Send rows of `half_rows`, the first step of `send_many_in_transaction`."""
        sent = await self._send_rows(rows, timeout_ms, half=True)
        return RowsTransaction(transaction_id, rows.topic, argument, sent)

    async def end_rows(
        self, transaction: RowsTransaction, state: TransactionState, error: BaseException | None = None
    ) -> RowsTransactionResult:
        """End all rows, the last step of `send_many_in_transaction`; what fails here is left to the broker's checks."""
        in_queue: dict[MessageQueue, list[SendResult]] = {}
        for outcome in transaction.sent.outcomes if state is not TransactionState.UNKNOWN else ():
            if outcome.result is not None:
                in_queue.setdefault(outcome.result.queue, []).append(outcome.result)
        topic = namespace.wrap(self._namespace, transaction.topic)
        await asyncio.gather(*(self._end_in_order(topic, sent, state) for sent in in_queue.values()))
        return RowsTransactionResult(transaction.sent, state, error)

    async def _end_in_order(self, topic: str, sent: list[SendResult], state: TransactionState) -> None:
        """End what is for one queue. Each end waits for the one before, as RocketMQ's broker carries out several at
        once.
        """
        for number, each in enumerate(sent):
            try:
                if "," in each.offset_message_id:
                    await self._end_batch(topic, each, state)
                else:
                    peer, header = await self._end_of(topic, each, state)
                    await client_api.end_surely(peer, header, timeout_ms=self._rules.timeout_ms)
                    self._tell_end(peer, header, topic, None, "", state)
            except RocketSparkError as e:
                text = "%d sends of rows of topic %s: broker %s is not told %s, it will ask: %s"
                log.warning(text, len(sent) - number, topic, each.queue.broker_name, state, e)
                return

    async def _end_batch(self, topic: str, sent: SendResult, state: TransactionState) -> None:
        """End a batch of half messages, which a broker of RocketSpark stored."""
        count = sent.offset_message_id.count(",") + 1
        header = EndHalfRangesHeader(
            topic=topic,
            producer_group=self.group,
            outcome=_OUTCOMES[state],
            message_id=sent.message_id.partition(",")[0] or None,
            broker_name=sent.queue.broker_name,
        )
        ranges = [(sent.queue_offset, half_ranges.positions_of(sent.offset_message_id, count))]
        peer, gone = await self._tell_ranges(self._in_namespace(sent.queue), header, ranges)
        if len(gone) and state is TransactionState.COMMIT:
            text = "%d rows of topic %s cannot be committed: their half messages were rolled back or are gone"
            log.error(text, len(gone), topic)
        for number, message_id in enumerate(sent.message_id.split(",")) if self._hooks.ends else ():
            one = EndTransactionHeader(
                producer_group=self.group,
                half_offset=sent.queue_offset + number,
                physical_offset=int(ranges[0][1][number]),
                outcome=header.outcome,
                message_id=message_id,
            )
            self._tell_end(peer, one, topic, None, "", state)

    async def _tell_ranges(
        self, queue: MessageQueue, header: EndHalfRangesHeader, ranges: Sequence[half_ranges.Range]
    ) -> tuple[Peer, NDArray[np.int64]]:
        """Tell a queue's broker how half messages end, again if need be: told twice it changes nothing, and where a
        master is replaced each row would be asked about.
        """
        # Whoever takes over ends them one by one, which takes seconds for thousands.
        until_s, timeout_ms = machine.monotonic() + ENDS_S, max(self._rules.timeout_ms, ENDS_S * 1000)
        for attempt in itertools.count():
            try:
                peer = await self._send_attempts.peer_to_end(queue)
                return peer, await client_api.end_half_ranges(peer, header, ranges, timeout_ms=timeout_ms)
            except RocketSparkError as e:
                # Where it does not fit what lies there it never will.
                is_wrong = isinstance(e, ServerError) and e.code == ResponseCode.SYSTEM_ERROR
                if is_wrong or not e.retriable or machine.monotonic() >= until_s:
                    raise
            await self._send_attempts.look_again(queue.topic, until_s)
            await self._send_attempts.pause(attempt, until_s)
        raise AssertionError

    def _half_properties(self, check_after_s: int) -> str:
        """Return the properties that make a message a half message."""
        text = f"{properties.TRANSACTION}\x01true\x02{properties.PRODUCER_GROUP}\x01{self.group}\x02"
        return text + (f"{properties.CHECK_IMMUNITY_S}\x01{check_after_s:d}\x02" if check_after_s else "")

    # -- the listener --------------------------------------------------------------------------------------------

    async def _execute(
        self, text: str, execute: Callable[..., Any], *arguments: Any
    ) -> tuple[TransactionState, BaseException | None]:
        try:
            return _state(await self._call(execute, *arguments)), None
        except Exception as e:
            # KeyboardInterrupt and the like are not caught: they reach the caller, and the broker checks back.
            report(text, e)
            return TransactionState.UNKNOWN, e

    async def _check(self, peer: Peer, question: CheckTransactionHeader, message: ReceivedMessage) -> None:
        full_topic, remark = message.topic, None
        try:
            state = _state(await self._call(self._listener.check, self._bare(message)))
        except BaseException as e:
            # Nobody else's business: a broker asked.
            if passes_on(e):
                raise
            log.exception("the check of transaction %s failed; the broker will ask again", message.message_id)
            state, remark = TransactionState.UNKNOWN, _remark("check", e)
        header = EndTransactionHeader(
            topic=full_topic,
            producer_group=self.group,
            half_offset=question.half_offset,
            physical_offset=question.physical_offset,
            outcome=_OUTCOMES[state],
            from_check=True,
            message_id=message.message_id or question.message_id or "",
            transaction_id=question.transaction_id,
            broker_name=question.broker_name,
        )
        try:
            client_api.end_transaction(peer, header, remark)
            self._tell_end(peer, header, full_topic, message.tag, " ".join(message.keys), state)
        except RocketSparkError as e:
            log.warning("the check of transaction %s was not answered: %s", message.message_id, e)

    def _tell_end(
        self,
        peer: Peer,
        header: EndTransactionHeader,
        topic: str,
        tag: str | None,
        keys: str,
        state: TransactionState,
    ) -> None:
        for hooks in self._hooks.ends:
            ending = Ending(
                group=self.group,
                topic=topic,
                address=peer.address,
                message_id=header.message_id,
                transaction_id=header.transaction_id or "",
                tag=tag,
                keys=keys,
                state=state.value,
                from_check=bool(header.from_check),
            )
            guarded(hooks.after_end, ending)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if is_coroutine_function(function):
            return await function(*arguments)
        running = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        try:
            returned = await running
        except asyncio.CancelledError as e:
            if passes_on(e) or not running.cancelled():
                raise
            # It still waited for a thread; the caller did not cancel it.
            raise StateError("the producer was closed before the local transaction ran or was looked up") from None
        # A coroutine function under a plain decorator.
        return await returned if inspect.isawaitable(returned) else returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


def _words(keys: str | Sequence[str]) -> str:
    return keys if isinstance(keys, str) else " ".join(keys)


def _state(returned: Any) -> TransactionState:
    return returned if isinstance(returned, TransactionState) else TransactionState.UNKNOWN


def _remark(call: str, error: BaseException) -> str:
    """Return why a state is unknown, as the broker is told it."""
    return f"{call} raised {type(error).__name__}: {shown(str(error), characters_max=REMARK_CHARACTERS_MAX)}"


def report(text: str, error: BaseException) -> None:
    """Log what a local transaction raised; `text` names it."""
    log.error("the local transaction of %s failed; its state is unknown, the broker will ask", text, exc_info=error)


class TransactionProducer(ProducerFacade[AsyncTransactionProducer]):
    """Sends messages in transactions; `execute` runs in the calling thread. Otherwise as AsyncTransactionProducer.

    >>> class Listener:
    ...     def execute(self, message, transaction):
    ...         return TransactionState.COMMIT
    ...     def check(self, message):
    ...         return TransactionState.COMMIT
    >>> with TransactionProducer("127.0.0.1:9876", "payments", listener=Listener()) as producer:
    ...     producer.send_in_transaction("orders", b"42 apples")
    """

    @arguments_of(AsyncTransactionProducer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncTransactionProducer(*args, **kwargs))

    send_half = blocking(AsyncTransactionProducer.send_half)
    end = blocking(AsyncTransactionProducer.end)

    @arguments_of(AsyncTransactionProducer.send_in_transaction)
    def send_in_transaction(self, *args: Any, **kwargs: Any) -> TransactionResult:
        """As AsyncTransactionProducer.send_in_transaction; `execute` runs in this thread."""
        execute = self._core._listener.execute
        if is_coroutine_function(execute):
            return self._loop.call(self._core.send_in_transaction(*args, **kwargs))
        half: Half = self.send_half(*args, **kwargs)
        state, error = TransactionState.ROLLBACK, None
        if half.transaction.sent.status is SendStatus.SEND_OK:
            state, error = self._execute(half.text, execute, half.message, half.transaction)
        return self.end(half, state, error)

    @arguments_of(AsyncTransactionProducer.send_many_in_transaction)
    def send_many_in_transaction(
        self,
        topic: str,
        bodies: Any,
        *,
        argument: Any = None,
        check_after_s: int = 0,
        timeout_ms: float | None = None,
        **columns: Any,
    ) -> RowsTransactionResult:
        """As AsyncTransactionProducer.send_many_in_transaction; `execute_many` runs in this thread."""
        loop, core = self._loop, self._core
        execute = core.execute_many
        # In the thread that calls: the loop goes on meanwhile.
        transaction_id = unique_ids.next()
        rows = core.half_rows(transaction_id, topic, Given(bodies, **columns), check_after_s)
        transaction = loop.call(core.send_half_rows(transaction_id, rows, argument, timeout_ms))
        state, error = TransactionState.ROLLBACK, None
        if transaction.is_safe:
            state, error = self._execute(transaction.text, execute, transaction)
        return loop.call(core.end_rows(transaction, state, error))

    def _execute(
        self, text: str, execute: Callable[..., Any], *arguments: Any
    ) -> tuple[TransactionState, BaseException | None]:
        try:
            returned = execute(*arguments)
            return _state(self._loop.call(_awaited(returned)) if inspect.isawaitable(returned) else returned), None
        except Exception as e:
            report(text, e)
            return TransactionState.UNKNOWN, e
