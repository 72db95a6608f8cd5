"""Our own requests for many half messages at a time: SEND_HALF_BATCH and END_HALF_RANGES."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.support import TOPIC, beat, broker, connected, create, pull, records, run, send, until
from tests.support.patience import LIMIT_S

from rocketspark.broker.handlers import end_transaction
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.admin import RuntimeInfoHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.message import batch, half_ranges
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "exactly once at speed: half messages in batches, ended by ranges; the log is that of single ones byte "
    "for byte, whatever the properties; parts, overlaps, repeats, bad ranges, checks, kills, a full disk"
)

GROUP, COMMIT, ROLLBACK = "PG", 8, 12


def items(count: int, group: str = GROUP) -> bytes:
    return batch.encode(
        batch.BatchItem(0, b"tx %d" % n, f"UNIQ_KEY\x01U{n:04d}\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02".encode())
        for n in range(count)
    )


async def halves(peer: Peer, body: bytes, count: int, **changes: Any) -> tuple[int, Any]:
    values = {"sys_flag": 4, "body": body, "code": RequestCode.SEND_HALF_BATCH} | changes
    reply = await send(peer, values.pop("body"), TOPIC, 1, pairs={"UNIQ_KEY": "whole"}, **values)
    told = reply.raise_for_code("send").header(headers.SendReply)
    return told.queue_offset, half_ranges.positions_of(told.message_id, count)


async def end(peer: Peer, outcome: int, body: bytes, **changes: Any) -> Reply:
    values: dict[str, Any] = {"topic": TOPIC, "producer_group": GROUP, "outcome": outcome}
    return await peer.request(RequestCode.END_HALF_RANGES, headers.EndHalfRangesHeader(**values | changes), body)


async def visible(peer: Peer) -> list[bytes]:
    """All that is in the queue; a broker gives out a part at a time."""
    found: list[bytes] = []
    while part := records(await pull(peer, TOPIC, 1, len(found), count_max=500)):
        found += [r.body for r in part]
    return found


@pytest.mark.parametrize("count", [3, 200])
def test_a_batch_is_invisible_until_its_ranges_are_committed_once(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, positions = await halves(peer, items(count), count)
            assert await visible(peer) == []
            # In pieces that overlap, out of order, and told again.
            pieces = [(first + 1, positions[1:2]), (first, positions[:2]), (first, positions)]
            for piece in (*pieces, *pieces):
                reply = await end(peer, COMMIT, half_ranges.encode([piece]))
                assert (reply.code, bytes(reply.body)) == (0, b"")
            expected = [b"tx %d" % n for n in range(count)]
            assert sorted(await visible(peer)) == sorted(expected)

    run(main())


def test_a_reply_names_those_that_cannot_be_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, positions = await halves(peer, items(60), 60)
            await end(peer, ROLLBACK, half_ranges.encode([(first + 10, positions[10:20])]))
            parts = [(first + 30, positions[30:]), (first, positions[:30])]
            reply = await end(peer, COMMIT, half_ranges.encode(parts))
            assert half_ranges.decode_offsets(bytes(reply.body)).tolist() == list(range(first + 10, first + 20))
            assert len(await visible(peer)) == 50

    run(main())


@pytest.mark.parametrize(
    ("changes", "body", "said"),
    [
        ({}, b"", "there is none"),
        ({}, b"\0" * 11, "cut off at byte 0"),
        ({}, half_ranges.encode([(0, np.arange(1))])[:-1], "1 messages from offset 0 on, with 7 bytes"),
        ({}, half_ranges.encode([(-1, np.arange(1))]), "1 messages from offset -1 on"),
        ({}, half_ranges.encode([((1 << 63) - 2, np.arange(2))]), f"2 messages from offset {(1 << 63) - 2} on"),
        ({}, half_ranges.encode([(0, np.arange(half_ranges.COUNT_MAX + 1))]), "end them by several requests"),
        ({"outcome": 0}, half_ranges.encode([(0, np.arange(1))]), "8 commits, 12 rolls back"),
        ({"producer_group": "other"}, None, "The producer group wrong"),
        ({"topic": "other"}, None, "the half messages are not for topic 'other'"),
    ],
)
def test_bad_ranges_are_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], body: bytes | None, said: str
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, positions = await halves(peer, items(40), 40)
            asked = half_ranges.encode([(first, positions)]) if body is None else body
            reply = await end(peer, changes.pop("outcome", COMMIT), asked, **changes)
            assert reply.code in (1, 13)
            assert said in (reply.remark or "")
            assert "\n" not in (reply.remark or "")
            assert await visible(peer) == []

    run(main())


def test_a_batch_without_the_flag_or_items_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for body, flag, said in ((items(3), 0, "flag of a prepared"), (b"", 4, "empty"), (b"\0" * 30, 4, "size")):
                reply = await send(peer, body, TOPIC, 1, sys_flag=flag, code=RequestCode.SEND_HALF_BATCH)
                assert reply.code == 13
                assert said in (reply.remark or "") or "states" in (reply.remark or "")
            reply = await send(peer, items(3), "nowhere", 0, sys_flag=4, code=RequestCode.SEND_HALF_BATCH)
            assert reply.code == 3

    run(main())


def test_the_runtime_table_tells_of_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for asked in (True, None):
                reply = await peer.request(RequestCode.GET_BROKER_RUNTIME_INFO, RuntimeInfoHeader(extensions=asked))
                table = java_json.decode(reply.body, bodies.KvTable).table
                assert (table.get("halfBatches"), table.get("transactionEndsOnce")) == (
                    ("true", "true") if asked else (None, None)
                )

    run(main())


def test_a_range_that_takes_long_lets_others_have_their_turn(tmp_path: Path, monkeypatch: Any) -> None:
    """Between two pieces of one request another is answered."""
    monkeypatch.setattr(end_transaction, "TOGETHER_MAX", 10)
    monkeypatch.setattr(end_transaction, "TURN", 10)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer)
            first, positions = await halves(peer, items(500), 500)
            asked = asyncio.ensure_future(end(peer, COMMIT, half_ranges.encode([(first, positions)])))
            await until(lambda: server.store.queue_range(TOPIC, 1)[1] > 0, LIMIT_S)
            await visible(other)
            assert (await asked).code == 0
            assert len(await visible(peer)) == 500

    run(main())


def test_many_short_ranges_let_others_have_their_turn_and_are_all_ended(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(end_transaction, "TURN", 400)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer)
            first, positions = await halves(peer, items(500), 500)
            each = [(first + i, positions[i : i + 1]) for i in range(500)]
            asked = asyncio.ensure_future(end(peer, COMMIT, half_ranges.encode(each)))
            await until(lambda: server.store.queue_range(TOPIC, 1)[1] > 0, LIMIT_S)
            assert server.store.queue_range(TOPIC, 1)[1] < 500
            await visible(other)
            assert (await asked).code == 0
            assert len(await visible(peer)) == 500

    run(main())


def test_ends_one_by_one_let_others_have_their_turn(tmp_path: Path) -> None:
    """After a start, or told again late: each takes as long as dozens that end together."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, positions = await halves(peer, items(500), 500)
            transactions = server._transactions
            transactions.stop()
            transactions.start()
            turns: list[int] = [0]
            end_one = transactions.end

            def counted(*args: Any, **options: Any) -> int | None:
                turns[-1] += 1
                return end_one(*args, **options)

            async def others() -> None:
                while True:
                    await asyncio.sleep(0)
                    turns.append(0)

            transactions.end = counted  # type: ignore[method-assign]
            others_turn = asyncio.ensure_future(others())
            assert (await end(peer, COMMIT, half_ranges.encode([(first, positions)]))).code == 0
            others_turn.cancel()
            assert sum(turns) == len(await visible(peer)) == 500
            assert max(turns) <= end_transaction.SINGLE_MAX

    run(main())


def test_those_left_open_are_asked_for(tmp_path: Path) -> None:
    quick = {"transaction_timeout_ms": 100, "transaction_check_interval_ms": 50}

    async def main() -> None:
        asked: list[str] = []
        routes = Routes()

        def check(peer: Peer, request: Any, body: bytes) -> None:
            asked.append(request.ext.message_id)

        routes.add(RequestCode.CHECK_TRANSACTION_STATE, check)
        async with broker(tmp_path, **quick) as server, connected(server.address, routes) as peer:
            await create(peer)
            first, positions = await halves(peer, items(40), 40)
            await end(peer, COMMIT, half_ranges.encode([(first, positions[:30])]))
            await beat(peer, group=None, producer=GROUP)
            await until(lambda: len(set(asked)) == 10, LIMIT_S)
            assert set(asked) == {f"U{n:04d}" for n in range(30, 40)}

    run(main())


@pytest.mark.parametrize("is_started_again", [False, True])
def test_the_end_of_a_batch_whose_rest_was_lost_with_a_master_ends_no_other_rows(
    tmp_path: Path, is_started_again: bool
) -> None:
    def id_of(number: int) -> str:
        return f"7F0000010AB5D716ABCD{number:012X}"

    def rows(number: int, count: int) -> bytes:
        pairs = (f"UNIQ_KEY\x01{id_of(number + n)}\x02PGROUP\x01{GROUP}\x02".encode() for n in range(count))
        return batch.encode([batch.BatchItem(0, b"row %d" % (number + n), each) for n, each in enumerate(pairs)])

    async def main() -> None:
        async with broker(tmp_path / "first") as server, connected(server.address) as peer:
            await create(peer)
            first, at = await halves(peer, rows(9, 5), 5)
        # The new master had the first two only, and another batch came to it since.
        async with broker(tmp_path / "second") as server, connected(server.address) as peer:
            await create(peer)
            assert (await halves(peer, rows(9, 2), 2))[1].tolist() == at[:2].tolist()
            other, other_at = await halves(peer, rows(3, 3), 3)
            assert (other, other_at[0]) == (first + 2, at[2])
            if not is_started_again:
                await ends(peer, (first, at), (other, other_at))
        if is_started_again:
            async with broker(tmp_path / "second") as server, connected(server.address) as peer:
                await ends(peer, (first, at), (other, other_at))

    async def ends(peer: Peer, lost: half_ranges.Range, others: half_ranges.Range) -> None:
        for _ in range(2):
            reply = await end(peer, COMMIT, half_ranges.encode([lost]), message_id=id_of(9))
            assert (reply.code, reply.remark) == (1, "The half message there is another one")
        assert await visible(peer) == [b"row 9", b"row 10"]
        assert (await end(peer, COMMIT, half_ranges.encode([others]), message_id=id_of(3))).code == 0
        assert (await visible(peer))[2:] == [b"row 3", b"row 4", b"row 5"]

    run(main())
