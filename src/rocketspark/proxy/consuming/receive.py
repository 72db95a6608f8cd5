"""ReceiveMessage: one pop of one broker, and its messages one after another on the stream.

Rule: a message that does not reach the stream is given back at once, whenever the client goes; a stream ends with its
delivery timestamp (ReceiveMessageActivity, 5.5.0). What reached a stream that was cut is not renewed. A receive that
waits is one request held by its broker, on the one connection that is all clients'; so each host has its share.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from rocketspark import machine
from rocketspark.errors import NotSent, RocketSparkError, TransportError
from rocketspark.model import Subscription, subscribe
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import PERM_READ
from rocketspark.model.subscription import ALL, SQL92, TAG
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PopHeader, PopLiteHeader, PopLiteReply, PopReply
from rocketspark.protocol.headers.pop import ATTEMPT_ID_MAX, INIT_MAX
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.message.message_ids import offset_message_id
from rocketspark.proxy.brokers import DEFAULT_GROUP, Brokers, attempts_max
from rocketspark.proxy.call import Call
from rocketspark.proxy.checks import (
    Shares,
    bound_topic,
    check_bound_topic,
    check_lite_group,
    checked_group,
    checked_topic,
)
from rocketspark.proxy.clients import LITE_CONSUMERS, Clients, ProxyClient
from rocketspark.proxy.consuming.handle_calls import HandleCalls, Held, now_ms
from rocketspark.proxy.consuming.outcomes import duration_ms
from rocketspark.proxy.consuming.popped import Popped, popped, popped_lite
from rocketspark.proxy.consuming.renewals import Renewals
from rocketspark.proxy.message_form import MESSAGE_ID, RECEIPT_HANDLE, TAGS, fill_apart, is_packed
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code, FilterType
from rocketspark.proxy.wire.statuses import Refused, status, status_of
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

log = LimitedLog("rocketspark.proxy")

ANY_QUEUE = -1
COUNT_MAX = 32
# Messages that are read in one turn of the loop: some 20 us each.
IN_TURN = 256
# Characters of filters that are kept here.
FILTER_KEPT_MAX = 512
# What brokers hold of one connection (heldPullsPerConnectionMax); so many characters of a filter count as one more.
HELD_MAX = 10_000
CHARACTERS_OF_HELD = 60
# Bytes of messages that clients have not read yet.
UNREAD_BYTES_MAX = 256 << 20
# So long a client may take to read what one receive brings it, some 4 MiB at most.
DELIVERY_S = 60.0
# A broker that holds a pop answers it by then.
REPLY_MS = 10_000.0
# Clients before it know another code for a deadline that is too near.
ILLEGAL_POLLING_TIME_SINCE = "5.0.3"
_POP, _POP_LITE = int(RequestCode.POP_MESSAGE), int(RequestCode.POP_LITE_MESSAGE)


class Wanted(NamedTuple):
    """What one ReceiveMessage asks for. `lite`: messages of the lite topics that the client subscribed to."""

    client: ProxyClient
    in_order: bool
    attempts_max: int
    topic: str
    group: str
    broker_name: str
    count_max: int
    polling_ms: int
    invisible_ms: int
    renews: bool
    filter: Subscription
    attempt_id: str | None
    lite: bool = False

    @property
    def host(self) -> str:
        """The address of the client's host."""
        return self.client.host

    @property
    def weight(self) -> int:
        """How much the request counts while a broker holds it: 1, and more for a long filter (see HELD_MAX)."""
        return 1 + len(self.filter.expression) // CHARACTERS_OF_HELD


class Receives:
    """Serves the ReceiveMessage calls of one proxy."""

    def __init__(
        self, settings: ProxySettings, brokers: Brokers, clients: Clients, calls: HandleCalls, renewals: Renewals
    ) -> None:
        self._settings, self._brokers, self._clients = settings, brokers, clients
        self._calls, self._renewals = calls, renewals
        self._turn = 0
        # By broker: what it holds.
        self.held: dict[str, Shares] = {}
        self.unread = Shares(UNREAD_BYTES_MAX, "as much waits for clients to read it as the proxy takes")

    async def receive_message(self, call: Call, request: Any) -> None:
        """Serve ReceiveMessage: write the answers to the call's stream."""
        try:
            wanted = await self._wanted(call, request)
        except Exception as e:
            await _refuse(call, e)
            return
        client = wanted.client
        client.receiving += 1
        cut = True
        try:
            await self._serve(call, wanted)
            cut = False
        finally:
            self._clients.receive_ended(client, cut=cut)

    async def _serve(self, call: Call, wanted: Wanted) -> None:
        try:
            found = await self._pop(wanted)
            if call.check_again is not None:
                await self._check_again(call.check_again, wanted, found)
        except Exception as e:
            await _refuse(call, e)
        else:
            await self._deliver(call, wanted, found)

    async def _check_again(self, check: Callable[[], Awaitable[None]], wanted: Wanted, found: list[Popped]) -> None:
        """Give messages back that came while their user lost the right to them, and raise what refuses him."""
        try:
            await check()
        except BaseException:
            self._give_back(wanted, found)
            raise

    # -- what is asked -------------------------------------------------------------------------------------------

    async def _wanted(self, call: Call, request: Any) -> Wanted:
        """Return what a request asks for: its times and its filter; order and retries are its group's.

        Raises Refused, FilterIllegal, RocketSparkError.
        """
        s = self._settings
        topic = checked_topic(request.message_queue.topic.name)
        group = checked_group(request.group.name)
        found = _filter(topic, request.filter_expression.expression, request.filter_expression.type)
        if request.batch_size < 1:
            raise Refused(Code.BAD_REQUEST, f"batch size {request.batch_size}: at least 1 is needed")
        if len(request.attempt_id) > ATTEMPT_ID_MAX:
            text = f"the attempt's id has {len(request.attempt_id)} characters: {ATTEMPT_ID_MAX} at most"
            raise Refused(Code.BAD_REQUEST, text)
        client = self._clients.receives(call, request)
        polling_ms = self._polling_ms(call, request, client)
        renews = s.auto_renew and request.auto_renew
        invisible_ms = s.default_invisible_ms
        if not renews:
            invisible_ms = duration_ms(request.invisible_duration)
            if invisible_ms < s.receive_invisible_ms_min:
                least_ms = s.receive_invisible_ms_min
                text = f"the invisibleTime is too small: {invisible_ms} ms, at least {least_ms} are needed"
                raise Refused(Code.ILLEGAL_INVISIBLE_TIME, text)
            if invisible_ms > s.invisible_ms_max > 0:
                text = f"the invisibleTime is too large: {invisible_ms} ms, at most {s.invisible_ms_max} are allowed"
                raise Refused(Code.ILLEGAL_INVISIBLE_TIME, text)
        known = await self._brokers.group(group)
        lite = self._checked_lite(client, group, known, topic)
        config = known or DEFAULT_GROUP
        return Wanted(
            client=client,
            in_order=config.consume_message_orderly,
            attempts_max=attempts_max(config),
            topic=topic,
            group=group,
            broker_name=request.message_queue.broker.name,
            count_max=min(request.batch_size, COUNT_MAX),
            polling_ms=polling_ms,
            invisible_ms=invisible_ms,
            renews=renews,
            filter=found,
            attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
            lite=lite,
        )

    def _checked_lite(self, client: ProxyClient, name: str, group: GroupConfig | None, topic: str) -> bool:
        """Tell whether a client receives from lite topics, which its group decides. Raises Refused."""
        lite = bool(bound_topic(group))
        if client.has_told:
            check_lite_group(name, group, lite=client.settings.client_type in LITE_CONSUMERS)
        if lite:
            check_bound_topic(name, group, topic)
            client.lite_parent = topic
            if (count := self._renewals.count_of(client.identity)) > self._settings.lite_unacknowledged_max:
                text = f"client {shown(client.client_id)} has too many unacked messages: {count}"
                raise Refused(Code.FORBIDDEN, text)
        return lite

    def _polling_ms(self, call: Call, request: Any, client: ProxyClient) -> int:
        """Return for how long to wait for messages."""
        s = self._settings
        remaining_ms = call.remaining_ms
        if request.HasField("long_polling_timeout"):
            polling_ms: float = duration_ms(request.long_polling_timeout)
        elif remaining_ms is None:
            polling_ms = s.long_polling_ms_max
        else:
            polling_ms = remaining_ms - duration_ms(client.settings.request_timeout) / 2
        polling_ms = min(max(polling_ms, s.long_polling_ms_min), s.long_polling_ms_max)
        if remaining_ms is not None and polling_ms > remaining_ms:
            if remaining_ms < s.long_polling_ms_min:
                old = not call.version or call.version < ILLEGAL_POLLING_TIME_SINCE
                raise Refused(
                    Code.BAD_REQUEST if old else Code.ILLEGAL_POLLING_TIME,
                    f"the deadline is {remaining_ms:.0f} ms away: {s.long_polling_ms_min} ms are needed for polling",
                )
            polling_ms = remaining_ms
        return int(polling_ms)

    # -- the pop -------------------------------------------------------------------------------------------------

    async def _broker_name(self, wanted: Wanted) -> str:
        """Return the broker asked for, if the topic can be read there, else one in turn. Raises Refused."""
        route = await self._brokers.route(wanted.topic)
        readable = []
        for data in route.queues:
            broker = route.broker(data.broker_name)
            if data.perm & PERM_READ and data.read_queue_count and broker is not None and broker.master is not None:
                if data.broker_name == wanted.broker_name:
                    return wanted.broker_name
                readable.append(data.broker_name)
        if not readable:
            self._brokers.forget_route(wanted.topic)
            raise Refused(Code.FORBIDDEN, "no readable queue")
        self._turn += 1
        return readable[self._turn % len(readable)]

    async def _pop(self, wanted: Wanted) -> list[Popped]:
        """Return what is to be delivered of what is there or comes in time.

        Raises Refused, also if nothing comes; RocketSparkError.
        """
        self.unread.check(wanted.host)
        broker_name = await self._broker_name(wanted)
        peer = await self._peer(broker_name)
        held = self._held_by(broker_name)
        held.take(wanted.host, wanted.weight)
        code = _POP_LITE if wanted.lite else _POP
        asked = peer.ask(code, _header(wanted, broker_name), timeout_ms=wanted.polling_ms + REPLY_MS)
        try:
            reply = await asyncio.shield(asked)
        except asyncio.CancelledError:
            # The broker holds it on: what it gives out yet is for nobody.
            asked.add_done_callback(functools.partial(self._popped_for_nobody, wanted, broker_name))
            raise
        except TransportError:
            held.give(wanted.host, wanted.weight)
            self._brokers.note_lost(broker_name)
            raise
        held.give(wanted.host, wanted.weight)
        if reply.code:
            raise _refusal(wanted, reply)
        return self._sifted(wanted, await self._in_turns(wanted, reply, broker_name))

    async def _in_turns(self, wanted: Wanted, reply: Reply, broker_name: str) -> list[Popped]:
        """Return the messages of an answer to a pop. Other calls go on meanwhile, as a few records may hold 100,000 of
        them.
        """
        found: list[Popped] = []
        try:
            for one in _popped(wanted, reply, broker_name):
                found.append(one)
                if not len(found) % IN_TURN:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._give_back(wanted, _popped(wanted, reply, broker_name, whole=True), at_once=True)
            raise
        return found

    def _held_by(self, broker_name: str) -> Shares:
        held = self.held.get(broker_name)
        if held is None:
            text = f"broker {broker_name} holds as many receives as it takes of one connection"
            held = self.held[broker_name] = Shares(HELD_MAX, text)
        return held

    async def _peer(self, broker_name: str) -> Peer:
        peer = self._brokers.open_peer(broker_name)
        if peer is not None and peer.is_writable:
            return peer
        try:
            async with asyncio.timeout(self._settings.request_timeout_ms / 1000):
                peer = await self._brokers.peer(broker_name)
                await peer.writable()
                return peer
        except TimeoutError:
            raise NotSent(f"no connection to broker {broker_name} in time") from None
        except TransportError:
            self._brokers.note_lost(broker_name)
            raise

    def _popped_for_nobody(self, wanted: Wanted, broker_name: str, asked: asyncio.Future[Reply]) -> None:
        self._held_by(broker_name).give(wanted.host, wanted.weight)
        if asked.cancelled() or asked.exception() is not None or (reply := asked.result()).code:
            return
        try:
            self._give_back(wanted, _popped(wanted, reply, broker_name, whole=True), at_once=True)
        except RocketSparkError as e:
            log.warning("an answer to a pop cannot be read: %s", e)

    def _give_back(self, wanted: Wanted, found: Iterable[Popped], *, at_once: bool = False) -> None:
        # Messages of a batch have one handle.
        held = {one.pairs[RECEIPT_HANDLE]: _held(wanted, one) for one in found}
        self._calls.give_back(held.values(), had=False, at_once=at_once)

    # -- the messages --------------------------------------------------------------------------------------------

    def _sifted(self, wanted: Wanted, found: list[Popped]) -> list[Popped]:
        """Return what is to be delivered; the rest is acknowledged, or becomes dead letters."""
        tags = wanted.filter.tags
        # Others have another tag with the same hash code, or came with their batch. A batch has one handle for all its
        # messages: it is acknowledged with those of them that are wanted.
        right = [one for one in found if not tags or one.pairs.get(TAGS) in tags]
        kept = {one.pairs[RECEIPT_HANDLE] for one in right}
        wrong = {handle: _held(wanted, one) for one in found if (handle := one.pairs[RECEIPT_HANDLE]) not in kept}
        good: list[Popped] = []
        dead: dict[str, tuple[Held, str]] = {}
        for one in right:
            if one.record.reconsume_times < wanted.attempts_max:
                good.append(one)
            elif (handle := one.pairs[RECEIPT_HANDLE]) not in dead:
                # A broker makes a dead letter of the whole record.
                dead[handle] = _held(wanted, one), _message_id(one)
        self._calls.put_aside(list(wrong.values()), list(dead.values()))
        return good

    async def _deliver(self, call: Call, wanted: Wanted, found: list[Popped]) -> None:
        """Write what was found; give back what cannot be written."""
        write, client = call.context.write, wanted.client
        if not found:
            await _refuse(call, Refused(Code.MESSAGE_NOT_FOUND, "no match message"))
            return
        delivered = size = 0
        try:
            sizes = [len(one.record.body) for one in found]
            # The one that is written stands there three times more.
            unread = sum(sizes) + 3 * max(sizes)
            self.unread.take(wanted.host, unread)
            size = unread
            if wanted.renews and self._clients.get(client.identity) is None:
                raise Refused(Code.MESSAGE_NOT_FOUND, f"client {shown(client.client_id)} is gone")
            # A client that does not read for longer has them no more.
            left_s = (found[0].handle.next_visible_ms - now_ms()) / 1000
            async with asyncio.timeout(min(max(left_s, 1), DELIVERY_S)):
                call.code = Code.OK
                await write(messages.ReceiveMessageResponse(status=status(Code.OK)))
                for one in found:
                    answer = messages.ReceiveMessageResponse()
                    await fill_apart(answer.message, one.record, wanted.topic, one.pairs, int(machine.time() * 1000))
                    # It stands there once more as it is written. One that is larger than all may be is delivered too.
                    packed = is_packed(one.record)
                    inflated = min(2 * answer.ByteSize(), self.unread.most // 2) if packed else 0
                    try:
                        self.unread.take(wanted.host, inflated)
                    except Refused:
                        self._give_back(wanted, found[delivered:])
                        # Once, whatever becomes of the answer.
                        del found[delivered:]
                        break
                    size += inflated
                    if wanted.renews:
                        # Before the client can acknowledge it.
                        self._renewals.add(client.identity, _held(wanted, one), one.record.reconsume_times, wanted.host)
                    await write(answer)
                    delivered += 1
                    self.unread.give(wanted.host, inflated)
                    size -= inflated
                await write(_end())
        except Refused as e:
            self._give_back(wanted, found)
            # The status may wait for a client that does not read.
            found.clear()
            await _refuse(call, e)
        except BaseException:
            rest = found[delivered:]
            if wanted.renews:
                for one in rest:
                    self._renewals.forget(client.identity, _held(wanted, one))
                # Most clients drop what came of a receive that failed, and go on.
                for one in found[:delivered]:
                    self._renewals.doubt(client.identity, _held(wanted, one))
            self._give_back(wanted, rest)
            raise
        finally:
            if size:
                self.unread.give(wanted.host, size)


def _header(wanted: Wanted, broker_name: str) -> PopHeader | PopLiteHeader:
    """Return the header of a pop; it is born, by the broker's own clock, when the broker gets it."""
    if wanted.lite:
        return PopLiteHeader(
            client_id=wanted.client.client_id,
            group=wanted.group,
            topic=wanted.topic,
            count_max=wanted.count_max,
            invisible_time_ms=wanted.invisible_ms,
            poll_time_ms=wanted.polling_ms,
            attempt_id=wanted.attempt_id,
            broker_name=broker_name,
        )
    return PopHeader(
        group=wanted.group,
        topic=wanted.topic,
        queue_id=ANY_QUEUE,
        count_max=wanted.count_max,
        invisible_time_ms=wanted.invisible_ms,
        poll_time_ms=wanted.polling_ms,
        init_mode=INIT_MAX,
        expression_type=wanted.filter.expression_type,
        expression=wanted.filter.expression,
        order=wanted.in_order,
        attempt_id=wanted.attempt_id,
        broker_name=broker_name,
    )


def _held(wanted: Wanted, one: Popped) -> Held:
    return Held(wanted.group, wanted.topic, one.handle, one.lite_topic)


def _popped(wanted: Wanted, reply: Reply, broker_name: str, *, whole: bool = False) -> Iterator[Popped]:
    if wanted.lite:
        return popped_lite(reply.header(PopLiteReply), reply.body, broker_name)
    return popped(reply.header(PopReply), reply.body, broker_name, whole=whole)


async def _refuse(call: Call, error: Exception) -> None:
    """Write the whole answer of a receive without messages."""
    failure = status_of(error)
    call.code = failure.code
    await call.write(messages.ReceiveMessageResponse(status=failure))
    await call.write(_end())


def _end() -> Any:
    """Return the last answer of a stream."""
    answer = messages.ReceiveMessageResponse()
    answer.delivery_timestamp.FromMilliseconds(now_ms())
    return answer


def _message_id(one: Popped) -> str:
    return one.pairs.get(MESSAGE_ID) or offset_message_id(one.record.store_host, one.record.position)


def _refusal(wanted: Wanted, reply: Reply) -> RocketSparkError:
    """Return what a broker's reply without messages means for the client."""
    if reply.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
        return Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    if reply.code == ResponseCode.POLLING_FULL:
        return Refused(Code.TOO_MANY_REQUESTS, "polling full")
    if reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return Refused(Code.ILLEGAL_FILTER_EXPRESSION, reply.remark or "the filter expression cannot be read")
    try:
        reply.raise_for_code(f"receive from topic {wanted.topic}")
    except RocketSparkError as e:
        return e
    raise AssertionError("a reply with a code was expected")


def _filter(topic: str, expression: str, kind: int) -> Subscription:
    """Return a filter. Raises Refused 40010, FilterIllegal."""
    return (_kept_filter if len(expression) <= FILTER_KEPT_MAX else _made_filter)(topic, expression, kind)


def _made_filter(topic: str, expression: str, kind: int) -> Subscription:
    if kind == FilterType.SQL:
        if not expression:
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "an SQL92 expression is empty")
        return subscribe(topic, expression, kind=SQL92)
    found = subscribe(topic, expression, kind=TAG)
    if found.expression == ALL and expression.strip() not in ("", ALL):
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, f"the expression {shown(expression)} names no tag")
    return found


_kept_filter = functools.lru_cache(maxsize=4096)(_made_filter)
