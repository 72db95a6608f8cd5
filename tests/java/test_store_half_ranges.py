"""What exactly-once writes to a broker of ours leave, in batches and ranges: for the official broker it is as any."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.java.apache import ApacheNamesrv
from tests.java.apache_pair import PairBroker
from tests.java.one_store import APACHE_ALONE, starting, stored_records
from tests.java.test_store_exchange import SMALL_FILES
from tests.live.support import beat, broker, create, name_server, run, until
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark.broker import topic_names
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties, record
from rocketspark.spark import exactly_once
from rocketspark.spark.exactly_once import SentAttempt, TaskAttempt, half_messages
from rocketspark.tables.options import WriteOptions, parse_write
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes

TOPIC, NAME, QUERY = "exact", "exact", "q"
ROWS = 300
QUICK = SMALL_FILES | {
    "mappedFileSizeCommitLog": 4 << 20,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 2000,
    # A slow machine lets it ask often before the producer that is asked is there.
    "transactionCheckMax": 10_000,
    "maxTransferCountOnMessageInMemory": 32,
    # Java's broker stores each half message again as often as it asks: many, if the machine is slow.
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
}
pytestmark = [
    pytest.mark.skipif(APACHE_ALONE, reason="of batches that ours takes"),
    pytest.mark.shows(
        "a Java broker takes the store over: gives out what was committed, asks for the rest alone, and ours "
        "goes on after it; a Java slave has the same log and queues"
    ),
]


def options_of(namesrv: str) -> WriteOptions:
    given = {"namesrv": namesrv, "topic": TOPIC, "delivery": "exactly-once", "sendTimeoutMs": "60000"}
    return parse_write(given | {"transactionalId": NAME})


def rows_of(batch: int, partition: int) -> list[bytes]:
    # Of one length, and of several.
    return [b"%d/%d/%0*d" % (batch, partition, 6 * partition, row) for row in range(ROWS)]


def send(options: WriteOptions, batch: int) -> list[SentAttempt]:
    exactly_once.open_log(options)
    return [
        exactly_once.send_attempt(
            iter([pa.record_batch({"body": pa.array(rows_of(batch, partition), pa.binary())})]),
            options,
            TaskAttempt(QUERY, batch, partition),
        )
        for partition in range(2)
    ]


def stored(server: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for queue in range(2):
        records = stored_records(server, TOPIC, queue, "TOOLS_CONSUMER")
        assert [r.queue_offset for r in records] == list(range(len(records)))
        found.update(r.body for r in records)
    return found


def begin_of(path: Path, size: int) -> bytes:
    """The first bytes of a file that may not be there yet."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(size)


async def asked_for(server: str, count: int) -> Counter[str]:
    """The rows that a broker asks a producer for, until it asked for so many, and a while longer."""
    asked: Counter[str] = Counter()
    routes = Routes()

    def check(peer: Peer, request: Any, body: bytes) -> None:
        asked[properties.decode(record.decode(body).properties.decode())["DEDUPE_KEY"]] += 1

    routes.add(RequestCode.CHECK_TRANSACTION_STATE, check)
    peer = await dial(server, routes)
    try:
        async with asyncio.timeout(LIMIT_S * 3):
            while len(asked) < count:
                await beat(peer, client_id="127.0.0.1@asked", group=None, producer=f"SPARK_TX_{NAME}")
                await asyncio.sleep(0.5)
        await asyncio.sleep(3)
    finally:
        peer.close()
    return asked


def test_a_java_broker_takes_the_store_over(
    namesrv: ApacheNamesrv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch is committed, the next one sent: Java's broker gives out the first and asks for the second alone."""
    monkeypatch.setattr(half_messages, "IMMUNITY_S", 1)

    async def topic(server: str) -> None:
        peer = await dial(server)
        await create(peer, TOPIC, 2)
        peer.close()

    with starting(namesrv, tmp_path, QUICK) as start:
        ours = start("ours")
        asyncio.run(topic(ours.broker))
        options = options_of(ours.namesrv)
        exactly_once.commit(send(options, 0), options, 0)
        send(options, 1)
        expected = Counter(rows_of(0, 0) + rows_of(0, 1))
        assert stored(ours.broker) == expected
        ours.kill()
        theirs = start("theirs")
        assert stored(theirs.broker) == expected
        asked = asyncio.run(asked_for(theirs.broker, 2 * ROWS))
        assert set(asked) == {f"{NAME}/1/{partition}/{row}" for partition in range(2) for row in range(ROWS)}
        assert stored(theirs.broker) == expected
        theirs.kill()
        # And back: ours goes on where it stopped, with what Java's broker has stored anew meanwhile.
        again = start("ours")
        assert stored(again.broker) == expected
        options = options_of(again.namesrv)
        exactly_once.commit(send(options, 1), options, 1)
        assert stored(again.broker) == expected + Counter(rows_of(1, 0) + rows_of(1, 1))


def test_a_java_slave_has_the_same_bytes(java_tools: None, tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        async with (
            name_server() as namesrv,
            broker(
                tmp_path / "m", listen_port=port, log_file_bytes=16 << 20, namesrv_addresses=namesrv.address
            ) as server,
        ):
            slave = await asyncio.to_thread(PairBroker, tmp_path / "j", namesrv.address, tmp_path / "s", "classic", 1)
            try:
                peer = await dial(server.address)
                await create(peer, TOPIC, 2)
                peer.close()
                options = options_of(namesrv.address)

                def write() -> None:
                    for batch in range(2):
                        exactly_once.commit(send(options, batch), options, batch)

                await asyncio.to_thread(write)
                end = server.store.written_position
                log = tmp_path / "s" / "commitlog" / f"{0:020}"
                await until(lambda: bytes(server.store.log_bytes(0, end)) == begin_of(log, end))
                queues = [(TOPIC, 0), (TOPIC, 1), (topic_names.HALF_TOPIC, 0), (topic_names.OP_HALF_TOPIC, 0)]
                assert sum(server.store.queue_range(*queue)[1] for queue in queues[:2]) == 4 * ROWS
                # Each task begins at a queue of its own choice: all may have chosen one.
                for queue in (queue for queue in queues if server.store.queue_range(*queue)[1]):
                    units = server.store.queue_units(*queue, 0, server.store.queue_range(*queue)[1])
                    expected = b"".join(struct.pack(">qiq", *unit) for unit in units)
                    path = tmp_path / "s" / "consumequeue" / queue[0] / str(queue[1]) / f"{0:020}"
                    await until(lambda path=path, expected=expected: begin_of(path, len(expected)) == expected)
            finally:
                with contextlib.suppress(Exception):
                    await asyncio.to_thread(slave.kill)

    run(main(), 240)
