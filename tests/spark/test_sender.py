"""What Spark's tasks run to write, on a broker that is killed: every row is stored, in order where a queue is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.topics import messages_of
from tests.support.patience import LIMIT_S
from tests.support.ports import server_ports

from rocketspark.client import Producer
from rocketspark.spark.write.batch_sender import send_rows
from rocketspark.tables.options import parse_write
from rocketspark.testing.process import ServerProcess, run_server_process

pytestmark = pytest.mark.shows(
    "batch and stream, all columns and options, delivery times, bounded memory, order per queue, a killed "
    "broker, inner batches"
)

# A busy machine may take longer to start a server than sends have by default.
WAYS = {"maxBatchBytes": "20000", "sendTimeoutMs": "60000", "sendAttempts": "100"}


def rows(first: int, count: int, **columns: Any) -> pa.RecordBatch:
    bodies = pa.array([b"%d" % i for i in range(first, first + count)])
    return pa.RecordBatch.from_pydict({"body": bodies} | {n: pa.array(v, pa.int32()) for n, v in columns.items()})


def test_a_broker_killed_between_batches_loses_no_row(tmp_path: Path) -> None:
    def source(server: ServerProcess) -> Iterator[pa.RecordBatch]:
        for part in range(6):
            yield rows(part * 1000, 1000, queueId=[0] * 1000)
            if part == 3:
                server.kill()
                server.restart()

    with run_server_process(tmp_path, **server_ports()) as server:
        with Producer(server.namesrv, "maker") as producer:
            producer.send("orders", b"first")
        options = parse_write({"namesrv": server.namesrv, "topic": "orders"} | WAYS)
        assert send_rows(source(server), options) == 6000
        bodies = [m.body for m in messages_of(server.namesrv, "orders") if m.queue_id == 0 and m.body != b"first"]
        # What was in flight when it was killed may come twice.
        assert list(dict.fromkeys(bodies)) == [b"%d" % i for i in range(6000)]


def test_a_broker_killed_while_batches_are_in_flight_loses_no_row(tmp_path: Path) -> None:
    with run_server_process(tmp_path, **server_ports()) as server:
        with Producer(server.namesrv, "maker") as producer:
            producer.send("orders", b"first")
        asked, killed = threading.Event(), threading.Event()

        def source() -> Iterator[pa.RecordBatch]:
            for part in range(20):
                if part == 5:
                    asked.set()
                yield rows(part * 2000, 2000)
            killed.wait(LIMIT_S)
            yield rows(40_000, 2000)

        def kill() -> None:
            asked.wait(LIMIT_S)
            server.kill()
            server.restart()
            killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        options = parse_write({"namesrv": server.namesrv, "topic": "orders"} | WAYS)
        try:
            assert send_rows(source(), options) == 42_000
        finally:
            asked.set()
            killer.join()
        found = {m.body for m in messages_of(server.namesrv, "orders")} - {b"first"}
        assert found == {b"%d" % i for i in range(42_000)}
