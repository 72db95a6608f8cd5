"""Each way to append leaves the bytes that `record.encode` makes: one message, a run, a batch, a layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import batch, record
from rocketspark.store import BatchMessage, Store, StoreSettings
from rocketspark.store.commitlog.dispatch import dispatch_request
from rocketspark.store.index.key_hashes import BatchKeys
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows(
    "one record: one table of fields from which all readers take their offsets; one function for queue and index"
)

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
HOST = bytes.fromhex("7f00000100002a9f")

WORD = st.sampled_from([b"A", b"B", b"k1 k2", "\xe9".encode(), b"v" * 2100])
PROPERTIES = st.lists(st.tuples(st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"color"]), WORD), max_size=3)
MESSAGES = st.lists(
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=60), PROPERTIES), min_size=24, max_size=40
).map(lambda made: [batch_message(*one) for one in made])


def batch_message(flag: int, body: bytes, pairs: list[tuple[bytes, bytes]]) -> BatchMessage:
    stored = b"".join(b"%b\1%b\2" % pair for pair in pairs)
    found = dispatch_request(0, stored)
    return BatchMessage(body, stored, found.tags_code, found.unique_id, found.keys, found.tags, flag)


def singly(store: Store, messages: list[BatchMessage]) -> None:
    for m in messages:
        store.append(
            b"t", 3, m.body, m.properties, m.tags_code, m.unique_id, m.keys, m.tags, NOW_MS, m.flag, 0, NOW_MS, BORN
        )


def as_general(store: Store, messages: list[BatchMessage]) -> None:
    queue = store.consume_queues.make(b"t", 3)
    queue.rare = True
    singly(store, messages)


def as_run(store: Store, messages: list[BatchMessage]) -> None:
    store.consume_queues.make(b"t", 3)
    queue = store.plain_queue(b"t", 3)
    assert queue is not None
    # Large bodies come as a view of what was received.
    bodies = [memoryview(bytes(m.body)) if n % 2 else m.body for n, m in enumerate(messages)]
    placed = store.append_run(
        [
            (queue, body, record.after_body(b"t", m.properties), m.tags_code, m.unique_id, m.keys, m.tags, m.flag, 0,
             NOW_MS, 0)
            for m, body in zip(messages, bodies, strict=True)
        ],
        NOW_MS, BORN,
    )  # fmt: skip
    assert len(placed) == len(messages)


def as_batch(store: Store, messages: list[BatchMessage]) -> None:
    store.append_batch(b"t", 3, messages, NOW_MS, 0, NOW_MS, BORN)


def as_layout(store: Store, messages: list[BatchMessage]) -> None:
    layout = batch.scan(batch.encode([batch.BatchItem(m.flag, bytes(m.body), m.properties) for m in messages]))
    if layout is None:
        as_batch(store, messages)  # One that begins with a large message is not scanned.
        return
    keys = BatchKeys()
    keys.single = [(n, m.unique_id, m.keys, m.tags) for n, m in enumerate(messages)]
    assert store.takes_layouts(b"t", 3)
    codes = np.array([m.tags_code for m in messages], np.int64)
    _, first, end = store.append_layout(b"t", 3, layout, (codes, keys), NOW_MS, 0, NOW_MS, BORN)
    # Up to there a flush is waited for.
    assert (first, end) == (0, store.written_position)


@settings(max_examples=25)
@given(messages=MESSAGES, alike=st.booleans())
def test_every_way_leaves_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, messages: list[BatchMessage], alike: bool
) -> None:
    if alike:
        messages = [messages[0]._replace(flag=n) for n in range(len(messages))]
    log, units = b"", []
    for n, m in enumerate(messages):
        encoded = record.encode(
            topic=b"t", queue_id=3, queue_offset=n, position=len(log), body=bytes(m.body), properties=m.properties,
            flag=m.flag, born_time_ms=NOW_MS, born_host=BORN, store_time_ms=NOW_MS, store_host=HOST,
        )  # fmt: skip
        units.append((len(log), len(encoded), string_hash(m.tags.decode()) if m.tags else 0))
        log += encoded
    ways: list[Callable[[Store, list[BatchMessage]], None]] = [singly, as_general, as_run, as_batch, as_layout]
    found = []
    for way in ways:
        root: Path = tmp_path_factory.mktemp("store")
        sizes = {"log_file_bytes": 1 << 20, "queue_file_units": 50, "index_slots": 64, "index_entries": 2000}
        store = Store(StoreSettings(root=str(root), **sizes), store_host=HOST, clock=ManualClock(NOW_MS))
        store.open()
        way(store, messages)
        assert store.queue_units("t", 3, 0, len(messages)) == units, way.__name__
        store.close()
        assert (root / "commitlog" / f"{0:020d}").read_bytes()[: len(log) + 8] == log + bytes(8), way.__name__
        found.append([path.read_bytes() for path in sorted((root / "index").rglob("*"))])
    assert found == [found[0]] * len(ways)
