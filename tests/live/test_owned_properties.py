"""Properties that only the broker sets, arriving from clients: what is stored of them, by each way of sending.

tests/java/test_owned_properties.py holds the same rows against the official broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.support import broker, connected, create, pulled, run, send_header, sent
from tests.support.owned_properties import NAMES, VALUE, WAYS, rows

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties, record, sysflags

pytestmark = pytest.mark.shows(
    "properties that only the broker sets, row by row as Java 5.5.0 (58 names by 9 ways)",
)

MARKS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
OWNED = {"POP_CK", *MARKS}
OF_HALVES = OWNED | {"REAL_TOPIC", "REAL_QID", "__transactionId__", "TRAN_MSG", "PGROUP"}
# The names whose value a sender does not keep. The properties of a batch as a whole are none of its messages'.
CHANGED = {
    "single": OWNED,
    "retry": OWNED,
    "reply": OWNED - {"CLUSTER"},
    "batch_header": {*NAMES},
    "batch_item": {"POP_CK"},
    "one_record": OWNED | {"INNER_BASE"},
    "half": OF_HALVES,
    "committed": OF_HALVES | {"__CRC32#"},
    "sent_back": {"POP_CK", "__CRC32#", "WAIT", "REAL_TOPIC", "REAL_QID"},
}


def test_a_sender_sets_none_of_what_is_the_broker_s(tmp_path: Path) -> None:
    async def main() -> dict[tuple[str, str], dict[str, str] | int]:
        async with broker(tmp_path) as server:
            return await asyncio.to_thread(rows, server.address)

    found = run(main())
    changed: dict[str, set[str]] = {way: set() for way in WAYS}
    for (way, name), stored in found.items():
        assert isinstance(stored, dict), (way, name, stored)
        if stored.get(name) != VALUE:
            changed[way].add(name)
    assert changed == CHANGED


def test_nor_by_the_quick_ways(tmp_path: Path) -> None:
    """Sends of one shape in one read; batches of messages that are alike; halves in batches."""
    given = {"KEYS": "k", "POP_CK": "1 2 3 4 0 b 0 1", "PGROUP": "P"}

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await asyncio.gather(*(sent(peer, pairs=given | {"UNIQ_KEY": f"A{n}"}) for n in range(10)))
            items = [
                batch.BatchItem(0, b"x", properties.encode(given | {"UNIQ_KEY": f"B{n:02}"}).encode())
                for n in range(10)
            ]
            header = send_header(batch=True)
            (await peer.request(320, header, batch.encode(items))).raise_for_code("batch")
            halves = send_header(sys_flag=sysflags.TRANSACTION_PREPARED)
            answer = await peer.request(RequestCode.SEND_HALF_BATCH, halves, batch.encode(items))
            answer.raise_for_code("halves")
            stored = [properties.decode(found.properties.decode()) for found in await pulled(peer, count_max=32)]
            assert [pairs.pop("UNIQ_KEY")[0] for pairs in stored] == ["A"] * 10 + ["B"] * 10
            assert all(pairs == {"KEYS": "k", "PGROUP": "P"} | MARKS for pairs in stored[:10])
            assert all(pairs == {"KEYS": "k", "PGROUP": "P"} for pairs in stored[10:])
            store = server.store
            for position, _, _ in store.queue_units("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0, 10):
                found = store.record_at(position)
                assert found is not None
                assert b"POP_CK" not in record.decode(found).properties

    run(main())
