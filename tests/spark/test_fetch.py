"""Fetching a range over one connection: exact rows however the broker answers, and clear ends where it cannot."""

from __future__ import annotations

import gc
import socket
from collections import deque
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.spark.fake_broker import FakeBroker, make_records, running

from rocketspark.arrow import records
from rocketspark.arrow.decode_request import RowFilter
from rocketspark.errors import ConnectionLost, NoReply, NotSent, ServerError
from rocketspark.model import MessageQueue, subscribe
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import batch, sysflags
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.read import pipelined_connection
from rocketspark.tables.read import pull_records as fetching
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read.pull_records import fetch

pytestmark = pytest.mark.shows(
    "Arrow from the socket to Spark, many pulls in flight",
    "Spark across a failover of a Java pair, classic and under Apache's controller: a stream and batch reads "
    "give every row once",
)

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "RETRIES", fetching.RETRIES._replace(budget_s=0, pauses_s=(0.01,)))
    monkeypatch.setattr(fetching, "UNSEEN_WAIT_S", 0.01)


def read(broker: FakeBroker, first: int, end: int, *, others: tuple[str, ...] = (), **options: Any) -> list[int]:
    """Queue offsets of the rows of [first, end), in the order they came. `others`: addresses behind the broker's."""
    given = {"namesrv": "127.0.0.1:1", "topic": "T", **{k: str(v) for k, v in options.items()}}
    parsed = parse_read(given, streaming=False)
    found: list[int] = []
    at = first
    for piece in fetch(OffsetRange(QUEUE, first, end), (broker.address, *others), parsed):
        assert piece.first == at
        at = piece.end
        if piece.spans:
            rows = records.decode(
                piece.buffer,
                piece.spans,
                ["queueOffset"],
                offset_first=piece.first,
                offset_end=piece.end,
                wanted=RowFilter(subscribe("", parsed.tags).tags or None),
                ascending=True,
            )
            found += rows.column(0).to_pylist()
    assert at == end
    return found


@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"count_max": 32},
        {"count_max": 1},
        {"count_max": 37, "shuffle": True},
        {"shuffle": True},
        {"count_max": 100, "drop_after": 5},
        {"drop_after": 0},
        {"hidden_for": 3},
        {"refuse": ResponseCode.SUCCESS, "refuse_for": 1},
    ],
    ids=str,
)
def test_every_row_once_and_in_order(ways: dict[str, Any]) -> None:
    with running(FakeBroker(make_records(3000), **ways)) as broker:
        assert read(broker, 17, 2950, maxMessagesPerPull=500) == list(range(17, 2950))


@pytest.mark.parametrize("options", [{}, {"tags": "A || C"}], ids=["all", "tags"])
def test_what_a_slave_lacks_is_read_from_its_master(options: dict[str, Any]) -> None:
    """Java's slaves answer as if a filter had matched nothing; that is neither an end nor a loss."""
    made = make_records(3000)
    with running(FakeBroker(made, lags_from=1700)) as slave, running(FakeBroker(made)) as master:
        found = read(slave, 10, 2900, others=(master.address,), maxMessagesPerPull=200, **options)
        assert found == [at for at in range(10, 2900) if not options or "ABC"[at % 3] in "AC"]
        assert master.pulls


def test_a_slave_that_never_catches_up_is_named_and_nothing_counts_as_lost() -> None:
    refused = pytest.raises(ServerError, match="the slave does not have them yet")
    with running(FakeBroker(make_records(300), lags_from=100)) as slave, refused:
        read(slave, 0, 300)


def test_the_broker_that_took_its_place_is_asked_for_and_read_on_from() -> None:
    """It was at none of the addresses that were known when the read was planned."""
    made = make_records(3000)
    with running(FakeBroker(made)) as fresh, running(FakeBroker([], route={0: fresh.address})) as names:
        with running(FakeBroker(made, drop_after=5)) as old:
            options = {"namesrv": names.address, "maxMessagesPerPull": 100}
            assert read(old, 0, 3000, **options) == list(range(3000))
        assert fresh.connections == 1
        with running(FakeBroker(made, refuse=ResponseCode.SERVICE_NOT_AVAILABLE)) as demoted:
            assert read(demoted, 7, 3000, **options) == list(range(7, 3000))


def test_rows_beyond_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_connection, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(pipelined_connection, "_used", deque(maxlen=4))
    with running(FakeBroker(make_records(5000), shuffle=True)) as broker:
        # Replies of 300 rows are far larger than the buffer, those of 50 are smaller.
        assert read(broker, 0, 5000, maxMessagesPerPull=300) == list(range(5000))
        assert read(broker, 0, 5000, maxMessagesPerPull=50) == list(range(5000))


def test_pieces_that_are_kept_are_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_connection, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(pipelined_connection, "_used", deque(maxlen=4))
    options = parse_read({"namesrv": "127.0.0.1:1", "topic": "T", "maxMessagesPerPull": "50"}, streaming=False)
    with running(FakeBroker(make_records(3000))) as broker:
        kept = []
        for _ in range(2):
            for piece in fetch(OffsetRange(QUEUE, 0, 3000), (broker.address,), options):
                # Every third is kept beyond the next, as raw records or by an array over them; the others go.
                if len(kept) % 3 == 0:
                    kept.append((piece.first, piece.end, np.frombuffer(piece.buffer, np.uint8), piece.spans))
                else:
                    kept.append((piece.first, piece.end, None, []))
        for first, end, data, spans in kept:
            if data is not None:
                found = records.decode(data, spans, ["queueOffset"]).column(0).to_pylist()
                assert found == list(range(first, end))


@pytest.mark.shows(
    "mended: restore makes its topic without credentials and namespace; refcount of buffers assumes CPython < "
    "3.14 (link.py)"
)
@pytest.mark.parametrize("held", ["view", "slice", "numpy", "arrow", "cycle"])
def test_a_buffer_is_used_again_once_nobody_looks_at_it(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_connection, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(pipelined_connection, "_used", deque(maxlen=4))
    buffer = pipelined_connection._buffer(0)
    buffer[:4] = b"mark"
    pipelined_connection._used.append(buffer)
    view: Any = memoryview(buffer)
    if held == "cycle":
        # Not gone with its last name, but when it is collected.
        keeper: list[Any] = [view]
        keeper.append(keeper)
        view = keeper
    else:
        view = {"view": view, "slice": view[10:], "numpy": np.frombuffer(view), "arrow": pa.py_buffer(view)}[held]
    assert pipelined_connection._buffer(0) is not buffer
    assert bytes(pipelined_connection._buffer(0)[:4]) == bytes(4)
    del view
    if held == "cycle":
        del keeper
        assert pipelined_connection._buffer(0) is not buffer
        gc.collect()
    assert len(pipelined_connection._buffer(2000)) == 2000
    # Who knows it by its name alone does not keep it.
    assert pipelined_connection._buffer(1000) is buffer
    assert (bytes(buffer[:4]), len(buffer)) == (b"mark", 1000)
    assert not pipelined_connection._used


def test_pulls_ask_for_what_the_broker_gives() -> None:
    with running(FakeBroker(make_records(6000), count_max=32)) as broker:
        assert read(broker, 0, 6000) == list(range(6000))
        # Little more than the 6000 / 32 that are needed: the rest of each large first pull is asked in steps of 32.
        assert len(broker.pulls) < 6000 / 32 * 1.3
        assert all(p.bulk and p.sys_flag == 4 and p.subscription == "*" for p in broker.pulls)
    with running(FakeBroker(make_records(6000))) as broker:
        assert read(broker, 0, 6000) == list(range(6000))
        assert len(broker.pulls) == 2


def test_pulls_are_in_flight_together() -> None:
    # One pull more than wait together: with fewer the broker would answer none before they are asked again.
    count = 32 * fetching.PULLS_IN_FLIGHT_MAX + 1
    with running(FakeBroker(make_records(count), count_max=32, gather=fetching.PULLS_IN_FLIGHT_MAX)) as broker:
        assert read(broker, 0, count, maxMessagesPerPull=32) == list(range(count))
        assert len(broker.pulls) == fetching.PULLS_IN_FLIGHT_MAX + 1
        assert broker.gather == 0


@pytest.mark.parametrize("scan_max", [1, 7, 1000])
@pytest.mark.parametrize("count_max", [5, 1000])
def test_tags(scan_max: int, count_max: int) -> None:
    with running(FakeBroker(make_records(700), scan_max=scan_max, count_max=count_max)) as broker:
        wanted = [i for i in range(3, 690) if i % 3 != 2]
        # With few messages a pull the broker looks beyond the offsets that were asked for.
        assert read(broker, 3, 690, tags="A||B", maxMessagesPerPull=10) == wanted
        assert read(broker, 3, 690, tags="nothing", maxMessagesPerPull=100) == []


def test_inner_batches_across_pulls_come_once() -> None:
    items = [batch.BatchItem(0, b"inner", b"") for _ in range(10)]
    made = []
    for i in range(200):
        base = i // 10 * 10
        [stored] = make_records(
            1,
            queue_offset=base,
            body=batch.encode(items),
            sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
            properties=b"INNER_NUM\x0110\x02INNER_BASE\x01%d\x02" % base,
        )
        made.append(stored)
    with running(FakeBroker(made)) as broker:
        assert read(broker, 5, 187, maxMessagesPerPull=7) == list(range(5, 187))


def test_deleted_messages() -> None:
    with running(FakeBroker(make_records(500), oldest=100)) as broker:
        with pytest.raises(DataLost, match="messages 50 to 99 of queue 0 of topic 'T' on broker 'broker-a' are gone"):
            read(broker, 50, 400)
        assert read(broker, 50, 400, failOnDataLoss="false") == list(range(100, 400))
        assert read(broker, 20, 60, failOnDataLoss="false") == []


def test_queue_that_lost_its_end() -> None:
    with running(FakeBroker(make_records(100))) as broker:
        with pytest.raises(DataLost, match="failOnDataLoss"):
            read(broker, 50, 200, pollTimeoutMs=200)
        assert read(broker, 50, 200, pollTimeoutMs=200, failOnDataLoss="false") == list(range(50, 100))
        with pytest.raises(DataLost):
            read(broker, 150, 200, pollTimeoutMs=200)
        assert read(broker, 150, 200, pollTimeoutMs=200, failOnDataLoss="false") == []


def test_a_new_master_that_does_not_show_all_yet_has_lost_nothing() -> None:
    """Right after an election it answers that the offset is beyond its end."""
    made = make_records(300)
    broker = FakeBroker(made[:100])
    with running(broker):
        Timer(0.3, lambda: broker.records.extend(made[100:])).start()
        assert read(broker, 150, 300) == list(range(150, 300))


@pytest.mark.shows(
    "Spark across a failover of our pair: a stream and batch reads give every row once; only a master's word "
    "counts as loss; what an unclean election cut is told, or fails the query"
)
@pytest.mark.parametrize("ways", [{"oldest": 100}, {"refuse": ResponseCode.TOPIC_NOT_EXIST}], ids=["late", "topic"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_a_slave_says_is_gone_is_read_from_its_master(ways: dict[str, Any], fail: str) -> None:
    made = make_records(300)
    with (
        running(FakeBroker(made)) as master,
        running(FakeBroker(made, **ways)) as slave,
        running(FakeBroker([], route={0: master.address, 1: slave.address})) as names,
    ):
        assert read(slave, 5, 300, namesrv=names.address, failOnDataLoss=fail) == list(range(5, 300))


def test_refusal_names_the_queue() -> None:
    with (
        running(FakeBroker(make_records(5), refuse=16)) as broker,
        pytest.raises(ServerError, match="pull of topic 'T'"),
    ):
        read(broker, 0, 5)
    with running(FakeBroker(make_records(5), refuse=2)) as broker:
        with pytest.raises(ServerError, match="code 2"):
            read(broker, 0, 5)
        assert broker.connections == fetching.RETRIES.attempts_max


def test_no_broker_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    broker = FakeBroker([])
    broker.address = f"127.0.0.1:{port}"
    with pytest.raises(NotSent, match=f"cannot connect to 127.0.0.1:{port}"):
        read(broker, 0, 5)


def test_silent_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = FakeBroker([])
        broker.address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(NoReply, match=r"no reply from 127.0.0.1.* in 50 ms"):
            read(broker, 0, 5, pollTimeoutMs=50)


def test_broker_that_hangs_up() -> None:
    class Aborting(FakeBroker):
        def pull(self, peer: Any, request: Any, body: bytes) -> None:
            peer.abort()

    with running(Aborting([])) as broker, pytest.raises(ConnectionLost, match="ended before the reply"):
        read(broker, 0, 5)


def test_a_broker_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FakeBroker(make_records(5), refuse=ResponseCode.SYSTEM_BUSY, refuse_for=12)) as broker:
        monkeypatch.setattr(fetching, "RETRIES", fetching.RETRIES._replace(budget_s=3600))
        assert read(broker, 0, 5) == list(range(5))
        assert broker.connections == 13


def test_a_topic_that_is_deleted_meanwhile_is_data_loss() -> None:
    with running(FakeBroker(make_records(5), refuse=ResponseCode.TOPIC_NOT_EXIST)) as broker:
        with pytest.raises(DataLost, match=r"messages 2 to 4 .* are gone \(the topic was deleted\)"):
            read(broker, 2, 5)
        assert read(broker, 2, 5, failOnDataLoss="false") == []


@pytest.mark.parametrize("joined_bytes_max", [0, 3000, 1 << 16])
@pytest.mark.parametrize("ways", [{}, {"shuffle": True}, {"count_max": 7, "shuffle": True}, {"count_max": 31}], ids=str)
def test_pieces_of_small_and_large_replies(
    ways: dict[str, Any], joined_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "JOINED_BYTES_MAX", joined_bytes_max)
    monkeypatch.setattr(fetching, "ROWS_PER_PIECE", 300)
    monkeypatch.setattr(pipelined_connection, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(pipelined_connection, "_used", deque(maxlen=4))
    with running(FakeBroker(make_records(2000), **ways)) as broker:
        assert read(broker, 3, 1990, maxMessagesPerPull=40) == list(range(3, 1990))


def test_small_replies_in_any_order_make_large_pieces() -> None:
    options = parse_read({"namesrv": "127.0.0.1:1", "topic": "T", "maxMessagesPerPull": "32"}, streaming=False)
    with running(FakeBroker(make_records(4000), count_max=32, shuffle=True)) as broker:
        [piece] = fetch(OffsetRange(QUEUE, 0, 4000), (broker.address,), options)
        assert (piece.first, piece.end, len(piece.spans)) == (0, 4000, 1)


def test_pieces_of_large_messages_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BYTES_PER_PIECE", 100_000)
    options = parse_read({"namesrv": "127.0.0.1:1", "topic": "T"}, streaming=False)
    with running(FakeBroker(make_records(300, body=bytes(5000)), count_max=2, shuffle=True)) as broker:
        sizes = [
            sum(end - at for at, end in p.spans) for p in fetch(OffsetRange(QUEUE, 0, 300), (broker.address,), options)
        ]
    assert sum(sizes) > 300 * 5000
    assert max(sizes) < 100_000 + 2 * 6000


def test_parts_are_joined_in_a_buffer_of_their_own_until_nobody_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_connection, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(pipelined_connection, "_used", deque(maxlen=4))
    first = pipelined_connection.joined([memoryview(b"ab"), memoryview(b""), memoryview(b"cde")])
    second = pipelined_connection.joined([memoryview(b"xyz")])
    assert (bytes(first), bytes(second)) == (b"abcde", b"xyz")
    used = first.obj
    first.release()
    again = [pipelined_connection.joined([memoryview(b"%d" % n)]) for n in range(8)]
    assert [bytes(view) for view in again] == [b"%d" % n for n in range(8)]
    assert sum(view.obj is used for view in again) == 1
    assert bytes(second) == b"xyz"


@pytest.mark.shows("64 pulls are in flight where a broker gives few messages a pull")
@pytest.mark.parametrize(
    ("step", "reply_bytes", "pulls"),
    [(4096, 0, 4), (32, 0, 64), (32, 8 << 10, 64), (32, 1 << 20, 32), (1, 4 << 20, 8), (1, 64 << 20, 2), (65536, 0, 2)],
)
def test_how_many_pulls_are_in_flight(step: int, reply_bytes: int, pulls: int) -> None:
    assert fetching.in_flight_max(step, reply_bytes) == pulls


def test_large_replies_make_pulls_in_flight_few(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    bound = fetching.in_flight_max

    def noted(step: int, reply_bytes: int) -> int:
        seen.append(reply_bytes)
        return bound(step, reply_bytes)

    monkeypatch.setattr(fetching, "in_flight_max", noted)
    made = make_records(300)
    with running(FakeBroker(made, count_max=10)) as broker:
        assert read(broker, 0, 300, maxMessagesPerPull=10) == list(range(300))
    # Each reply holds ten records beside its header.
    assert seen[0] == 0
    assert sum(map(len, made[-10:])) <= seen[-1] < sum(map(len, made[-10:])) + 100
