"""Pops: messages given out for a time, acknowledged one by one, given out again; and requests that wait for some."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import Popped, ack, change, messages, pop, popped
from tests.live.support import (
    GROUP,
    TOPIC,
    broker,
    connected,
    create,
    run,
    sent,
    until,
)

from rocketspark.broker.pop.requests import PopChecks
from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ServerError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.pop_records import AckedBatch, BatchAck
from rocketspark.protocol.message import record
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "each message once to one consumer; filters by tag and properties; retries of both forms wake who waits",
    "waiting pops: limits, wake-ups by messages, acks and the end of a block; connections that end",
)

# Longer than any test: what is answered was not due.
HOLD: dict[str, Any] = {"poll_time_ms": 250_000}
# A pop reads retries last, so that the order of what it gives is known.
RETRIES_LAST: dict[str, Any] = {"pop_retry_percent": 0}


def bodies_of(found: list[Popped]) -> list[bytes]:
    return sorted(m.body for m in found)


async def filled(peer: Peer, count: int = 5, queues: int = 4, queue_id: int | None = 0) -> None:
    """The topic with so many messages, tags a, b, a, b, …; without a queue id one in each queue by turns."""
    await create(peer, TOPIC, queues)
    for n in range(count):
        queue = n % queues if queue_id is None else queue_id
        await sent(peer, b"%d" % n, TOPIC, queue, pairs={"TAGS": "ab"[n % 2], "n": str(n)})


def in_flight(server: BrokerServer, group: str = GROUP) -> int:
    return sum(server._pop_state.count(TOPIC, group, queue_id) for queue_id in range(4))


def test_each_message_is_given_once_and_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 10, queue_id=None)
            first = await popped(peer, count_max=6)
            second = await popped(peer)
            assert (len(first), len(second)) == (6, 4)
            assert bodies_of(first + second) == [b"%d" % n for n in range(10)]
            assert in_flight(server) == 10
            assert await popped(peer) == []
            for message in first + second:
                (await ack(peer, message)).raise_for_code("ack")
            assert in_flight(server) == 0
            # Again: done is done.
            (await ack(peer, first[0])).raise_for_code("ack")

    run(main())


@pytest.mark.shows("acknowledgements of one read")
@pytest.mark.parametrize("changes", [{}, {"flush_disk_type": "SYNC_FLUSH"}])
def test_acknowledgements_of_one_read_are_checked_once_and_answered_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"offset": 99},
        {"offset": 7},
        {"queue_id": 3},
        {"queue_id": 9},
        {"topic": "None"},
        {"lite_topic": "l"},
        {"broker_name": "x"},
    ]
    asked: list[str] = []
    check = PopChecks.check_popped

    def counted(*given: Any) -> Any:
        asked.append(given[2])
        return check(*given)

    monkeypatch.setattr(PopChecks, "check_popped", counted)

    async def main() -> None:
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await filled(peer, 12)
            found = {group: await popped(peer, group=group) for group in ("single", "together")}

            def acks(group: str) -> list[Awaitable[Reply]]:
                first, second, *_ = found[group]
                common = first.handle.rpartition(" ")[0]
                own = [{"handle": f"{common} {last}"} for last in ("7", "x", "-1", "\u0661", "9" * 30, "")]
                return [ack(peer, m, group=group, **more) for m in (first, first, second) for more in odd + own]

            each = [await one for one in acks("single")]
            together = await asyncio.gather(*acks("together"))
            said = [[(r.code, (r.remark or "").partition(": '")[0]) for r in replies] for replies in (each, together)]
            assert said[0] == said[1]
            assert {r.code for r in each} >= {0, 208}
            assert in_flight(server, "together") == in_flight(server, "single") == 9

            asked.clear()
            rest = found["together"][2:]
            assert {r.code for r in await asyncio.gather(*(ack(peer, m, group="together") for m in rest))} == {0}
            assert asked == [TOPIC]
            assert in_flight(server, "together") == 0

            # None is taken as done where that cannot be noted.
            store, rest = server._pop_state.in_flight._store, found["single"][2:]
            monkeypatch.setattr(server._pop_state.in_flight, "_store", refusing)
            refused = await asyncio.gather(*(ack(peer, m, group="single") for m in rest))
            assert {(r.code, r.remark) for r in refused} == {(14, "full")}
            monkeypatch.setattr(server._pop_state.in_flight, "_store", store)
            assert in_flight(server, "single") == 9
            assert {r.code for r in await asyncio.gather(*(ack(peer, m, group="single") for m in rest))} == {0}

    def refusing(*given: Any) -> Any:
        raise ServerError(14, "full")

    run(main())


def test_the_reply_tells_of_each_queue_what_was_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, **RETRIES_LAST) as server, connected(server.address) as peer:
            await filled(peer, 5)
            before_ms = int(time.time() * 1000)
            reply = await pop(peer, TOPIC, 0, count_max=3, invisible_time_ms=12_345)
            head = reply.header(headers.PopReply)
            assert (reply.code, reply.remark) == (0, "FOUND")
            assert before_ms <= head.pop_time_ms <= int(time.time() * 1000)
            assert (head.invisible_time_ms, head.rest_count) == (12_345, 2)
            assert 0 <= head.revive_queue_id < 8
            assert (head.start_offsets, head.message_offsets, head.order_counts) == ("0 0 0", "0 0 0,1,2", None)
            head = (await pop(peer, TOPIC, 0)).header(headers.PopReply)
            assert (head.start_offsets, head.message_offsets, head.rest_count) == ("0 0 3", "0 0 3,4", 0)
            nothing = await pop(peer, TOPIC, 0)
            head = nothing.header(headers.PopReply)
            assert (nothing.code, nothing.remark) == (210, "NO_MESSAGE_IN_QUEUE")
            assert (head.start_offsets, head.message_offsets, head.rest_count) == ("", "", 0)

    run(main())


def test_a_filter_gives_what_matches_and_passes_over_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, **RETRIES_LAST) as server, connected(server.address) as peer:
            await filled(peer, 10)
            tagged = await popped(peer, TOPIC, 0, count_max=2, expression="b", expression_type="TAG")
            assert [(m.body, m.offset) for m in tagged] == [(b"1", 1), (b"3", 3)]
            by_properties = await popped(peer, expression="n > 6 AND n < 9", expression_type="SQL92")
            assert [m.body for m in by_properties] == [b"7", b"8"]
            assert await popped(peer) == []
            for wrong, kind in (("n >", "SQL92"), ("n > 1", "XPATH")):
                refused = await pop(peer, expression=wrong, expression_type=kind)
                assert (refused.code, refused.remark) == (23, "parse the consumer's subscription failed")

    run(main())


def test_what_is_not_acknowledged_comes_again_from_the_retry_topic(tmp_path: Path) -> None:
    async def main(v2: bool) -> None:
        flag = "2" if v2 else "1"
        root = tmp_path / flag
        async with (
            broker(root, retry_topics_v2=v2, revive_interval_ms=100) as server,
            connected(server.address) as peer,
        ):
            await filled(peer, 3)
            first = await popped(peer, invisible_time_ms=300)
            (await ack(peer, first[1])).raise_for_code("ack")
            # They wake who waits.
            again = messages(await pop(peer, **HOLD))
            if len(again) < 2:
                again += messages(await pop(peer, **HOLD))
            assert bodies_of(again) == [b"0", b"2"]
            assert [m.topic for m in again] == [TOPIC] * 2
            assert [m.reconsume_times for m in again] == [1, 1]
            assert {m.handle.split(" ")[4] for m in again} == {flag}
            for message in again:
                (await ack(peer, message)).raise_for_code("ack")
            assert await popped(peer) == []

    run(main(False))
    run(main(True))


@pytest.mark.shows("one retry topic of two pairs of group and topic")
def test_two_pairs_of_group_and_topic_with_one_retry_topic_get_their_own(tmp_path: Path) -> None:
    """%RETRY%g_x_y is that of group g and topic x_y, and of g_x and y."""
    pairs = [("g", "x_y"), ("g_x", "y")]

    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=100) as server, connected(server.address) as peer:
            for group, topic in pairs:
                await create(peer, topic, queues=1)
                await sent(peer, f"{topic} failed".encode(), topic, 0)
                assert len(await popped(peer, topic, group=group, invisible_time_ms=300)) == 1
            await until(lambda: server.store.queue_range("%RETRY%g_x_y", 0)[1] == 2)
            for group, topic in pairs:
                peeked = await peer.request(RequestCode.PEEK_MESSAGE, peek_header(topic, group))
                assert [m.body for m in record.decode_all(peeked.body)] == [f"{topic} failed".encode()]
                (again,) = await popped(peer, topic, group=group, invisible_time_ms=60_000)
                assert (again.body, again.topic) == (f"{topic} failed".encode(), topic)
                (await ack(peer, again, topic, group=group)).raise_for_code("ack")
                assert await popped(peer, topic, group=group) == []

    def peek_header(topic: str, group: str) -> headers.PeekHeader:
        return headers.PeekHeader(group=group, topic=topic, queue_id=-1, count_max=32)

    run(main())


def test_the_time_may_be_changed_and_the_old_handle_is_worth_nothing_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=100) as server, connected(server.address) as peer:
            await filled(peer, 2)
            first, second = await popped(peer, invisible_time_ms=600)
            reply, handle = await change(peer, first, 200_000)
            told = reply.raise_for_code("change").header(headers.ChangeInvisibleTimeReply)
            old = ReceiptHandle.decode(first.handle)
            assert told.pop_time_ms > old.pop_time_ms
            assert (told.invisible_time_ms, told.revive_queue_id) == (200_000, old.revive_queue_id)
            assert [m.body for m in messages(await pop(peer, **HOLD))] == [second.body]
            assert in_flight(server) == 1
            (await ack(peer, first._replace(handle=handle))).raise_for_code("ack")
            assert in_flight(server) == 0

    run(main())


@pytest.mark.parametrize(("flush", "order"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", False), ("ASYNC_FLUSH", True)])
def test_a_batch_acknowledges_several_of_one_pop(tmp_path: Path, flush: str, order: bool) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_disk_type=flush) as server, connected(server.address) as peer:
            await filled(peer, 5)
            found = await popped(peer, order=order)
            handle = ReceiptHandle.decode(found[0].handle)
            batch = AckedBatch(
                group=GROUP,
                topic=TOPIC,
                start_offset=handle.start_offset,
                queue_id=0,
                revive_queue_id=handle.revive_queue_id,
                pop_time_ms=handle.pop_time_ms,
                invisible_time_ms=handle.invisible_time_ms,
                bits=pop_records.bits_of(0, [0, 2, 4]),
            )
            body = pop_records.encode_batch_ack(BatchAck(broker_name=handle.broker_name, acks=[batch]))
            (await peer.request(RequestCode.BATCH_ACK_MESSAGE, None, body)).raise_for_code("ack")
            if order:
                # From the first that was not acknowledged on, as in RocketMQ.
                for message in (found[1], found[3]):
                    (await change(peer, message, 0))[0].raise_for_code("change")
                assert bodies_of(await popped(peer, order=order)) == [b"1", b"2", b"3", b"4"]
            else:
                assert in_flight(server) == 2
            for nothing in (b"", b"{}", b'{"acks":[]}'):
                assert (await peer.request(RequestCode.BATCH_ACK_MESSAGE, None, nothing)).code == 208

    run(main())


def test_a_message_wakes_one_who_waits_and_every_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer)
            waiting = server._pop_state.waiting
            pops = [asyncio.create_task(popped(peer, count_max=1, **HOLD)) for _ in range(3)]
            pops += [asyncio.create_task(popped(other, TOPIC, 2, group="H", **HOLD))]
            await until(lambda: waiting.total == 4)
            info = headers.PollingInfoHeader(group=GROUP, topic=TOPIC, queue_id=-1)
            told = (await peer.request(RequestCode.POLLING_INFO, info)).header(headers.PollingInfoReply)
            assert told.polling_count == 3
            await sent(peer, b"0", TOPIC, 2)
            await until(lambda: sum(p.done() for p in pops) == 2)
            assert waiting.total == 2
            assert [[m.body for m in p.result()] for p in pops if p.done()] == [[b"0"], [b"0"]]
            assert pops[3].done()
            await sent(peer, b"1", TOPIC, 3)
            await sent(peer, b"2", TOPIC, 1)
            given = [m.body for p in pops[:3] for m in await p]
            assert sorted(given) == [b"0", b"1", b"2"]

    run(main())


def test_a_connection_that_ends_frees_its_waiters_and_loses_no_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            async with connected(server.address) as gone:
                lost = asyncio.create_task(popped(gone, **HOLD))
                await until(lambda: server._pop_state.waiting.total == 1)
                kept = asyncio.create_task(popped(peer, **HOLD))
                await until(lambda: server._pop_state.waiting.total == 2)
            await until(lambda: server._pop_state.waiting.total == 1)
            await asyncio.gather(lost, return_exceptions=True)
            await sent(peer, b"0")
            assert [m.body for m in await kept] == [b"0"]

    run(main())


@pytest.mark.shows("members of popping groups that close hold nothing back")
def test_a_member_that_leaves_is_answered_before_its_leave_and_loses_no_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer)
            left = [asyncio.create_task(pop(peer, **HOLD)) for _ in range(2)]
            others = asyncio.create_task(popped(peer, group="H", **HOLD))
            stays = asyncio.create_task(popped(other, **HOLD))
            await until(lambda: server._pop_state.waiting.total == 4)
            leave = headers.UnregisterClientHeader(client_id="c", consumer_group=GROUP)
            leaving = asyncio.create_task(peer.request(RequestCode.UNREGISTER_CLIENT, leave))
            assert [(await task).code for task in left] == [210, 210]
            (await leaving).raise_for_code("leave")
            assert server._pop_state.waiting.total == 2
            await sent(peer, b"0")
            assert [m.body for found in (await stays, await others) for m in found] == [b"0", b"0"]

    run(main())


@pytest.mark.parametrize("how", ["pop", "notification"])
def test_one_whose_connection_is_being_closed_keeps_no_message_from_the_next(tmp_path: Path, how: str) -> None:
    async def ask(peer: Peer, queue_id: int) -> bool:
        if how == "pop":
            return [m.body for m in await popped(peer, TOPIC, queue_id, **HOLD)] == [b"0"]
        header = headers.NotificationHeader(
            group=GROUP, topic=TOPIC, queue_id=queue_id, poll_time_ms=HOLD["poll_time_ms"], born_time_ms=0
        )
        found = (await peer.request(RequestCode.NOTIFICATION, header)).header(headers.NotificationReply)
        return bool(found.has_message)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as gone:
            await create(peer)
            pops = server._pop_state
            waiting = pops.waiting if how == "pop" else pops.notified
            # All queues, as RocketMQ reads any number below 0.
            first, second = (gone, peer) if how == "pop" else (peer, gone)
            asked = [asyncio.create_task(ask(first, -1))]
            await until(lambda: waiting.total == 1)
            asked.append(asyncio.create_task(ask(second, -5)))
            await until(lambda: waiting.total == 2)
            # The connections end in a later turn than the message comes.
            arriving = asyncio.create_task(sent(peer, b"0"))
            owners: list[Any] = list(waiting._owned)
            closing = owners[0 if how == "pop" else 1]
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(type(closing), "is_open", property(lambda self: self is not closing))
                await arriving
                assert await asyncio.wait_for(asked[0 if how == "notification" else 1], 3)

    run(main())


def test_what_was_noted_is_given_out_where_the_next_queue_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 2, 2, None)
            store_check_point, calls = server._pops.store_check_point, []

            def full_later(*args: Any, **named: Any) -> int:
                calls.append(args)
                if len(calls) == 2:
                    raise ServerError(14, "the disk is full")
                return store_check_point(*args, **named)

            monkeypatch.setattr(server._pops, "store_check_point", full_later)
            first = await popped(peer)
            assert (len(first), in_flight(server)) == (1, 1)
            assert bodies_of([*first, *await popped(peer)]) == [b"0", b"1"]

    run(main())


def test_a_filter_leaves_a_waiter_asleep_until_something_matches(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for expression, kind in (("b", "TAG"), ("TAGS = 'b'", "SQL92")):
                waiting = asyncio.create_task(popped(peer, expression=expression, expression_type=kind, **HOLD))
                await until(lambda: server._pop_state.waiting.total == 1)
                for tag in "aaab":
                    assert not waiting.done()
                    await sent(peer, tag.encode(), pairs={"TAGS": tag})
                assert [m.body for m in await waiting] == [b"b"]

    run(main())


def test_where_too_many_wait_the_next_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"pop_waiting_of_queue_max": 1, "pop_waiting_max": 3}
        async with broker(tmp_path, **limits) as server, connected(server.address) as peer:
            await create(peer)
            held = [asyncio.create_task(pop(peer, **HOLD)) for _ in range(2)]
            await until(lambda: server._pop_state.waiting.total == 2)
            assert (await pop(peer, **HOLD)).code == 209
            held += [asyncio.create_task(pop(peer, TOPIC, 1, **HOLD))]
            await until(lambda: server._pop_state.waiting.total == 3)
            full = await pop(peer, TOPIC, 2, **HOLD)
            assert (full.code, full.remark) == (209, "NO_MESSAGE_IN_QUEUE")
            assert full.header(headers.PopReply).rest_count == 0
            for task in held:
                task.cancel()

    run(main())


def test_whoever_waits_is_told_of_nothing_when_the_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            assert (await pop(peer, poll_time_ms=200)).code == 210
            late = await pop(peer, poll_time_ms=100, born_time_ms=int(time.time() * 1000) - 700)
            assert (late.code, late.remark) == (
                210,
                f"the broker[{server.settings.host}] pop message is timeout too much",
            )
            assert late.header(headers.PopReply).pop_time_ms == 0

    run(main())


def test_a_notification_tells_that_there_is_something(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)

            async def notified(**changes: Any) -> headers.NotificationReply:
                values = {"group": GROUP, "topic": TOPIC, "queue_id": -1, "poll_time_ms": 0} | changes
                header = headers.NotificationHeader(**values)
                reply = await peer.request(RequestCode.NOTIFICATION, header)
                return reply.raise_for_code("notification").header(headers.NotificationReply)

            assert not (await notified()).has_message
            # At once, also for a client whose clock is ahead.
            ahead = {"born_time_ms": int(time.time() * 1000) + 600_000}
            assert not (await notified(**ahead)).has_message
            assert await popped(peer, **ahead) == []
            waiting = [asyncio.create_task(notified(poll_time_ms=250_000)) for _ in range(2)]
            await until(lambda: server._pop_state.notified.total == 2)
            await sent(peer, b"0", pairs={"TAGS": "a"})
            # One message, one told: the one that came last.
            assert (await waiting[1]).has_message
            assert server._pop_state.notified.total == 1
            assert (await notified()).has_message
            assert not (await notified(expression="b", expression_type="TAG")).has_message
            await popped(peer)
            assert not (await notified()).has_message
            waiting[0].cancel()

    run(main())


def test_a_group_that_begins_at_the_end_begins_with_what_is_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5)
            assert len(await popped(peer, init_mode=1)) == 5
        async with broker(tmp_path, pop_init_by_memory=False) as server, connected(server.address) as peer:
            assert [m.body for m in await popped(peer, init_mode=1, group="H")] == [b"4"]
            assert len(await popped(peer, init_mode=0, group="I")) == 5

    run(main())


def test_an_offset_set_by_hand_is_where_the_next_pop_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5)
            assert len(await popped(peer)) == 5
            waiting = asyncio.create_task(popped(peer, **HOLD))
            await until(lambda: server._pop_state.waiting.total == 1)
            reset = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0, queue_id=0, offset=2, force=True)
            (await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).raise_for_code("reset")
            assert [m.body for m in await waiting] == [b"2", b"3", b"4"]

    run(main())


# A wrong request's code, what it changes of a right one, the answer's code.
WRONG: list[tuple[dict[str, Any], int]] = [
    ({"count_max": 33}, 29),
    ({"count_max": 0}, 29),
    ({"count_max": -1}, 29),
    ({"count_max": 1 << 62}, 29),
    ({"invisible_time_ms": -1}, 29),
    ({"invisible_time_ms": 1 << 62}, 29),
    ({"queue_id": 4}, 29),
    ({"queue_id": 1 << 40}, 29),
    ({"topic": "none"}, 17),
    ({"group": "no group!"}, 29),
    ({"born_time_ms": 1}, 210),
    ({"poll_time_ms": -(1 << 62)}, 210),
]


@pytest.mark.parametrize(("changes", "code"), WRONG, ids=str)
def test_a_wrong_pop_is_refused(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            values = dict(changes)
            topic, queue_id = values.pop("topic", TOPIC), values.pop("queue_id", -1)
            assert (await pop(peer, topic, queue_id, **values)).code == code

    run(main())


@pytest.mark.shows(
    "in flight in consumer statistics; resets of offsets, deletions of topics and groups clear what was popped"
)
def test_consumer_statistics_tell_what_is_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5)
            found = await popped(peer, count_max=3)
            (await ack(peer, found[0])).raise_for_code("ack")
            header = headers.ConsumerStatsHeader(group=GROUP, topic=TOPIC)

            async def row() -> dict[str, int]:
                body = (await peer.request(RequestCode.GET_CONSUME_STATS, header)).raise_for_code("stats").body
                mark = b'"queueId":0,"topic":"T"}:'
                start = body.index(mark) + len(mark)
                found: dict[str, int] = json.loads(body[start : body.index(b"}", start) + 1])
                return found

            async def committed() -> bool:
                return (await row())["consumerOffset"] == 3

            while not await committed():
                await asyncio.sleep(0.01)
            told = await row()
            assert (told["brokerOffset"], told["pullOffset"] - told["consumerOffset"]) == (5, 2)

    run(main())


def test_whoever_waits_hears_that_the_topic_or_the_group_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for gone, code in (
                ((RequestCode.DELETE_SUBSCRIPTIONGROUP, headers.DeleteGroupHeader(group=GROUP)), 26),
                ((RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=TOPIC)), 17),
            ):
                wanted = headers.NotificationHeader(group=GROUP, topic=TOPIC, queue_id=-1, **HOLD)
                waiting = [peer.ask(RequestCode.NOTIFICATION, wanted), asyncio.ensure_future(pop(peer, **HOLD))]
                state = server._pop_state
                await until(lambda state=state: (state.waiting.total, state.notified.total) == (1, 1))
                (await peer.request(*gone)).raise_for_code("delete")
                assert [(await answer).code for answer in waiting] == [code, code]
                assert (state.waiting.total, state.notified.total) == (0, 0)

    run(main())


@pytest.mark.shows("a group deleted with its offsets stays deleted")
def test_a_group_deleted_with_its_offsets_gets_nothing_of_before(tmp_path: Path) -> None:
    """Nor is it made again by what it had, once that would be due."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5)
            assert len(await popped(peer, invisible_time_ms=100)) == 5
            header = headers.DeleteGroupHeader(group=GROUP, clean_offsets=True)
            (await peer.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).raise_for_code("delete")
            assert in_flight(server) == 0
            # Another group's are delivered later, so those would have been.
            await popped(peer, group="later", invisible_time_ms=150)
            await until(lambda: server._services._pops._revive.revived_count)
            assert GROUP not in server._groups.table
            assert bodies_of(await popped(peer)) == [b"%d" % n for n in range(5)]
            assert await popped(peer) == []
            assert len(server._pops.check_points.of_group(GROUP)) == 1
            await server.kill()
        async with broker(tmp_path) as server:
            assert len(server._pops.check_points.of_group(GROUP)) == 1

    run(main())


def test_a_cloned_offset_counts_for_a_group_that_pops(tmp_path: Path) -> None:
    """Whatever it popped last, whose offset is not committed yet."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5, queues=1)
            server._offsets.commit("source", TOPIC, 0, 2)
            assert len(await popped(peer)) == 5
            assert server._pops.next_offset(TOPIC, GROUP, 0) == 5
            header = headers.CloneOffsetsHeader(source="source", target=GROUP, topic=TOPIC)
            (await peer.request(RequestCode.CLONE_GROUP_OFFSET, header)).raise_for_code("clone")
            assert bodies_of(await popped(peer)) == [b"2", b"3", b"4"]

    run(main())
