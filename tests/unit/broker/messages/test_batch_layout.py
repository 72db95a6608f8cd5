"""Batches stored at once leave the same bytes as message by message: log, queues, index, replies, counters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.live.support import run, send_header
from tests.unit.broker.offline import Broker, same_clock, split

from rocketspark.broker.messages import batch_properties, put_message
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.errors import RecordError, StoreFull
from rocketspark.model.text import string_hash
from rocketspark.protocol import frames
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import batch
from rocketspark.store import Store
from rocketspark.store.commitlog import batch_append
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.index import key_hashes
from rocketspark.store.index.key_hashes import TopicKeys, batch_columns, columns
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import request

pytestmark = pytest.mark.shows(
    "the broker stores a batch at once, byte for byte as before; a full disk refuses it whole",
)


@pytest.fixture(autouse=True)
def _same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    same_clock(monkeypatch)


# -- pure parts

text = st.sampled_from(
    [b"", b"\x01", b"\x02", b"a", b"b\xc3\xa9", b"\x00", b"x y", b" ", b"TAGS", b"KEYS", b"longer" * 9]
)
name = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"color", b"TAGS", b"WAIT"])
value = st.one_of(st.sampled_from([b"A", b"B", b"k1", b"k1 k2", b"true", b"\xc3\xa9", b"v" * 1100]), text)
pair = st.builds(lambda n, v: n + b"\x01" + v + b"\x02", name, value)
odd_text = st.lists(st.one_of(pair, text), max_size=5).map(b"".join)


@st.composite
def items(draw: st.DrawFn) -> list[batch.BatchItem]:
    """Mostly alike, as one producer's are: a few kinds of texts with values of a few lengths; some are odd."""
    kinds = draw(st.lists(st.lists(pair, max_size=4).map(b"".join), min_size=1, max_size=3))
    body_sizes = draw(st.sampled_from([[5], [5], [0, 1, 9], [100, 1]]))
    made = []
    for number in range(draw(st.integers(1, 60))):
        stored = kinds[number % len(kinds)]
        style = draw(st.integers(0, 9))
        if style < 7:
            stored = b"UNIQ_KEY\x01%032X\x02" % number + stored
        if style in (5, 6):
            stored += b"KEYS\x01key%d\x02" % number
        if style == 7:
            stored = draw(odd_text)
        flag = draw(st.sampled_from([0, 0, 0, 7, -1]))
        made.append(batch.BatchItem(flag, b"%d" % (number % 10) * body_sizes[number % len(body_sizes)], stored))
    return made


@given(items())
def test_a_scan_finds_what_decode_finds(sent: list[batch.BatchItem]) -> None:
    body = batch.encode(sent)
    layout = batch.scan(body)
    if layout is None:
        # One that begins with a large message may hold few.
        first = 22 + len(sent[0].body) + len(sent[0].properties)
        assert len(body) < first * (batch.SCAN_COUNT_MIN - 1) or len(sent) < batch.SCAN_COUNT_MIN
        return
    assert layout.message_count == len(sent)
    found = [
        batch.BatchItem(
            int(layout.flags[i]),
            body[layout.starts[i] + 20 : layout.starts[i] + 20 + layout.body_bytes[i]],
            body[layout.properties_at[i] : layout.properties_at[i] + layout.properties_bytes[i]],
        )
        for i in range(len(sent))
    ]
    assert found == sent
    assert int(layout.sizes.sum()) == len(body)
    assert bool(layout.width) == (len({len(b) for _, b, _ in sent}) == len({len(p) for _, _, p in sent}) == 1)


@given(items(), st.data())
def test_what_decode_refuses_no_scan_takes(sent: list[batch.BatchItem], data: st.DataObject) -> None:
    body = bytearray(batch.encode(sent))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 127, 255, body[at] ^ 1]))
    whole = bytes(body[: data.draw(st.sampled_from([len(body), len(body), len(body) - 1, len(body) // 2]))])
    layout = batch.scan(whole)
    try:
        found = batch.decode(whole)
    except RecordError:
        assert layout is None
    else:
        assert layout is None or layout.message_count == len(found)


def by_rows(sent: Sequence[batch.BatchItem], topic: TopicKeys) -> tuple[list[int], list[tuple[int, int]]]:
    pending, codes = [], []
    for row, item in enumerate(sent):
        pairs = put_message.pairs_of(item.properties)
        tags = pairs.get(b"TAGS")
        codes.append(0 if tags is None else string_hash(tags.decode("utf-8", "replace")))
        pending.append((topic, row, 0, pairs.get(b"UNIQ_KEY"), pairs.get(b"KEYS"), tags))
    hashed, rows, _ = columns(pending)
    return codes, list(zip(rows.tolist(), hashed.tolist(), strict=True))


@given(items())
def test_tags_codes_and_keys_are_those_of_each_message(sent: list[batch.BatchItem]) -> None:
    layout = batch.scan(batch.encode(sent))
    if layout is None:
        return
    topic = TopicKeys("orders")
    codes, keys = batch_properties.read(
        layout, put_message.pairs_of, lambda tags: 0 if tags is None else string_hash(tags.decode("utf-8", "replace"))
    )
    rows, hashed = batch_columns(topic, keys, layout.message_count)
    assert (codes.tolist(), list(zip(rows.tolist(), hashed.tolist(), strict=True))) == by_rows(sent, topic)


def alike(count: int, length: int = 5) -> list[batch.BatchItem]:
    """Messages as one producer sends them."""
    return [
        batch.BatchItem(0, b"b" * length, b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02TAGS\x01T%d\x02" % (n, n % 3))
        for n in range(count)
    ]


def test_what_a_producer_sends_is_read_without_a_loop() -> None:
    layout = batch.scan(batch.encode(alike(100)))
    assert layout is not None
    _, keys = batch_properties.read(layout, put_message.pairs_of, lambda tags: 0)
    assert keys.single == []
    # Keys of other lengths, and bodies too.
    mixed = [
        batch.BatchItem(0, b"b" * (1 + n % 7), b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02" % (n, n)) for n in range(200)
    ]
    layout = batch.scan(batch.encode(mixed))
    assert layout is not None
    _, keys = batch_properties.read(layout, put_message.pairs_of, lambda tags: 0)
    assert len(keys.single) == 0
    assert sum(len(rows) for rows, _ in keys.words) == 200


# -- a broker

Sent = tuple[str, int, bytes, int]


async def outcome(root: Path, frames_sent: list[bytes], at_once: bool, **changes: Any) -> tuple[Any, ...]:
    with mock.patch.object(HaListener, "wake") as wake:
        broker = await Broker(root, **{"message_bytes_max": 1 << 15} | changes).start()
    try:
        topics = broker.server._topics
        for name_, attributes in (("A", {}), ("Q" * 127, {}), ("inner", {"queue.type": "BatchCQ"})):
            topics.put(TopicConfig(topic_name=name_, read_queue_nums=2, write_queue_nums=2, attributes=attributes))
            broker.server.store.batch_topics = ["inner"]
        scan = batch.scan
        if not at_once:
            batch.scan = lambda body: None
        try:
            peer, wire = broker.connect()
            for one in frames_sent:
                await whole(peer, one)
        finally:
            batch.scan = scan
        stats = broker.server._stats
        stats.collect()
        counters = (stats.stored, stats.put_failures, {k: (v.value, v.times) for k, v in stats._items.items()})
        queues = {q: broker.server.store.queue_range("A", q) for q in (0, 1)}
        # Slaves hear of all that was stored.
        assert wake.called == bool(stats.stored.messages)
        return wire.replies(), broker.files(), counters, queues
    finally:
        await broker.server.close()


async def whole(peer: Peer, data: bytes) -> None:
    """Let a peer take frames, and answer them: a long batch is read in several turns of the loop."""
    peer.data_received(data)
    while peer._tasks or peer._soon:
        await asyncio.sleep(0)


def compare(root: Path, frames_sent: list[bytes], **changes: Any) -> dict[int, bytes]:
    one, other = (run(outcome(root / str(n), frames_sent, n == 0, **changes)) for n in (0, 1))
    assert one[0] == other[0]
    assert one[2:] == other[2:]
    # A file that is made ahead, in a thread, is empty yet.
    contents, others = ({name_: bytes_ for name_, bytes_ in found[1].items() if bytes_} for found in (one, other))
    assert contents.keys() == others.keys()
    for name_, content in contents.items():
        assert content == others[name_], name_
    answers: dict[int, bytes] = one[0]
    return answers


def frame(number: int, sent: list[batch.BatchItem], topic: str = "A", queue_id: int = 0, **changes: Any) -> bytes:
    header = send_header(topic, queue_id, pairs={"UNIQ_KEY": f"{number:032X}"}, batch=True, **changes)
    return request(320, header, batch.encode(sent), opaque=number, language="JAVA")


@settings(
    max_examples=12,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sent=st.lists(st.tuples(items(), st.integers(0, 2)), min_size=1, max_size=5))
def test_any_batches_leave_what_they_leave_message_by_message(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[list[batch.BatchItem], int]]
) -> None:
    stream = []
    for number, (some, queue_id) in enumerate(sent):
        stream.append(frame(2 * number, some, queue_id=queue_id))
        # Single ones between: their keys go to the index in the order in which all came.
        header = send_header("A", 0, pairs={"UNIQ_KEY": f"{number:032X}", "KEYS": "k", "TAGS": "T"})
        stream.append(request(310, header, b"single", opaque=2 * number + 1, language="JAVA"))
    compare(tmp_path_factory.mktemp("batch"), stream)


def test_large_batches_over_file_ends(tmp_path: Path) -> None:
    """Over the ends of log files, of consume queue files, of what is kept before the index is written."""
    stream = [frame(n, alike(1500, 5 + n % 2), queue_id=n % 2) for n in range(12)]
    answers = compare(tmp_path, stream, log_file_bytes=1 << 20, queue_file_bytes=20_000, message_bytes_max=4 << 20)
    assert [frames.decode(answers[n]).code for n in range(12)] == [0] * 12
    last = frames.decode(answers[11]).ext or {}
    assert (last["queueOffset"], len(last["msgId"].split(","))) == ("7500", 1500)


KINDS_OF_KEYS: dict[str, Callable[[int], bytes]] = {
    "a name each": lambda n: b"p%d\x01v\x02KEYS\x01k%d\x02UNIQ_KEY\x01%032X\x02" % (n, n, n),
    "many keys each": lambda n: b"KEYS\x01%b\x02UNIQ_KEY\x01%032X\x02" % (b" ".join([b"%07d" % n] * 9), n),
    "of many lengths": lambda n: b"KEYS\x01%b\x02UNIQ_KEY\x01%032X\x02" % (b"k" * (n % 50 + 1), n),
}


@pytest.mark.parametrize("kind", KINDS_OF_KEYS)
def test_a_long_batch_is_read_in_pieces_and_leaves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sent = [batch.BatchItem(n % 3, b"b" * (n % 5), KINDS_OF_KEYS[kind](n)) for n in range(10_000)]
    monkeypatch.setattr(batch_append, "_CUT_IN_STEP", 1000)
    monkeypatch.setattr(key_hashes, "_SINGLE_IN_STEP", 1000)
    monkeypatch.setattr(key_hashes, "_LISTS_BYTES_IN_STEP", 70_000)
    # What one turn hashes and checks; hashes are made for the index alone, checksums where bodies are cut.
    turn: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counted(module: Any, name_: str, texts: int) -> None:
        real = getattr(module, name_)

        def call(*arguments: Any) -> Any:
            turn[name_] += len(arguments[texts])
            return real(*arguments)

        monkeypatch.setattr(module, name_, call)

    counted(key_hashes, "columns", 0)
    counted(key_hashes, "word_hashes", 1)

    async def main() -> None:
        broker = await Broker(tmp_path / "pieces", message_bytes_max=4 << 20).start()
        try:
            broker.server._topics.put(TopicConfig(topic_name="A", read_queue_nums=2, write_queue_nums=2))
            steps = broker.server._send._put_message.read_batch(send_header("A", 0, batch=True), batch.encode(sent))
            turns = 0
            while next(steps, turns) is None:
                turns += 1
                most.update((most | turn) - most)
                turn.clear()
            assert turns > 10
        finally:
            await broker.server.close()

    run(main())
    assert max(most.values(), default=0) <= 1000
    assert (kind == "of many lengths") == (not most)
    compare(tmp_path, [frame(1, sent), frame(2, alike(3))], message_bytes_max=4 << 20)


@pytest.mark.parametrize(
    ("topic", "changes"),
    [("Q" * 127, {}), ("inner", {}), ("A", {"sys_flag": 1}), ("A", {"sys_flag": 4}), ("A", {"born_time_ms": 1 << 63})],
)
def test_topics_and_headers_of_all_kinds(tmp_path: Path, topic: str, changes: dict[str, Any]) -> None:
    stream = [frame(1, alike(40), topic, **changes), frame(2, alike(3), topic), frame(3, alike(600), topic)]
    compare(tmp_path, stream)


def test_what_is_too_large_is_refused_as_ever(tmp_path: Path) -> None:
    large = [*alike(40), batch.BatchItem(0, b"x", b"UNIQ_KEY\x01" + b"7" * 32760 + b"\x02")]
    answers = compare(tmp_path, [frame(1, [*large[:30], batch.BatchItem(0, bytes(1 << 15), b"")]), frame(2, large)])
    assert [frames.decode(a).code for a in answers.values()] == [13, 13]
    assert compare(tmp_path / "crc", [frame(1, alike(100))], append_record_crc=True)


@pytest.mark.parametrize("full", ["log", "queue", "index"])
def test_a_full_disk_refuses_a_batch_whole(tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a large batch are never written within it, so that no full disk ends it half-way."""
    # The thread that makes room ahead would make it here too.
    monkeypatch.setattr(CommitLog, "populate_ahead", lambda log: None)

    async def main() -> None:
        broker = await Broker(tmp_path).start()
        try:
            broker.server._topics.put(TopicConfig(topic_name="A", read_queue_nums=2, write_queue_nums=2))
            store = broker.server.store
            peer, wire = broker.connect()
            keyed = [b._replace(properties=b.properties + b"KEYS\x01key%d\x02" % n) for n, b in enumerate(alike(3000))]
            await whole(peer, frame(0, keyed[:1500]))
            await whole(peer, frame(0, keyed[1500:]))
            position = store.written_position

            def refuse(*_: Any) -> None:
                raise StoreFull("no room", needed_bytes=1, free_bytes=0)

            assert store.index_service is not None
            owner, what = {
                "log": (store.log, "make_room"),
                "queue": (store.consume_queues.find("A", 0).__class__, "make_room_for"),
                "index": (store.index_service, "write_pending"),
            }[full]
            store.log.limit = position
            with monkeypatch.context() as patched:
                patched.setattr(owner, what, refuse)
                wire.written = b""
                await whole(peer, frame(1, keyed))
            code = frames.decode(next(split(wire.written))).code
            assert (code, store.written_position, store.queue_range("A", 0)) == (14, position, (0, 3000))
            wire.written = b""
            await whole(peer, frame(2, keyed))
            assert frames.decode(next(split(wire.written))).code == 0
            assert store.queue_range("A", 0) == (0, 6000)
            assert len(list(store.index_service.find("A", "key2999", 0, 1 << 60))) == 2
        finally:
            await broker.server.close()

    run(main())


def test_positions_are_answered_as_ids(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await Broker(tmp_path).start()
        try:
            handler = broker.server._send
            wanted = [b"%b%016X" % (handler._host_hex, p) for p in (0, 255, 1 << 40)]
            assert handler._ids(np.array([0, 255, 1 << 40])) == b",".join(wanted)
        finally:
            await broker.server.close()

    run(main())


def test_the_old_way_writes_no_keys_within_a_batch_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        broker = await Broker(tmp_path).start()
        try:
            store: Store = broker.server.store
            broker.server._topics.put(TopicConfig(topic_name="A", read_queue_nums=2, write_queue_nums=2))
            assert store.index_service is not None
            peer, wire = broker.connect()
            monkeypatch.setattr(batch, "scan", lambda body: None)
            wrote: list[int] = []
            real = store.index_service.write_pending
            monkeypatch.setattr(
                store.index_service, "write_pending", lambda: (wrote.append(store.written_position), real())[1]
            )
            before = store.written_position
            peer.data_received(frame(0, alike(2000)))
            assert frames.decode(next(split(wire.written))).code == 0
            assert set(wrote) <= {before}
        finally:
            await broker.server.close()

    run(main())
