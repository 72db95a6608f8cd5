"""Topics with queue.type=BatchCQ on the wire: what is stored, told and given back."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    broker,
    connected,
    create,
    create_group,
    pairs,
    pull,
    pulled,
    run,
    send,
    sent,
)

from rocketspark.errors import ServerError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import SendReply
from rocketspark.protocol.message import batch, message_ids, properties, record
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("inner batches, topics with queue.type=BatchCQ")

BATCHED = "+queue.type=BatchCQ"


def items(count: int) -> list[BatchItem]:
    return [BatchItem(i, b"body %d" % i, properties.encode({"UNIQ_KEY": f"U{i}"}).encode()) for i in range(count)]


async def send_batch(peer: Peer, count: int, code: int = 320, **changes: Any) -> Reply:
    outer = {"UNIQ_KEY": "OUTER", "WAIT": "true"} | changes.pop("pairs", {})
    return await send(peer, batch.encode(items(count)), code=code, batch=True, pairs=outer, **changes)


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_batch_is_one_record(tmp_path: Path, code: RequestCode, flush: str) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_disk_type=flush) as server, connected(server.address) as peer:
            await create(peer, attributes=BATCHED)
            assert await sent(peer, b"before") == 0
            reply = (await send_batch(peer, 5, code)).raise_for_code("batch")
            answer = reply.header(SendReply)
            assert (answer.queue_offset, answer.transaction_id) == (1, "OUTER")
            assert b'"batchUniqId":"OUTER"' in bytes(reply.ext)
            assert await sent(peer, b"after") == 6
            before, inner, after = await pulled(peer)
            assert answer.message_id == message_ids.offset_message_id(inner.store_host, inner.position)
            assert [(m.queue_offset, m.sys_flag) for m in (before, inner, after)] == [(0, 0), (1, 0xC0), (6, 0)]
            assert inner.body == batch.encode(items(5))
            assert pairs(inner) == {
                "UNIQ_KEY": "OUTER",
                "WAIT": "true",
                "INNER_NUM": "5",
                "INNER_BASE": "1",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "CLUSTER": "DefaultCluster",
            }
            found = await pull(peer, TOPIC, 0, 3)
            assert found.header(headers.PullReply).next_offset == 7
            assert [m.queue_offset for m in record.decode_messages(found.body)] == [*range(1, 6), 6]
            limited = (await pull(peer, TOPIC, 0, 0, count_max=3)).header(headers.PullReply)
            assert (limited.next_offset, limited.max_offset) == (1, 7)
        # The topic's file tells the next start what its queues are.
        async with broker(tmp_path, flush_disk_type=flush) as server, connected(server.address) as peer:
            assert (await send_batch(peer, 2, code)).header(SendReply).queue_offset == 7
            assert len(await pulled(peer)) == 4

    run(main())


def test_a_batch_without_an_id_of_its_own_becomes_one_message_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, attributes=BATCHED)
            reply = await send(peer, batch.encode(items(3)), code=320, batch=True, pairs={"WAIT": "true"})
            assert len(reply.raise_for_code("batch").header(SendReply).message_id.split(",")) == 3
            assert [(m.queue_offset, m.body) for m in await pulled(peer)] == [(i, b"body %d" % i) for i in range(3)]

    run(main())


def test_a_held_pull_gets_a_batch_that_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, attributes=BATCHED)
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 0, sys_flag=6, suspend_ms=20_000))
            await asyncio.sleep(0)
            await send_batch(peer, 4)
            found = await held
            assert found.header(headers.PullReply).next_offset == 4

    run(main())


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("own_id", [True, False])
def test_where_its_messages_stand_a_sender_does_not_say(tmp_path: Path, code: RequestCode, own_id: bool) -> None:
    said = {"INNER_NUM": "1", "INNER_BASE": "1000"}
    inner = [BatchItem(0, b"%d" % n, properties.encode(said | {"UNIQ_KEY": f"U{n}"}).encode()) for n in range(3)]

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, attributes=BATCHED)
            outer = said | ({"UNIQ_KEY": "OUTER"} if own_id else {})
            reply = await send(peer, batch.encode(inner), code=code, sys_flag=0xC0, pairs=outer)
            reply.raise_for_code("a batch")
            assert await sent(peer, b"of another") == 3
            stored = (await pull(peer, TOPIC, 0, 0, count_max=32)).body
            expected = [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"of another")]
            assert [(m.queue_offset, m.body) for m in record.decode_messages(stored)] == expected
            # Nobody could tell what such a one holds: a thousand times what its topic may take.
            for flag in (0xC1, 0xC4):
                reply = await send(peer, zlib.compress(batch.encode(inner)), sys_flag=flag, pairs=outer)
                assert reply.code == ResponseCode.MESSAGE_ILLEGAL

    run(main())


def test_what_does_not_fit_the_kind_of_queue_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for flag in (0x80, 0xC0):
                reply = await send(peer, batch.encode(items(2)), sys_flag=flag, pairs={"INNER_NUM": "2"})
                assert reply.code == ResponseCode.MESSAGE_ILLEGAL
                assert "queue.type=BatchCQ" in (reply.remark or "")
            for topic, attributes in ((TOPIC, BATCHED), ("new", "+queue.type=Other")):
                with pytest.raises(ServerError, match=r"queue\.type") as refused:
                    await create(peer, topic, attributes=attributes)
                assert refused.value.code == ResponseCode.INVALID_PARAMETER
            await create(peer, attributes="+queue.type=SimpleCQ")
            await create(peer, "batched", attributes=BATCHED)
            with pytest.raises(ServerError, match="cannot change"):
                await create(peer, "batched", attributes="-queue.type")
            # A message within a batch cannot go back alone.
            await create_group(peer)
            reply = await send(peer, batch.encode(items(2)), "batched", code=320, batch=True, pairs={"UNIQ_KEY": "O"})
            position = message_ids.parse_offset_message_id(reply.header(SendReply).message_id)[2]
            back = headers.SendBackHeader(physical_offset=position, group=GROUP, delay_level=0)
            reply = await peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL

    run(main())
