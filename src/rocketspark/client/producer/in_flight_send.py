"""One send, from its message to its end: the states, what moves between them, and the one exit.

Rule: every send is an InFlightSend, or a message of one (a batch); it moves only as TRANSITIONS says, and `finish`, the
only way to its end, tells its caller once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import msgspec

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.callbacks import trouble_log
from rocketspark.client.producer.gathered_sends import BatchOutcome, own_error
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.program_end import cancelled_sends
from rocketspark.client.producer.send_attempts import Lack, not_in_time, result_of
from rocketspark.client.producer.send_path import Gatherer, SendPath
from rocketspark.client.producer.send_states import AFTER_END, AFTER_FAIL, AFTER_REPLY, AFTER_WAIT, AFTER_WRITE, State
from rocketspark.client.results import SendResult, SendStatus
from rocketspark.errors import RocketSparkError, RouteNotFound, SendFailed, StateError
from rocketspark.model import Message, MessageQueue
from rocketspark.transport.request_frames import Reply

# With less time left a send does not look once more for a broker.
LAST_LOOK_S = 0.05

# Finds the queue of one message among its topic's.
Choose = Callable[[Sequence[MessageQueue]], MessageQueue]


_DONE = State.DONE


class InFlightSend(msgspec.Struct, eq=False):
    """A send in flight. A subclass says how its caller is told (`tell`), and what runs it if it has to wait (`drive`).

    Args:
        sharding_key, queue: where the message goes, if it is told; `queue` with its namespace or without.
        timeout_ms: the budget over all attempts, if not the producer's.
        in_order: nothing that is sent to the given queue later overtakes this send, even if it is tried again.
        codes: the response codes after which it is tried again, if not those of the producer.
        message: what was packed, if the accumulator may take the send.
        choose: finds the send's queue among the topic's.
        oneway: the broker sends no reply.
    """

    path: SendPath[InFlightSend]
    out: PreparedMessage
    sharding_key: str | None
    queue: MessageQueue | None
    timeout_ms: float | None
    attempts: int
    message: Message | None = None
    choose: Choose | None = None
    codes: Collection[int] | None = None
    in_order: bool = True
    oneway: bool = False

    state: State = State.PREPARED
    # Monotonic.
    began_s: float = 0.0
    end_s: float = 0.0
    # No caller waits any more.
    given_up: bool = False
    # Of those with the same key one is in flight at a time; or, if `_in_line`, one is tried again at a time.
    key: Hashable | None = None
    _in_line: bool = False
    _holds_key: bool = False
    _turn: asyncio.Future[None] | None = None
    _has_room: bool = False
    # What it waits for without a task, until the timer; and its name for the error, None: room.
    _awaited: asyncio.Future[Any] | None = None
    _what: str | None = None
    _timer: asyncio.TimerHandle | None = None
    # Of the last attempt: where it went, and its error, if it failed; of all that failed: their brokers.
    _went_to: MessageQueue | None = None
    _cause: RocketSparkError | None = None
    _brokers: tuple[str, ...] = ()
    _task: asyncio.Task[None] | None = None
    accumulator: Gatherer[InFlightSend] | None = None
    # It may go in one request with others.
    gathers: bool = False
    wait_store_ok: bool = True

    def __post_init__(self) -> None:
        path, out = self.path, self.out
        self.began_s = machine.monotonic()
        if self.timeout_ms is None:
            self.end_s = self.began_s + path.timeout_s
        else:
            self.end_s = path.attempts.end_s(self.timeout_ms, self.began_s)
        if self.sharding_key and not self.oneway:
            self.key = (out.topic, self.sharding_key)
        if self.queue is not None:
            self._fix_queue(self.queue, self.in_order)
        message = self.message
        if path.accumulator is not None and message is not None:
            self.accumulator = path.accumulator
            self.wait_store_ok = message.wait_store_ok
            self.gathers = self.timeout_ms is None and not (
                out.sys_flag
                or message.delay_level
                or message.delay_ms
                or message.deliver_at_ms
                or out.topic.startswith(validators.RETRY_PREFIX)
            )

    def _fix_queue(self, queue: MessageQueue, in_order: bool = True) -> None:
        self.queue = queue = self.path.full_queue(self.out.topic, queue)
        if self.key is None and in_order and self.attempts > 1:
            self.key, self._in_line = queue, True

    def attempt_end_s(self) -> float:
        """Return the monotonic time at which an attempt that begins now is given up."""
        limit_s = self.path.attempts.attempt_s
        if limit_s is None or len(self._brokers) + 1 >= self.attempts:
            return self.end_s
        return min(self.end_s, machine.monotonic() + limit_s)

    def follow(self, queue: MessageQueue) -> None:
        """Send to `queue`, and wait behind all sends that went to this queue before: one is sent at a time."""
        self.queue = self.key = queue
        self.sharding_key, self._in_line = None, False

    # -- to the socket -------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin the send: write it, give it to the accumulator, or have it go on once what it waits for is there.

        False if none of these is possible: then the caller must run `proceed`. Called on the loop. Raises StateError if
        the producer is not started.
        """
        self.path.check_started()
        if self.choose is not None:
            return self._choose_queue()
        if self.accumulator is not None and (self.gathers or self.sharding_key or self.queue is not None):
            self.state = AFTER_WAIT[self.state]
            if self.accumulator.add(self):
                return True
        return self.write()

    def _choose_queue(self) -> bool:
        """Find its queue, and go on as `begin` does."""
        path, topic = self.path, self.out.topic
        self.state = AFTER_WAIT[self.state]
        queues = path.attempts.known_queues(topic)
        if not queues:
            return self._wait_for(path.attempts.lacks(topic, None, None))
        choose, self.choose = self.choose, None
        assert choose is not None
        self._fix_queue(choose([path.bare_queue(queue) for queue in queues]))
        return (self.accumulator is not None and self.accumulator.add(self)) or self.write()

    def write(self) -> bool:
        """Write the send's request to its broker at once, behind earlier sends of its key; or have it wait for what it
        lacks.

        False if neither is possible: then `proceed` must run.
        """
        path, out = self.path, self.out
        if self.key is not None and not self._holds_key:
            self._turn = path.gate.take_place(self.key)
            self._holds_key = True
        limit = path.oneway_limit if self.oneway else path.limit
        if self._turn is None and (self._has_room or limit.try_enter(len(out.body))):
            self._has_room = True
            if machine.monotonic() >= self.end_s and not self.oneway:
                # Its caller is told in time what RocketMQ's client tells too; a broker would store it all the same.
                self.finish(None, not_in_time(f"topic {out.topic!r}: a turn of the client, which was busy"))
                return True
            end_s = self.end_s if path.attempts.attempt_s is None else self.attempt_end_s()
            aim = self._went_to or self.queue
            queue = path.attempts.post(out, self.sharding_key, aim, end_s, None if self.oneway else self)
            if queue is not None:
                self.state = AFTER_WRITE[self.state]
                self._went_to = queue
                if self._in_line:
                    self._let_follow()
                if self.oneway:
                    self.finish(None, None)
                return True
            self.state = AFTER_WAIT[self.state]
            return self._wait_for(path.attempts.lacks(out.topic, self.sharding_key, aim))
        self.state = AFTER_WAIT[self.state]
        if self._turn is not None:
            text = f"topic {out.topic!r}: what goes before to the same key or queue took too long"
            return self._wait_for(Lack(self._turn, text))
        return self._wait_for(Lack(limit.take_place(len(out.body)), None))

    def _wait_for(self, lack: Lack | None) -> bool:
        """Have the send go on once what it lacks (a route, a connection) is there, without a task, which would cost as
        much as a send. Returns False if it is not known what is lacking: the general way finds that out.
        """
        if lack is None:
            self._went_to = None
            return False
        self._awaited, self._what, self._went_to = lack.future, lack.what, lack.queue
        end_s = self.end_s if lack.queue is None else self.attempt_end_s()
        left_s = max(end_s - machine.monotonic(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(left_s, self._be_late)
        self.path.waiting[self] = None
        lack.future.add_done_callback(self._go_on)
        return True

    def _wait_no_more(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._awaited = self._timer = None
        del self.path.waiting[self]

    def _go_on(self, got: asyncio.Future[Any]) -> None:
        """Go on with what it waited for; its last callback may come when it waits no more."""
        if self._awaited is not got:
            return
        error = asyncio.CancelledError() if got.cancelled() else got.exception()
        if self.cancelled():
            error = asyncio.CancelledError()
        elif error is None:
            self._wait_no_more()
            if self._what is None:
                self._has_room = True
            elif got is self._turn:
                self._turn = None
            self.begin_now()
            return
        if self._went_to is not None and isinstance(error, RocketSparkError):
            self._fail_attempt(error)
        elif isinstance(error, RouteNotFound) and self._may_look_again(error, 0):
            self._wait_no_more()
            self.drive()
        else:
            # Others waited for the same.
            self.finish(None, own_error(error))

    def _be_late(self) -> None:
        """End the wait, as its time is over."""
        if self._what is None:
            self.finish(None, (self.path.oneway_limit if self.oneway else self.path.limit).full())
            return
        error = not_in_time(self._what)
        if self._went_to is not None:
            self._fail_attempt(error)
        else:
            self.finish(None, error)

    def _fail_attempt(self, error: RocketSparkError) -> None:
        """Note that its broker cannot be had."""
        self._wait_no_more()
        if self.oneway:
            self.finish(None, error)
        else:
            self.set_exception(error)

    def begin_now(self) -> None:
        """Write a send whose caller waits already; if that is not possible now, run it in the background."""
        try:
            if not (self.write() if self.choose is None else self._choose_queue()):
                self.drive()
        except BaseException as e:
            self.finish(None, e)
            if not isinstance(e, Exception):
                raise

    def _let_follow(self) -> None:
        """Let the next send to its queue be written, as this one is."""
        assert self.queue is not None
        self.path.newest[self.queue] = self
        self.path.gate.leave(self.queue)
        self._holds_key = False

    def drive(self) -> None:
        """Run `proceed` in a task."""
        self._task = task = asyncio.get_running_loop().create_task(self.proceed())
        task.add_done_callback(self._look_at)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """End the send of a task that was cancelled before it began: it ran nothing of `proceed`."""
        if task.cancelled():
            self.finish(None, asyncio.CancelledError())

    async def proceed(self) -> None:
        """Make the attempts that are left, and end the send with the result or with what is raised."""
        try:
            if self.choose is not None:
                await self.path.attempts.queues(self.out.topic, self.end_s)
                if self._choose_queue():
                    return
            result = await (self._send_oneway() if self.oneway else self._make_attempts())
        except BaseException as e:
            # Its caller was interrupted, or the client's thread ends: only the last attempt's failure is known.
            self.finish(None, self._cause or e if isinstance(e, asyncio.CancelledError) else e)
            if not isinstance(e, Exception):
                raise
        else:
            self.finish(result, None)

    async def _send_oneway(self) -> None:
        attempts = self.path.attempts
        queue = self.queue or await attempts.first_queue(self.out.topic, self.sharding_key, self.end_s)
        await attempts.send_oneway(self, queue)

    async def _make_attempts(self) -> SendResult:
        """Make attempts until one has a result, or none is left. `begin` may have made the first.

        Raises RouteNotFound, NotSent if no queue can be had; SendFailed if all attempts failed.
        """
        out, end_s, attempts = self.out, self.end_s, self.path.attempts
        queue: MessageQueue | None
        in_hand: SendResult | None = None
        if self._went_to is None:
            queue = await self._first_queue()
            if self._in_line and await attempts.is_ready(queue, end_s):
                # It is written before anything else runs: the next send need not wait any longer.
                self._let_follow()
        else:
            queue = await self._next_queue(self._went_to)
            if queue is not None:
                with contextlib.suppress(RouteNotFound):  # The attempt finds it out as well.
                    queue = await attempts.with_broker(queue, self._is_fixed, end_s)
        while queue is not None:
            self._went_to = queue
            try:
                result = await attempts.attempt(self, queue)
            except RocketSparkError as e:
                self._note_failure(e)
            else:
                if result.status is SendStatus.SEND_OK or not attempts.retry_not_stored:
                    return result
                in_hand, self._cause = result, None
                self._brokers += (queue.broker_name,)
            queue = await self._next_queue(queue)
        if in_hand is not None:
            return in_hand
        assert self._cause is not None
        cost_ms = (machine.monotonic() - self.began_s) * 1000
        brokers = self._brokers
        raise SendFailed(out.topic, self._cause, attempts=len(brokers), brokers=brokers, cost_ms=cost_ms)

    @property
    def _is_fixed(self) -> bool:
        """Tell whether it goes to the queue that was chosen for it, and to no other."""
        return self.queue is not None or bool(self.sharding_key)

    async def _first_queue(self) -> MessageQueue:
        """Return the queue of the first attempt; while no broker of the topic has a master, after a few looks more."""
        attempts, topic = self.path.attempts, self.out.topic
        for look in itertools.count():
            try:
                queue = self.queue or await attempts.first_queue(topic, self.sharding_key, self.end_s)
                return await attempts.with_broker(queue, self._is_fixed, self.end_s)
            except RouteNotFound as e:
                if not self._may_look_again(e, look):
                    raise
            await attempts.pause(look, self.end_s)
        raise AssertionError

    def _may_look_again(self, error: RouteNotFound, look: int) -> bool:
        """Tell whether a broker that was there may be back within the send's time."""
        attempts, topic = self.path.attempts, self.out.topic
        left_s = self.end_s - machine.monotonic()
        if self.attempts > 1 and type(error) is RouteNotFound and attempts.was_known(topic) and left_s > LAST_LOOK_S:
            return True
        return look + 1 < self.attempts and attempts.is_without_master(topic)

    async def _next_queue(self, last: MessageQueue) -> MessageQueue | None:
        """Return the queue of the next attempt, after a pause if it is at the same broker. None: there is no other."""
        attempts, made = self.path.attempts, len(self._brokers)
        cause, codes, end_s = self._cause, self.codes, self.end_s
        may = made < self.attempts and (
            attempts.may_retry(cause, codes, last)
            or (self.queue is None and await attempts.is_gone(cause, codes, last, end_s))
        )
        if not may:
            attempts.note_last(self.out.topic, cause)
            return None
        fixed = self.queue or (last if self.sharding_key else None)
        if fixed is not None and cause is None:
            return None
        if self.state is not State.RETRIED:
            self.state = AFTER_FAIL[self.state]
        queue = await attempts.next_queue(self.out.topic, last, fixed, cause, made - 1, end_s, self.sharding_key)
        return queue if machine.monotonic() < end_s else None

    # -- back from the socket ------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Tell whether the send has ended: a reply that comes now is of no use."""
        return self.state is _DONE

    def cancelled(self) -> bool:
        """Tell whether no caller waits for the send any more: then it is not tried again."""
        return self.given_up

    def set_result(self, reply: Reply, /) -> None:
        """Take the reply to the attempt that `write` made."""
        assert self._went_to is not None
        self.state = AFTER_REPLY[self.state]
        try:
            result = result_of(self.out, self._went_to, reply)
        except BaseException as e:
            self.set_exception(e)
        else:
            self.finish(result, None)

    def set_exception(self, error: BaseException, /) -> None:
        """Note that the attempt that `write` made failed."""
        try:
            if isinstance(error, RocketSparkError) and not self.cancelled():
                self._note_failure(error)
                self.state = AFTER_FAIL[self.state]
                self.drive()
                return
        except BaseException as e:
            error = e
        self.finish(None, error)
        if not isinstance(error, Exception):
            raise error

    def _note_failure(self, cause: RocketSparkError) -> None:
        """Keep the error. A send to a chosen queue behind which others went is not tried again."""
        self._cause = cause
        assert self._went_to is not None
        self._brokers += (self._went_to.broker_name,)
        self._tell_failure(cause, self._went_to)
        if self._in_line and not self._holds_key:
            assert self.queue is not None
            if self.path.newest.get(self.queue) is not self or self.queue in self.path.gate:
                self.attempts = len(self._brokers)
            else:
                self.path.gate.take_place(self.queue)
                self._holds_key = True

    def _tell_failure(self, cause: RocketSparkError, queue: MessageQueue) -> None:
        if self.path.attempts.is_logged:
            return  # There is a line of this attempt already.
        text = "attempt %d to send to topic %s, at %s, failed %.0f ms after the send began: %s"
        cost_ms = (machine.monotonic() - self.began_s) * 1000
        trouble_log.warning(text, len(self._brokers), self.out.topic, queue.broker_name, cost_ms, cause)

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send: give back its room and its place, and tell its caller. Every send ends here; a second call does
        nothing.
        """
        if self.state is _DONE:
            return
        self.state = AFTER_END[self.state]
        if error is not None and isinstance(error, asyncio.CancelledError) and not self.given_up:
            error = StateError("the client was closed before a broker had answered: the message may have been stored")
        path = self.path
        try:
            if self._awaited is not None:
                self._leave_line(self._awaited)
            if self._has_room:
                (path.oneway_limit if self.oneway else path.limit).leave(len(self.out.body))
            if self.key is not None:
                if self._holds_key:
                    path.gate.leave(self.key, self._turn)
                if self._in_line and self.queue is not None and path.newest.get(self.queue) is self:
                    del path.newest[self.queue]
            if path.closing:
                path.note_end()
            if result is not None and path.namespace:
                result = path.shown(result)
        finally:
            self.tell(result, error)

    def _leave_line(self, awaited: asyncio.Future[Any]) -> None:
        self._wait_no_more()
        if self._what is None:
            limit = self.path.oneway_limit if self.oneway else self.path.limit
            self._has_room = limit.give_up(awaited)

    def take_part(self, outcome: BatchOutcome, number: int) -> None:
        """End the send as one message of a batch, which has ended."""
        self.finish(outcome.part(number), own_error(outcome.error))

    def refuse(self, error: BaseException) -> None:
        """End the send with an error, as its loop has ended or the send could not begin."""
        self.finish(None, error)

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Tell the caller the outcome; called once."""
        raise NotImplementedError


class AwaitedSend(InFlightSend):
    """A send that a coroutine waits for, which also runs `proceed`: a task for it would cost more than a send."""

    result: SendResult | None = None
    error: BaseException | None = None
    _waiter: asyncio.Future[None] | None = None

    async def outcome(self) -> SendResult:
        """Send the message and return the result. Raises as AsyncProducer.send does. If it is cancelled, nothing of the
        send is left over.
        """
        try:
            if not self.begin():
                await self.proceed()
            while self.state is not _DONE:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                if self.state is not _DONE:
                    await self.proceed()
        except BaseException as e:
            self.given_up = True
            self.finish(None, e)
            if isinstance(e, asyncio.CancelledError):
                cancelled_sends.add()
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None
        return self.result  # type: ignore[return-value]

    def cancelled(self) -> bool:
        """Tell whether the waiting coroutine was cancelled, even if it has not run since."""
        return self.given_up or (self._waiter is not None and self._waiter.cancelled())

    def drive(self) -> None:
        """Wake the waiting coroutine, which runs `proceed`."""
        assert self._waiter is not None
        if not self._waiter.done():
            self._waiter.set_result(None)

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Wake the waiting coroutine with the outcome."""
        self.result = result
        self.error = error
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
