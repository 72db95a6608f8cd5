"""Rows in a transaction on a broker: batches that it takes, and ends that it is told until they are carried out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rocketspark.client import PullConsumer, TransactionProducer, TransactionState
from rocketspark.client.connection import client_api
from rocketspark.errors import NoReply, ServerError
from rocketspark.testing import run_cluster

# For a machine that is busy with other things.
PATIENT: dict[str, Any] = {"send_timeout_ms": 60_000}
BODIES = [b"%04d" % row + b"." * 1000 for row in range(600)]


class Bank:
    """Commits all."""

    def execute(self, message: Any, transaction: Any) -> TransactionState:
        raise AssertionError("it is not asked for rows")

    def execute_many(self, transaction: Any) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: Any) -> TransactionState:
        return TransactionState.UNKNOWN


@pytest.mark.shows(
    "send_many and rows in a transaction before a broker with a small maxMessageSize: smaller batches, each row once; "
    "one too large row rolls back the transaction"
)
def test_rows_go_in_batches_that_the_broker_takes() -> None:
    with run_cluster(message_bytes_max=32 << 10) as cluster:
        with TransactionProducer(cluster.namesrv, "pg", listener=Bank(), **PATIENT) as producer:
            producer.create_topic("t", queue_count=4)
            plain = producer.send_many("t", BODIES)
            assert plain.errors == [None] * 600
            keys = [f"k{row % 3}" for row in range(600)]
            kept = producer.send_many_in_transaction("t", BODIES, sharding_keys=keys, tags="kept")
            assert (kept.state, kept.sent.errors) == (TransactionState.COMMIT, [None] * 600)
            rows = [*BODIES[:300], random.Random(1).randbytes(60_000), *BODIES[300:]]
            dropped = producer.send_many_in_transaction("t", rows, tags="dropped")
            assert dropped.state is TransactionState.ROLLBACK
            assert [row for row, error in enumerate(dropped.sent.errors) if error] == [300]
        consumer = PullConsumer(cluster.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        found = []
        with consumer:
            while len(found) < 1200:
                found += consumer.poll(timeout_ms=1000)
        assert sorted(m.body for m in found if m.tag is None) == BODIES
        assert sorted(m.body for m in found if m.tag == "kept") == BODIES
        for queue in {m.queue for m in found}:
            mine = [m.body for m in found if m.queue == queue and m.tag == "kept"]
            assert mine == sorted(mine)


@pytest.mark.shows(
    "the end of rows whose answer is lost, or that comes while a master is replaced, is told again, once; not one that "
    "fits no half message"
)
def test_an_end_without_an_answer_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, told = client_api.end_half_ranges, list[Any]()

    async def end(broker: Any, header: Any, ranges: Any, **how: Any) -> Any:
        told.append(header.message_id)
        if len(told) == 1:
            await real(broker, header, ranges, **how)
            raise NoReply("no reply", address=broker.address)
        if len(told) == 2:
            raise ServerError(14, "no master any more", retriable=True)
        if len(told) > 3:
            header.producer_group = "another"
        return await real(broker, header, ranges, **how)

    monkeypatch.setattr(client_api, "end_half_ranges", end)
    with (
        run_cluster() as cluster,
        TransactionProducer(cluster.namesrv, "pg", listener=Bank(), **PATIENT) as producer,
    ):
        producer.create_topic("t")
        done = producer.send_many_in_transaction("t", BODIES[:100])
        assert (done.state, len(told)) == (TransactionState.COMMIT, 3)
        assert set(told) == {done.sent.message_ids[0]}
        (queue,) = set(done.sent.queues)
        assert queue is not None
        assert producer.max_offset(queue) == 100
        # It would fit none the next time either: the broker asks about them.
        producer.send_many_in_transaction("t", BODIES[:100])
        assert len(told) == 4
