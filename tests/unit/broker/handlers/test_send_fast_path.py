"""Sends taken many at a time leave the same bytes as sends taken one by one: log, queues, index, replies, counters."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.live.support import run, send_header
from tests.unit.broker.offline import Broker, Wire, same_clock, split

from rocketspark.broker.handlers import send_fast_path
from rocketspark.broker.messages import put_message
from rocketspark.broker.messages.send_rules import MessageSettings
from rocketspark.broker.replication.waits import Mode
from rocketspark.broker.statistics.histograms import RequestTimes
from rocketspark.errors import StoreFull
from rocketspark.protocol import frames
from rocketspark.protocol.json.bodies import GroupConfig, TopicConfig
from rocketspark.protocol.message import batch, properties, record
from rocketspark.store import Store
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.transport.request_frames import request

pytestmark = pytest.mark.shows(
    "one send, broker: the fast path only decodes, what is accepted is decided in one place",
    "a run of sends waits for copies or the disk as one, with the effect of one by one: order, WAIT=false, "
    "codes 1, 10, 12 with the place, metrics",
)


@pytest.fixture(autouse=True)
def _same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    same_clock(monkeypatch)


class Ids:
    """Unique ids for messages that came without, the same in every broker."""

    def __init__(self) -> None:
        self.count = itertools.count()

    def next(self) -> str:
        return f"{next(self.count):032X}"


FLUSHED = {"flush_disk_type": "SYNC_FLUSH"}
# Answers wait for a slave, which a test makes up.
COPIED = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout_ms": 60_000}
names = st.sampled_from(
    ["A", "BB", "new-topic", "%RETRY%G", "%RETRY%none", "SCHEDULE_TOPIC_XXXX", "read-only", "T" * 127]
)
plain_values = st.text(st.sampled_from('abcdefgXYZ0123456789-_ /:{},é"\\'), min_size=1, max_size=6)
some_pairs = st.dictionaries(
    st.sampled_from(
        [
            "KEYS",
            "TAGS",
            "color",
            "a b",
            "WAIT",
            "TRACE_ON",
            "TIMER_OUT_MS",
            "INNER_NUM",
            "__CRC32#",
            "TRAN_MSG",
            "MSG_REGION",
            "traceparent",
            "PGROUP",
            "RECONSUME_TIME",
            "BORN_TIMESTAMP",
        ]
    ),
    plain_values,
)
special_pairs = st.sampled_from(
    [{}, {}, {}, {}, {"DELAY": "18"}, {"DELAY": "0"}, {"TIMER_DELAY_SEC": "86400"}, {"UNIQ_KEY": "with space"}]
)


@st.composite
def sends(draw: st.DrawFn) -> list[bytes]:
    """Frames of one connection: mostly like the one before, as a producer's are, and now and then something else."""
    made: list[bytes] = []
    opaques = itertools.count(draw(st.sampled_from([0, 7, 95, 100_000])))
    for kind in draw(st.lists(st.integers(0, 11), min_size=1, max_size=8)):
        topic = draw(names) if kind < 3 else "A"
        pairs = draw(some_pairs) | draw(special_pairs) if kind < 6 else {"TAGS": "T", "KEYS": "k1"}
        header: dict[str, Any] = {"flag": draw(st.sampled_from([0, 0, 5, -1, 1 << 31])) if kind == 4 else 0}
        if kind == 5:
            header["sys_flag"] = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 0x40, 0x80, 0x100]))
        if kind == 2:
            header |= {"reconsume_times": 3, "max_reconsume_times": 2}
        for n in range(draw(st.integers(1, 12))):
            unique = {} if kind == 1 else {"UNIQ_KEY": f"{draw(st.integers(0, 1 << 60)):032X}"}
            body = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 99])) if kind != 7 else bytes(1 << 16)
            born_ms = 1_795_214_738_976 + n // 3
            if kind == 0:
                # As proxies write it.
                proxied = {"PGROUP": topic, "RECONSUME_TIME": "0", "__BORNHOST": "h", "BORN_TIMESTAMP": f"{born_ms}"}
                unique |= proxied
            header |= {"born_time_ms": born_ms, "pairs": pairs | unique}
            queue_id = draw(st.sampled_from([0, 1, 2, 3, 4, 9, 11, -1]))
            code, flag = 310, 0
            if kind == 8:
                code, body = 320, batch.encode([batch.BatchItem(0, b"one", b""), batch.BatchItem(0, b"two", b"K\1v\2")])
            elif kind == 9:
                flag = draw(st.sampled_from([0, 2]))
            elif kind == 10:
                code = draw(st.sampled_from([310, 31, 105, 9999]))
            made_header = send_header(topic, queue_id, **header)
            if kind == 6:
                # As clients of 4.9 write it.
                made_header.properties = made_header.properties[:-1]
            whole = request(code, made_header, body, opaque=next(opaques), flag=flag, language="JAVA")
            if kind == 11:
                whole = draw(altered(whole))
            made.append(whole)
    return made


@st.composite
def altered(draw: st.DrawFn, whole: bytes) -> bytes:
    """One byte of the header is another."""
    at = draw(st.integers(8, 7 + int.from_bytes(whole[4:8], "big")))
    return (
        whole[:at]
        + draw(st.sampled_from([b'"', b"\\", b"0", b"1", b" ", b",", b"x", b"\x00", b"\xff", b"-"]))
        + whole[at + 1 :]
    )


def chopped(stream: bytes, chunks: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        end = at + chunks.choice([1, 7, 300, 500, 2000, 10_000, 100_000])
        yield stream[at:end]
        at = end


@pytest.mark.shows("sends at least 2x the Java broker at every window")
@settings(max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    streams=st.lists(sends(), min_size=1, max_size=3),
    seed=st.integers(0, 1 << 30),
    changes=st.sampled_from(
        [{}, {"flush_disk_type": "SYNC_FLUSH"}, COPIED, COPIED | {"flush_disk_type": "SYNC_FLUSH"}]
    ),
)
def test_any_stream_leaves_what_it_leaves_message_by_message(
    tmp_path_factory: pytest.TempPathFactory, streams: list[list[bytes]], seed: int, changes: dict[str, Any]
) -> None:
    async def outcome(root: Path, plain: bool) -> tuple[Any, ...]:
        broker = await Broker(root, message_bytes_max=1 << 15, **changes).start()
        try:
            put_message.unique_ids = Ids()  # type: ignore[assignment]
            topics = broker.server._topics
            topics.put(TopicConfig(topic_name="A", read_queue_nums=4, write_queue_nums=10))
            topics.put(TopicConfig(topic_name="BB", read_queue_nums=4, write_queue_nums=2))
            topics.put(TopicConfig(topic_name="read-only", read_queue_nums=4, write_queue_nums=4, perm=4))
            topics.put(TopicConfig(topic_name="T" * 127, read_queue_nums=1, write_queue_nums=1))
            broker.server._groups.put(GroupConfig(group_name="G"))
            if not plain:
                broker.server._server._routes.runs.clear()
            answers = []
            for stream in streams:
                peer, wire = broker.connect()
                for chunk in chopped(b"".join(stream), random.Random(seed)):
                    if not wire.closed:
                        peer.data_received(chunk)
                while peer._tasks or peer._soon or peer._promised:
                    broker.server._waits.acked("slave", broker.server.store.written_position)
                    await asyncio.sleep(0)
                answers.append((wire.replies(), wire.closed))
            stats = broker.server._stats
            stats.collect()
            counters = (stats.stored, stats.put_failures, {k: (v.value, v.times) for k, v in stats._items.items()})
            return answers, broker.files(), counters
        finally:
            await broker.server.close()

    root = tmp_path_factory.mktemp("plain")
    ids = put_message.unique_ids
    try:
        many, single = run(outcome(root / "many", True)), run(outcome(root / "single", False))
    finally:
        put_message.unique_ids = ids
    for (replies, closed), (others, other_closed) in zip(many[0], single[0], strict=True):
        assert {k: v for k, v in replies.items() if v != others.get(k)} == {
            k: v for k, v in others.items() if v != replies.get(k)
        }
        assert closed == other_closed
    assert many[2] == single[2]
    assert many[1].keys() == single[1].keys()
    for name, content in many[1].items():
        assert content == single[1][name], name


def frame(n: int, topic: str = "A", queue_id: int = 0, body: bytes = b"body", **changes: Any) -> bytes:
    pairs = {"UNIQ_KEY": f"{n:032X}", "TAGS": "T"} | changes.pop("pairs", {})
    header = send_header(topic, queue_id, pairs=pairs, **changes)
    return request(310, header, body, opaque=1000 + n, language="JAVA")


def codes(wire: Wire) -> list[int]:
    return [frames.decode(whole).code for whole in split(wire.written)]


def stored(broker: Broker, queue_offset: int) -> record.Record:
    """A record of topic A's first queue."""
    store = broker.server.store
    (unit,) = store.queue_units("A", 0, queue_offset, 1)
    return record.decode(store.record_at(unit[0]) or b"")


class Runs:
    """Counts the messages that were taken many at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        real = Store.append_run

        def counted(store: Store, messages: Any, now_ms: int, born_host: bytes) -> list[tuple[int, int]]:
            placed = real(store, messages, now_ms, born_host)
            self.sizes.append(len(placed))
            return placed

        monkeypatch.setattr(Store, "append_run", counted)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def with_broker(root: Path, test: Any, **changes: Any) -> None:
    """Run `test(broker)` on a broker that has topic A with four queues, each with one message, and timed no put yet."""

    async def main() -> None:
        broker = await Broker(root, **changes).start()
        try:
            broker.server._topics.put(TopicConfig(topic_name="A", read_queue_nums=4, write_queue_nums=4))
            broker.server._send._plain.pause = 0
            peer, wire = broker.connect()
            for queue_id in range(4):
                peer.data_received(frame(900 + queue_id, queue_id=queue_id))
            if "slave_timeout_ms" not in changes:
                assert codes(wire) == [0] * 4
            elif changes["slave_timeout_ms"] > 1000:
                broker.server._waits.acked("slave", broker.server.store.written_position)
                await asyncio.sleep(0)
                assert codes(wire) == [0] * 4
            else:
                while len(wire.replies()) < 4:
                    await asyncio.sleep(0.01)
            broker.server._send._plain.pause = 0
            await test(broker)
        finally:
            await broker.server.close()

    run(main())


def test_a_read_of_plain_sends_is_stored_in_runs_and_answered_in_one_write(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        peer, wire = broker.connect()
        runs.sizes.clear()
        peer.data_received(b"".join(frame(n, queue_id=n % 4) for n in range(300)))
        assert runs.sizes == [128, 128, 44]
        assert wire.writes == 1
        answers = [frames.decode(whole) for whole in split(wire.written)]
        assert [a.opaque for a in answers] == list(range(1000, 1300))
        assert [int(a.ext["queueOffset"]) for a in answers if a.ext] == [1 + n // 4 for n in range(300)]

    with_broker(tmp_path, main)


def test_requests_held_for_a_queue_look_again_after_a_run(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        peer, _ = broker.connect()
        runs.sizes.clear()
        looked = [asyncio.Event() for _ in range(4)]

        def look(queue_id: int, final: bool) -> bool:
            assert not final
            looked[queue_id].set()
            return True

        for queue_id in range(4):
            broker.server._long_polling.wait(("A", queue_id), 60, functools.partial(look, queue_id))
        peer.data_received(b"".join(frame(n, queue_id=1 + n % 2) for n in range(10)))
        assert runs.sizes == [10]
        async with asyncio.timeout(30):
            await looked[1].wait()
            await looked[2].wait()
        assert broker.server._long_polling.awaited == {("A", 0): ANY, ("A", 3): ANY}
        broker.server._long_polling.drop_owner(None)

    with_broker(tmp_path, main)


def test_what_is_not_plain_among_plain_sends_keeps_its_place(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        peer, wire = broker.connect()
        runs.sizes.clear()
        stream = [frame(n, pairs={"DELAY": "0"} if n == 5 else {}) for n in range(10)]
        peer.data_received(b"".join(stream))
        assert runs.sizes == [5, 4]
        answers = [frames.decode(whole) for whole in split(wire.written)]
        assert [(a.opaque, a.ext and a.ext["queueOffset"]) for a in answers] == [
            (1000 + n, str(1 + n)) for n in range(10)
        ]

    with_broker(tmp_path, main)


def test_the_store_fills_half_way_through_a_read(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread that makes room ahead would make it here too.
    monkeypatch.setattr(CommitLog, "populate_ahead", lambda log: None)

    async def main(broker: Broker) -> None:
        store = broker.server.store
        peer, wire = broker.connect()
        position = store.written_position
        peer.data_received(frame(0))
        size = store.written_position - position

        def full(needed: int) -> None:
            raise StoreFull("no room", needed_bytes=needed, free_bytes=0)

        wire.written = b""
        runs.sizes.clear()
        with monkeypatch.context() as patched:
            patched.setattr(store.log, "make_room", full)
            store.log.limit = store.written_position + 3 * size + 1
            peer.data_received(b"".join(frame(n) for n in range(1, 11)))
        assert runs.sizes[0] == 3
        assert codes(wire) == [0] * 3 + [14] * 7
        assert store.queue_range("A", 0) == (0, 5)
        assert store.written_position == position + 4 * size
        # With room again the next ones are stored, and soon many at a time.
        wire.written = b""
        sent = 0
        while max(runs.sizes[1:], default=1) == 1 and sent < 10_000:
            peer.data_received(b"".join(frame(100 + sent + i) for i in range(10)))
            sent += 10
        assert codes(wire) == [0] * sent
        assert max(runs.sizes[1:]) > 1

    with_broker(tmp_path, main)


def test_a_record_too_large_for_a_log_file_is_refused_alone(tmp_path: Path) -> None:
    async def main(broker: Broker) -> None:
        peer, wire = broker.connect()
        large = bytes((1 << 20) - 100)
        stream = [frame(n, body=large if n == 1 else b"small") for n in range(3)]
        peer.data_received(b"".join(stream))
        assert codes(wire) == [0, 13, 0]

    with_broker(tmp_path, main, log_file_bytes=1 << 20)


def test_properties_that_are_too_long_with_the_broker_s_own_are_refused(tmp_path: Path) -> None:
    async def main(broker: Broker) -> None:
        peer, _ = broker.connect()
        peer.data_received(frame(0, pairs={"long": "x"}))
        room = properties.BYTES_MAX - len(stored(broker, 1).properties) + 1
        peer, wire = broker.connect()
        peer.data_received(b"".join(frame(n, pairs={"long": "x" * (room + n // 3 - 1)}) for n in range(15)))
        assert codes(wire) == [0] * 6 + [13] * 9
        assert [len(stored(broker, at).properties) for at in (2, 4, 5, 7)] == [
            *(properties.BYTES_MAX - 1, properties.BYTES_MAX - 1, properties.BYTES_MAX, properties.BYTES_MAX)
        ]

    with_broker(tmp_path, main)


def test_changes_hold_from_the_next_send_on(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        server, store = broker.server, broker.server.store
        rules = server._send._rules
        peer, wire = broker.connect()

        def outcome(*frame_: bytes) -> list[int]:
            wire.written = b""
            server._send._plain.pause = 0
            peer.data_received(b"".join(frame_))
            return codes(wire)

        both = frame(1, queue_id=0), frame(2, queue_id=3)
        assert outcome(*both) == [0, 0]
        # Fewer queues.
        server._topics.put(TopicConfig(topic_name="A", read_queue_nums=2, write_queue_nums=2))
        assert outcome(*both) == [0, 29]
        server._topics.put(TopicConfig(topic_name="A", read_queue_nums=4, write_queue_nums=4))
        assert outcome(*both) == [0, 0]
        # Other marks, a smaller limit.
        rules.configure(MessageSettings(3, {"MSG_REGION": "elsewhere"}))
        assert outcome(*both) == [13, 13]
        rules.configure(MessageSettings(100, {"MSG_REGION": "elsewhere"}))
        assert outcome(*both) == [0, 0]
        last = stored(broker, store.queue_range("A", 0)[1] - 1)
        assert properties.find(last.properties, b"MSG_REGION") == b"elsewhere"
        # The topic goes, and comes back empty.
        store.delete_topic("A")
        assert outcome(*both, *both) == [0] * 4
        assert store.queue_range("A", 0) == (0, 2)
        server._topics.delete("A")
        server.settings.auto_create_topic = False
        assert outcome(*both) == [17, 17]
        # No sends at all.
        server._topics.put(TopicConfig(topic_name="A", read_queue_nums=4, write_queue_nums=4))
        server.settings.broker_permission = 4
        rules.configure(MessageSettings.of(server.settings))
        assert outcome(*both) == [16, 16]
        server.settings.broker_permission = 6
        rules.configure(MessageSettings.of(server.settings))
        runs.sizes.clear()
        assert outcome(*both, *both) == [0] * 4
        assert runs.sizes == [4]

    with_broker(tmp_path, main)


def test_ipv6_senders_are_served_one_by_one(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        runs.sizes.clear()
        peer, wire = broker.connect("::1")
        peer.data_received(frame(1) + frame(2))
        assert codes(wire) == [0, 0]
        assert stored(broker, 2).born_host[:16] == bytes(15) + b"\x01"
        assert runs.sizes == []

    with_broker(tmp_path, main)


def test_headers_that_never_repeat_are_not_learned_for_ever(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = 0
    real = send_fast_path.learn

    def counted(header: bytes) -> Any:
        nonlocal learned
        learned += 1
        return real(header)

    monkeypatch.setattr(send_fast_path, "learn", counted)

    async def main(broker: Broker) -> None:
        nonlocal learned
        peer, wire = broker.connect()
        learned = 0
        for n in range(1000):
            peer.data_received(frame(n, pairs={f"name{n:08}": "v", "DELAY": "0"}))
        assert codes(wire) == [0] * 1000
        assert 64 <= learned < 90
        assert peer.notes.count <= send_fast_path.SHAPES_MAX
        # What is plain is noticed all the same.
        runs.sizes.clear()
        for n in range(100):
            peer.data_received(frame(n))
        assert len(runs.sizes) > 30

    with_broker(tmp_path, main)


def test_a_run_waits_for_copies_as_one_and_is_answered_in_one_write(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        waits, store = broker.server._waits, broker.server.store
        peer, wire = broker.connect()
        begin = store.written_position
        waits.acked("slave", begin)
        await asyncio.sleep(0)
        runs.sizes.clear()
        pairs = {"WAIT": "false"}
        peer.data_received(b"".join(frame(n, pairs=pairs if n in (4, 5) else {}) for n in range(8)))
        assert runs.sizes == [4, 2, 2]
        assert [frames.decode(whole).opaque for whole in split(wire.written)] == [1004, 1005]
        assert waits.waiting_count == 6
        at = [store.queue_units("A", 0, 1 + n, 1)[0] for n in range(8)]
        waits.acked("slave", at[3][0] + at[3][1] - 1)
        await asyncio.sleep(0)
        assert (wire.writes, waits.waiting_count) == (1, 6)
        waits.acked("slave", at[3][0] + at[3][1])
        await asyncio.sleep(0)
        assert [frames.decode(whole).opaque for whole in split(wire.written)][2:] == [1000, 1001, 1002, 1003]
        assert (wire.writes, waits.waiting_count) == (2, 2)
        waits.acked("slave", store.written_position)
        await asyncio.sleep(0)
        replies = wire.replies()
        assert [frames.decode(replies[1000 + n]).ext["queueOffset"] for n in range(8)] == [str(1 + n) for n in range(8)]
        assert codes(wire) == [0] * 8
        assert (wire.writes, waits.waiting_count, peer._promised) == (3, 0, 0)

    with_broker(tmp_path, main, **COPIED)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_run_that_no_slave_takes_says_where_it_is_stored(tmp_path: Path, runs: Runs, one_by_one: bool) -> None:
    async def main(broker: Broker) -> None:
        if one_by_one:
            broker.server._server._routes.runs.clear()
        peer, wire = broker.connect()
        runs.sizes.clear()
        peer.data_received(frame(1) + frame(2))
        assert runs.sizes == ([] if one_by_one else [2])
        while len(list(split(wire.written))) < 2:
            await asyncio.sleep(0.01)
        assert codes(wire) == [12, 12]
        for n in (1, 2):
            found = frames.decode(wire.replies()[1000 + n])
            assert found.ext is not None
            (unit,) = broker.server.store.queue_units("A", 0, n, 1)
            assert (found.ext["queueId"], found.ext["queueOffset"]) == ("0", str(n))
            assert found.ext["msgId"].endswith(f"{unit[0]:016X}")
            assert found.ext["transactionId"] == f"{n:032X}"
        assert broker.server._waits.timeouts_count == 2 + 4

    with_broker(tmp_path, main, **COPIED | {"slave_timeout_ms": 50})


def test_a_run_is_refused_and_nothing_stored_while_too_few_are_in_sync(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        durability = broker.server._durability
        durability.mode = Mode.CONTROLLER
        durability.in_sync = SimpleNamespace(sync_set_size=lambda: 1)  # type: ignore[assignment]
        peer, wire = broker.connect()
        runs.sizes.clear()
        end = broker.server.store.written_position
        peer.data_received(frame(1) + frame(2) + frame(3, pairs={"WAIT": "false"}))
        assert codes(wire) == [1, 1, 0]
        assert frames.decode(next(iter(split(wire.written)))).remark == "in-sync replicas not enough"
        (unit,) = broker.server.store.queue_units("A", 0, 1, 1)
        assert unit[0] == end
        broker.server._send._plain.pause = 0
        durability.in_sync = SimpleNamespace(sync_set_size=lambda: 2)  # type: ignore[assignment]
        runs.sizes.clear()
        peer.data_received(frame(4) + frame(5))
        assert runs.sizes == [2]
        broker.server._waits.acked("slave", broker.server.store.written_position)
        await asyncio.sleep(0)
        assert codes(wire) == [1, 1, 0, 0, 0]

    with_broker(tmp_path, main, **COPIED | {"in_sync_replicas_min": 2})


def test_a_run_that_waits_is_timed_until_its_answer(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        times = RequestTimes()
        times.watch(broker.server._server._routes)
        peer, wire = broker.connect()
        runs.sizes.clear()
        peer.data_received(frame(1) + frame(2) + frame(3))
        assert runs.sizes == [3]
        assert times.rows == {}
        await asyncio.sleep(0.02)
        broker.server._waits.acked("slave", broker.server.store.written_position)
        await asyncio.sleep(0)
        assert codes(wire) == [0] * 3
        row = times.rows.pop((310, 0, False))
        assert times.rows == {}
        assert (sum(row.counts), sum(row.counts[:5])) == (3, 0)
        assert peer.awaited_answers == {}

    with_broker(tmp_path, main, **COPIED)


def test_every_send_of_a_run_is_timed_for_the_metrics(tmp_path: Path, runs: Runs) -> None:
    async def main(broker: Broker) -> None:
        times = RequestTimes()
        times.watch(broker.server._server._routes)
        peer, wire = broker.connect()
        runs.sizes.clear()
        peer.data_received(b"".join(frame(n, queue_id=9 if n == 5 else 0) for n in range(10)))
        assert codes(wire) == [0] * 5 + [29] + [0] * 4
        assert runs.sizes == [5, 4]
        assert {key: sum(row.counts) for key, row in times.rows.items()} == {(310, 0, False): 9, (310, 29, False): 1}

    with_broker(tmp_path, main)


def test_nothing_after_a_broken_frame_is_served(tmp_path: Path) -> None:
    async def main(broker: Broker) -> None:
        peer, wire = broker.connect()
        broken = frames.join(b'{"code":310,"extFields":{', b"")
        peer.data_received(frame(1) + frame(2) + broken + frame(3) + frame(4))
        assert codes(wire) == [0, 0]
        assert wire.closed
        assert broker.server.store.queue_range("A", 0) == (0, 3)

    with_broker(tmp_path, main)
