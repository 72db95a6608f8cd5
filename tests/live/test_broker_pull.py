"""Pulls: every outcome of the protocol's table, filters, and requests that are held until something comes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    pull,
    pull_header,
    pulled,
    records,
    run,
    send,
    sent,
    until,
)
from tests.support.patience import LIMIT_S, in_time

from rocketspark.model.text import string_hash
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullReply
from rocketspark.protocol.message import batch
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "long polling, tag hashes, flow limits",
    "Arrow from the socket to Spark, many pulls in flight",
)

# Longer than any test: what is answered was not due.
HOLD = {"sys_flag": 6, "suspend_ms": 600_000}


async def filled(peer: Peer, count: int = 5, queue_id: int = 0) -> None:
    """The topic with so many messages in a queue, tags a, b, a, b, …"""
    await create(peer)
    for n in range(count):
        await sent(peer, b"%d" % n, TOPIC, queue_id, pairs={"TAGS": "ab"[n % 2]})


# offset, options -> code, next offset, remark; the queue holds the offsets 0 to 4.
OUTCOMES: list[tuple[int, int, dict[str, Any], int, int, str]] = [
    (0, 0, {}, 0, 5, "FOUND"),
    (0, 3, {}, 0, 5, "FOUND"),
    (0, 0, {"count_max": 2}, 0, 2, "FOUND"),
    (0, 0, {"subscription": "b"}, 0, 5, "FOUND"),
    (0, 0, {"subscription": "a", "count_max": 1}, 0, 2, "FOUND"),
    (0, 0, {"subscription": "a || b"}, 0, 5, "FOUND"),
    (0, 0, {"subscription": "NothingHasThisTag"}, 20, 5, "NO_MATCHED_MESSAGE"),
    (0, 3, {"subscription": "c"}, 20, 5, "NO_MATCHED_MESSAGE"),
    (0, 5, {}, 19, 5, "OFFSET_OVERFLOW_ONE"),
    (0, 6, {}, 21, 5, "OFFSET_OVERFLOW_BADLY"),
    (0, 9999, {}, 21, 5, "OFFSET_OVERFLOW_BADLY"),
    (0, -1, {}, 21, 0, "OFFSET_TOO_SMALL"),
    (1, 0, {}, 19, 0, "NO_MESSAGE_IN_QUEUE"),
    (1, 7, {}, 21, 0, "NO_MESSAGE_IN_QUEUE"),
    (1, -1, {}, 21, 0, "NO_MESSAGE_IN_QUEUE"),
]


@pytest.mark.parametrize("held", [False, True], ids=["at-once", "may-be-held"])
def test_every_outcome(tmp_path: Path, held: bool) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            for queue_id, offset, options, code, following, remark in OUTCOMES:
                hold = {"sys_flag": 6, "suspend_ms": 10} if held else {}
                reply = await pull(peer, TOPIC, queue_id, offset, **hold | options)
                where = (queue_id, offset, options)
                assert (reply.code, reply.remark) == (code, remark), where
                header = reply.header(PullReply)
                top = 5 if queue_id == 0 else 0
                assert (header.next_offset, header.min_offset, header.max_offset) == (following, 0, top), where
                assert (header.suggested_broker_id, header.topic_sys_flag, header.group_sys_flag) == (0, 0, 0)
                assert bool(reply.body) == (code == 0), where

    run(main())


def test_an_offset_before_the_oldest_moves_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            # As after the deletion of old files: the queue begins at 3.
            queue = server.store.consume_queues.find(TOPIC, 0)
            assert queue is not None
            queue.min = 3
            reply = await pull(peer, TOPIC, 0, 1)
            header = reply.header(PullReply)
            assert (reply.code, reply.remark, header.next_offset, header.min_offset) == (21, "OFFSET_TOO_SMALL", 3, 3)
            queue.min = 0

    run(main())


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"queue_id": 4}, 29, "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4]"),
    ({"queue_id": -1}, 29, "queueId[-1] is illegal"),
    ({"topic": "NoSuchTopic"}, 17, "topic[NoSuchTopic] not exist, apply first please!"),
    ({"sys_flag": 0, "group": "unknown"}, 24, "the consumer's group info not exist"),
    ({"group": "bad group"}, 29, "group"),
    ({"expression_type": "SQL92", "subscription": "a = 1"}, 1, "does not support consumer to filter message by SQL92"),
]


def test_what_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            for changes, code, remark in REFUSED:
                reply = await peer.request(RequestCode.PULL_MESSAGE, pull_header(**changes))
                assert remark in (reply.remark or ""), reply
                assert reply.code == code, (changes, reply)
                assert reply.body == b""

    run(main())


def test_an_expression_that_is_none_is_refused_where_expressions_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, property_filter=True) as server, connected(server.address) as peer:
            await filled(peer)
            reply = await pull(peer, expression_type="SQL92", subscription="a =")
            assert (reply.code, bool(reply.remark), reply.body) == (23, True, b"")
            await sent(peer, b"wanted", pairs={"n": "5"})
            found = await pulled(peer, expression_type="SQL92", subscription="n > 4")
            assert [m.body for m in found] == [b"wanted"]

    run(main())


def test_groups_must_exist_where_they_are_not_made_by_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, auto_create_group=False) as server, connected(server.address) as peer:
            await filled(peer)
            reply = await pull(peer)
            assert (reply.code, reply.remark) == (26, "subscription group [G] does not exist")
            assert len(await pulled(peer, group="TOOLS_CONSUMER")) == 5

    run(main())


def test_the_registered_subscription_is_used_unless_the_request_brings_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            await beat(peer, topics={TOPIC: "b"}, version=10)
            own = {"sys_flag": 0, "subscription": None, "subscription_version": 10}
            assert [m.body for m in await pulled(peer, **own)] == [b"1", b"3"]
            # An older version is served with the newer subscription, a newer one waits for its heartbeat.
            assert [m.body for m in await pulled(peer, **own | {"subscription_version": 9})] == [b"1", b"3"]
            reply = await pull(peer, **own | {"subscription_version": 11})
            assert (reply.code, "subscription not latest" in (reply.remark or "")) == (25, True)
            await create(peer, "Other")
            reply = await pull(peer, "Other", **own)
            assert (reply.code, reply.remark) == (24, "the consumer's subscription not exist: Other")
            await beat(peer, topics={TOPIC: "a"}, version=11)
            assert [m.body for m in await pulled(peer, **own | {"subscription_version": 11})] == [b"0", b"2", b"4"]
            assert len(await pulled(peer, subscription="*")) == 5

    run(main())


def test_tags_are_told_apart_by_their_hash_alone(tmp_path: Path) -> None:
    """AaAa and BBBB have one hash: the client tells them apart."""
    assert string_hash("AaAa") == string_hash("BBBB")

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for tag in ("AaAa", "BBBB", "other"):
                await sent(peer, tag.encode(), pairs={"TAGS": tag})
            await sent(peer, b"none")
            assert [m.body for m in await pulled(peer, subscription="AaAa")] == [b"AaAa", b"BBBB"]
            assert [m.body for m in await pulled(peer, subscription=" other || BBBB ")] == [b"AaAa", b"BBBB", b"other"]
            for everything in ("*", "", None, " * ", "||"):
                assert len(await pulled(peer, subscription=everything)) == 4

    run(main())


def test_a_pull_takes_no_more_than_the_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            rows = [BatchItem(0, b"%04d" % n, b"") for n in range(200)]
            (await send(peer, batch.encode(rows), code=RequestCode.SEND_BATCH_MESSAGE)).raise_for_code("send")
            for n in range(5):
                await sent(peer, bytes(100_000), TOPIC, 1, pairs={"n": str(n)})
            assert len(await pulled(peer)) == 32
            assert len(await pulled(peer, count_max=100_000)) == 32
            assert len(await pulled(peer, count_max=0)) == len(await pulled(peer, count_max=-1)) == 1
            # 256 KiB hold two of these, 150 000 bytes one; one is always given.
            assert [len(await pulled(peer, TOPIC, 1, bytes_max=m)) for m in (None, 10**9, 150_000, 1, 0)] == [
                2,
                2,
                1,
                1,
                2,
            ]
            # Asked in bulk, as much as one frame takes well.
            assert len(await pulled(peer, count_max=150, bulk=True)) == 150
            assert len(await pulled(peer, TOPIC, 1, bulk=True)) == 5

    run(main())


@pytest.mark.parametrize("run_rows", [1, 3, 200])
def test_a_bulk_pull_brings_what_single_pulls_bring(tmp_path: Path, run_rows: int) -> None:
    """Records that lie together, and ones among those of another queue: in parts, or copied to one."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for start in range(0, 600, run_rows):
                for queue_id in (0, 1):
                    rows = [BatchItem(0, b"%d-%d" % (queue_id, n) * 40, b"") for n in range(start, start + run_rows)]
                    code = RequestCode.SEND_BATCH_MESSAGE
                    (await send(peer, batch.encode(rows), TOPIC, queue_id, code=code)).raise_for_code("send")
            for queue_id in (0, 1):
                single = [m for at in range(0, 600, 32) for m in await pulled(peer, TOPIC, queue_id, at)]
                bulk = await pulled(peer, TOPIC, queue_id, bulk=True, count_max=4096)
                assert [m.body for m in bulk] == [b"%d-%d" % (queue_id, n) * 40 for n in range(600)]
                assert bulk == single

    run(main())


def test_a_scan_that_matches_nothing_ends_and_says_where_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            rows = [BatchItem(0, b"", b"TAGS\x01a\x02") for _ in range(1000)]
            (await send(peer, batch.encode(rows), code=RequestCode.SEND_BATCH_MESSAGE)).raise_for_code("send")
            await sent(peer, b"wanted", pairs={"TAGS": "b"})
            reply = await pull(peer, subscription="b")
            following = reply.header(PullReply).next_offset
            # 16 000 bytes of the queue's units are looked at.
            assert (reply.code, following) == (20, 800)
            nothing = await pull(peer, bulk=True, subscription="b")
            at_end = await pull(peer, TOPIC, 0, 1001, bulk=True)
            assert [(r.code, r.body) for r in (nothing, at_end)] == [(20, b""), (19, b"")]
            assert [m.body for m in await pulled(peer, TOPIC, 0, following, subscription="b")] == [b"wanted"]

    run(main())


@pytest.mark.shows("long filtered scans do not hold up other connections")
def test_long_scans_of_one_connection_do_not_hold_up_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            rows = [BatchItem(0, b"", b"n\x015\x02") for _ in range(1000)]
            (await send(peer, batch.encode(rows), code=RequestCode.SEND_BATCH_MESSAGE)).raise_for_code("send")
            scan = pull_header(TOPIC, 0, 0, expression_type="SQL92", subscription="n > 5")
            scans = [peer.ask(RequestCode.PULL_MESSAGE, scan) for _ in range(60)]
            first = await other.ask(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, 0))
            assert first.code == 0
            assert sum(s.done() for s in scans) < 30
            for reply in await asyncio.gather(*scans):
                assert (reply.code, reply.header(PullReply).next_offset) == (20, 800)

    run(main())


async def holding(server: Any, peer: Peer, count: int = 1, /, **changes: Any) -> asyncio.Future[Reply]:
    """A pull that the broker holds by now, or has answered since its time was over."""
    future = peer.ask(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, changes.pop("offset", 0), **HOLD | changes))
    await until(lambda: future.done() or server._long_polling.waiting == count)
    return future


@pytest.mark.shows("pull, tag filter, long polling")
@pytest.mark.parametrize("known", [True, False], ids=["queue-with-messages", "queue-without"])
def test_a_held_pull_is_answered_as_soon_as_something_comes(tmp_path: Path, known: bool) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as sender:
            await create(peer)
            if known:
                await sent(peer, b"before")
            future = await holding(server, peer, offset=int(known))
            await sent(sender, b"now")
            reply = await asyncio.wait_for(future, LIMIT_S)
            assert [m.body for m in records(reply)] == [b"now"]
            assert (reply.code, reply.header(PullReply).next_offset) == (0, 1 + known)
            assert server._long_polling.waiting == 0

    run(main())


def test_a_held_pull_of_the_sender_s_own_connection_is_answered_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            future = await holding(server, peer)
            await sent(peer, b"now")
            assert [m.body for m in records(await asyncio.wait_for(future, LIMIT_S))] == [b"now"]

    run(main())


def test_a_batch_answers_a_held_pull_with_all_its_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as sender:
            await create(peer)
            future = await holding(server, peer)
            await send(sender, batch.encode([BatchItem(0, b"%d" % n, b"") for n in range(3)]), code=320)
            assert [m.body for m in records(await asyncio.wait_for(future, LIMIT_S))] == [b"0", b"1", b"2"]

    run(main())


def test_a_held_pull_ends_with_code_19_when_its_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 2)
            started = time.perf_counter()
            reply = await pull(peer, TOPIC, 0, 2, sys_flag=6, suspend_ms=150)
            assert 0.14 < time.perf_counter() - started < 50
            header = reply.header(PullReply)
            assert (reply.code, reply.remark) == (19, "OFFSET_OVERFLOW_ONE")
            assert (header.next_offset, header.max_offset) == (2, 2)

    run(main())


@pytest.mark.parametrize(
    ("changes", "polling"),
    [
        ({"sys_flag": 4}, True),
        ({"suspend_ms": 0}, True),
        ({"suspend_ms": -5}, True),
        ({}, False),
    ],
    ids=["no-suspend-bit", "no-time", "negative-time", "polling-off"],
)
def test_what_is_not_held(tmp_path: Path, changes: dict[str, Any], polling: bool) -> None:
    async def main() -> None:
        async with broker(tmp_path, long_polling=polling) as server, connected(server.address) as peer:
            await create(peer)
            started = time.perf_counter()
            assert (await pull(peer, **HOLD | changes)).code == 19
            assert time.perf_counter() - started < 50

    run(main())


def test_a_held_pull_sleeps_through_messages_that_its_tags_do_not_match(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as sender:
            await create(peer)
            future = await holding(server, peer, subscription="b")
            everything = await holding(server, sender, 2)
            await sent(sender, b"0", pairs={"TAGS": "a"})
            await sent(sender, b"1")
            assert [m.body for m in records(await asyncio.wait_for(everything, LIMIT_S))] == [b"0"]
            assert not future.done()
            assert server._long_polling.waiting == 1
            await sent(sender, b"2", TOPIC, 1, pairs={"TAGS": "b"})
            assert not future.done(), "another queue's message"
            await sent(sender, b"3", pairs={"TAGS": "b"})
            reply = await asyncio.wait_for(future, LIMIT_S)
            assert [m.body for m in records(reply)] == [b"3"]
            assert reply.header(PullReply).next_offset == 3

    run(main())


def test_a_held_pull_that_slept_through_others_goes_on_behind_them(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await create(peer)
            future = await holding(server, peer, subscription="b", suspend_ms=300)
            for _ in range(3):
                await sent(peer, b"x", pairs={"TAGS": "a"})
            reply = await asyncio.wait_for(future, LIMIT_S)
            assert (reply.code, reply.header(PullReply).next_offset) == (20, 3)

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_a_held_pull_whose_connection_ended_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as sender:
            await create(sender)
            async with connected(server.address) as peer:
                await holding(server, peer)
            await until(lambda: len(server._server.peers) == 1)
            await sent(sender, b"0")
            await until(lambda: server._long_polling.waiting == 0)
            assert [m.body for m in await pulled(sender)] == [b"0"]

    run(main())


def test_many_held_pulls_all_get_the_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as sender:
            await create(peer)
            futures = [await holding(server, peer, n + 1) for n in range(50)]
            await sent(sender, b"0")
            for reply in await asyncio.wait_for(asyncio.gather(*futures), LIMIT_S):
                assert [m.body for m in records(reply)] == [b"0"]

    run(main())


def test_a_broker_that_stops_answers_those_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            future = await holding(server, peer)
            closing = asyncio.ensure_future(server.close())
            assert (await asyncio.wait_for(future, LIMIT_S)).code == 19
            await asyncio.wait_for(peer.wait_closed(), LIMIT_S)
            await closing

    run(main())


def test_a_topic_deleted_while_a_pull_is_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 2)
            future = await holding(server, peer, offset=2, suspend_ms=200)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=TOPIC))).raise_for_code(
                ""
            )
            reply = await asyncio.wait_for(future, LIMIT_S)
            assert reply.code in (17, 19, 21)
            assert (await pull(peer)).code == 17
            # Made again it begins anew.
            await create(peer)
            assert await sent(peer, b"new") == 0
            assert [m.body for m in await pulled(peer)] == [b"new"]

    run(main())


def test_a_pull_commits_the_offset_it_brings(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)

            async def committed() -> int:
                header = headers.QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
                reply = await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
                return reply.raise_for_code("query").header(headers.OffsetReply).offset

            await pull(peer, TOPIC, 0, 4, sys_flag=4, commit_offset=4)
            assert await committed() == 0
            await pull(peer, TOPIC, 0, 4, sys_flag=5, commit_offset=4)
            assert await committed() == 4
            # The offset counts even where nothing is found, and when the pull is held.
            await pull(peer, TOPIC, 0, 5, sys_flag=7, commit_offset=5, suspend_ms=10)
            assert await committed() == 5

    run(main())


def test_lite_pulls_are_pulls(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 1)
            reply = await peer.request(RequestCode.LITE_PULL_MESSAGE, pull_header(sys_flag=0x14))
            assert [m.body for m in records(reply)] == [b"0"]

    run(main())


def test_a_reader_far_behind_gets_everything_in_order(tmp_path: Path) -> None:
    """Across log files and queue files, filtered and not."""

    async def main() -> None:
        async with (
            broker(tmp_path, log_file_bytes=1 << 20, queue_file_bytes=2000) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            for n in range(12):
                rows = [BatchItem(0, b"%06d" % (n * 50 + i) * 500, b"TAGS\x01t%d\x02" % (i % 3)) for i in range(50)]
                (await send(peer, batch.encode(rows), code=320)).raise_for_code("send")
            for expression, wanted in (("*", range(600)), ("t1", [n for n in range(600) if n % 50 % 3 == 1])):
                got: list[int] = []
                offset = 0
                while offset < 600:
                    reply = await pull(peer, TOPIC, 0, offset, subscription=expression)
                    assert reply.code in (0, 20)
                    got += [int(m.body[:6]) for m in records(reply)]
                    offset = reply.header(PullReply).next_offset
                assert got == list(wanted)

    run(main())
