"""Bodies that cannot be had, and bodies that inflate to far more than they are: nobody else waits, nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Any

import pytest
from tests.unit.client.consumer.test_pull_consumer import Q0, read
from tests.unit.client.consumer.test_push_consumer import SEND_BACK, consumer
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer
from rocketspark.client.consumer.puller import ProcessQueue
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, record, sysflags
from rocketspark.protocol.message.compression import INFLATED_BYTES_MAX

ZLIB = sysflags.COMPRESSED | sysflags.COMPRESSION_ZLIB
INNER = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
POISON: dict[str, tuple[bytes, int]] = {
    "no zlib": (b"not deflated", ZLIB),
    "cut off": (zlib.compress(b"x" * 1000)[:-5], ZLIB),
    "over 64 MiB": (zlib.compress(bytes(INFLATED_BYTES_MAX + 1), 9), ZLIB),
    "no lz4": (b"not lz4", sysflags.COMPRESSED | sysflags.COMPRESSION_LZ4),
    "no zstd": (b"not zstd", sysflags.COMPRESSED | sysflags.COMPRESSION_ZSTD),
    "no batch": (b"no messages", INNER),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "rocketspark.client")


@pytest.mark.shows("mended: one body that does not inflate stops its queue in every group")
@pytest.mark.parametrize("mode", ["concurrent", "batches", "ordered", "broadcast"])
@pytest.mark.parametrize("what", POISON)
def test_it_is_set_aside_and_holds_up_nobody(what: str, mode: str, tmp_path: Any) -> None:
    body, flag = POISON[what]

    @in_loop
    async def run() -> None:
        more: dict[str, Any] = {
            "concurrent": {},
            "batches": {"batch_max": 8},
            "ordered": {"ordered": True},
            "broadcast": {"broadcast": True, "offset_folder": str(tmp_path)},
        }[mode]
        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"before")
            fake.broker.put("t", 0, body, sys_flag=flag)
            fake.broker.put("t", 0, b"after")
            got: list[bytes] = []

            def listener(given: Any) -> None:
                got.extend(m.body for m in (given if isinstance(given, list) else [given]))

            c = consumer(fake, listener, **more)
            async with c:
                pullers = c._rebalance.pullers
                await until(lambda: Q0 in pullers and pullers[Q0].process_queue.lowest == 3)
            assert sorted(got) == [b"after", b"before"]
            if mode == "broadcast":
                assert fake.broker.send_backs == []
            else:
                (back,) = fake.broker.send_backs
                assert (back.delay_level, back.origin_topic) == (-1, "t")
                assert fake.broker.offsets["g", "t", 0] == 3

    run()


@pytest.mark.shows("mended: one body that does not inflate stops its queue in every group")
@in_loop
async def test_a_pull_consumer_is_given_it_as_stored_and_told_why() -> None:
    body, flag = POISON["no zlib"]
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        fake.broker.put("t", 0, b"before", "a\x01b\x02")
        fake.broker.put("t", 0, body, "UNIQ_KEY\x01u\x02", sys_flag=flag)
        fake.broker.put("t", 0, zlib.compress(b"after"), sys_flag=ZLIB)
        await c.assign([Q0])
        first, spoiled, last = await read(c, 3)
        assert (first.body_error, last.body_error, last.body) == (None, None, b"after")
        assert (spoiled.body, spoiled.message_id, spoiled.sys_flag & flag) == (body, "u", flag)
        assert spoiled.body_error is not None
        assert "does not inflate" in spoiled.body_error
        assert first.properties == {"a": "b"}


@in_loop
async def test_a_body_that_is_not_what_its_crc_says_is_asked_for_again_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.REFUSED_PAUSE_S", 0.001)
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        for i in range(3):
            fake.broker.put("t", 0, b"body %d" % i)
        stored = fake.broker.queues["t", 0]
        stored[1] = stored[1].replace(b"body 1", b"bodi 1")
        await c.assign([Q0])
        found = await read(c, 3)
        assert [(m.body, m.body_error is None) for m in found] == [
            (b"body 0", True),
            (b"bodi 1", False),
            (b"body 2", True),
        ]
        assert fake.broker.requests[RequestCode.PULL_MESSAGE] >= 4


@in_loop
async def test_a_reply_that_found_messages_and_holds_none_leads_nobody_past_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.REFUSED_PAUSE_S", 0.001)
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        whole = fake.broker._pulled
        spoil = iter((True, True))

        def spoiled(asked: Any, code: int, next_offset: int, body: bytes = b"") -> bytes:
            return whole(asked, code, next_offset, b"" if body and next(spoil, False) else body)

        monkeypatch.setattr(fake.broker, "_pulled", spoiled)
        fake.broker.put("t", 0, b"one")
        fake.broker.put("t", 0, b"two")
        await c.assign([Q0])
        assert [m.body for m in await read(c, 2)] == [b"one", b"two"]
        assert fake.broker.requests[RequestCode.PULL_MESSAGE] >= 3


@in_loop
async def test_dead_letters_that_no_broker_takes_are_passed_over_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.returned_messages.AGAIN_S", 0.001)
    body, flag = POISON["no zlib"]
    async with Fake(t=1) as fake:
        fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
        anew: list[tuple[bytes, Any]] = []

        def refuse(header: Any, sent: bytes) -> tuple[int, str]:
            anew.append((sent, header))
            return 1, "as told"

        fake.broker.rules[RequestCode.SEND_MESSAGE_V2] = refuse
        fake.broker.put("t", 0, body, sys_flag=flag)
        fake.broker.put("t", 0, b"after")
        got: list[bytes] = []
        c = consumer(fake, lambda m: got.append(m.body))
        async with c:
            pullers = c._rebalance.pullers
            await until(lambda: Q0 in pullers and pullers[Q0].process_queue.lowest == 2)
        assert got == [b"after"]
        assert fake.broker.requests[SEND_BACK] == 3
        # As it came, with the flags that say how it is compressed.
        assert [(sent, header.sys_flag) for sent, header in anew] == [(body, flag)] * 3


@pytest.mark.shows("mended: what a push consumer inflates has no bound: 3.7 GB for a 45 KB reply")
@in_loop
async def test_what_a_small_reply_inflates_to_is_bounded() -> None:
    size = 1 << 20
    bomb = zlib.compress(bytes(size), 9)
    async with Fake(t=1) as fake:
        for _ in range(64):
            fake.broker.put("t", 0, bomb, sys_flag=ZLIB)
        let_go = asyncio.Event()
        seen = 0

        async def listener(given: ReceivedMessage) -> None:
            nonlocal seen
            seen += len(given.body)
            await let_go.wait()

        c = consumer(fake, listener, threads=2, backlog_bytes_max=16 * size)
        async with c:
            pullers = c._rebalance.pullers
            await until(lambda: Q0 in pullers and not pullers[Q0].process_queue.has_room)
            process_queue = pullers[Q0].process_queue
            # What was inflated is at most one piece more than the bound.
            assert 16 <= len(process_queue) <= 24
            assert 16 * size <= process_queue.bytes <= 24 * size
            assert process_queue.next_offset == len(process_queue)
            let_go.set()
            await until(lambda: process_queue.lowest == 64)
        assert seen == 64 * size
        assert fake.broker.offsets["g", "t", 0] == 64


@pytest.mark.shows("mended: what a push consumer inflates has no bound: 3.7 GB for a 45 KB reply")
def test_a_reply_is_decoded_piece_by_piece() -> None:
    def stored(offset: int, body: bytes, flag: int = 0, pairs: bytes = b"") -> bytes:
        return record.encode(
            topic=b"t", queue_id=0, queue_offset=offset, position=0, body=body, properties=pairs, sys_flag=flag
        )

    deflated = zlib.compress(b"x" * 1000)
    inner = batch.encode([batch.BatchItem(0, b"a", b""), batch.BatchItem(0, b"b", b"")])
    data = b"".join(
        [
            stored(0, b"plain"),
            stored(1, deflated, ZLIB),
            stored(2, deflated, ZLIB),
            stored(3, b"plain"),
            stored(4, zlib.compress(inner), ZLIB | INNER, b"INNER_BASE\x014\x02"),
            stored(6, b"bad", ZLIB),
            stored(7, b"no base", INNER, "INNER_BASE\x01\u00b2\x02".encode()),
            stored(8, deflated, ZLIB),
        ]
    )
    inflation = record.Inflation(1000)
    pieces: list[list[int]] = []
    spoiled: list[int] = []
    while inflation.at < len(data):
        inflation.inflated = 0
        pieces.append([m.queue_offset for m in record.decode_messages(data, "b", inflation)])
    spoiled = [m.queue_offset for m in inflation.spoiled]
    assert (pieces, spoiled) == ([[0, 1], [2, 3], [4, 5, 6, 7, 8]], [6, 7])


def test_an_offset_that_a_message_claims_is_not_committed() -> None:
    process_queue = ProcessQueue(5, count_max=10, bytes_max=1000)
    message = record.decode_messages(
        record.encode(topic=b"t", queue_id=0, queue_offset=10**17, position=0, body=b"x", properties=b"")
    )
    process_queue.add(message)
    process_queue.next_offset = 6
    assert process_queue.lowest == 6
