"""What queue and index get of a record is the same whether it was just appended, replayed or made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import sysflags
from rocketspark.store import Store, StoreSettings
from rocketspark.store.commitlog.dispatch import dispatch_request, enters_index, enters_queue, unit_code_of

pytestmark = pytest.mark.shows(
    "one record: one table of fields from which all readers take their offsets; one function for queue and index"
)

NOW_MS = 1_700_000_000_000


def test_queue_and_index_get_the_same_of_a_record() -> None:
    found = dispatch_request(0, b"TAGS\x01A\x02KEYS\x01k l\x02UNIQ_KEY\x01u\x02INNER_NUM\x013\x02")
    assert found == (string_hash("A"), b"u", b"k l", b"A", 1)
    assert dispatch_request(sysflags.INNER_BATCH, b"INNER_NUM\x013\x02") == (0, None, None, None, 3)


@pytest.mark.parametrize(
    ("kind", "queued", "indexed"),
    [
        (0, True, True),
        (sysflags.TRANSACTION_PREPARED, False, True),
        (sysflags.TRANSACTION_COMMIT, True, True),
        (sysflags.TRANSACTION_ROLLBACK, False, False),
    ],
)
def test_half_and_rolled_back_messages_are_left_out(
    kind: int, queued: bool, indexed: bool, make_store: Any, send: Callable[..., Any]
) -> None:
    assert (enters_queue(kind), enters_index(kind)) == (queued, indexed)
    store: Store = make_store()
    send(store, "t", 0, b"body", keys="k", sys_flag=kind)
    assert store.queue_range("t", 0) == (0, int(queued))
    assert len(store.query("t", "k", 8, 0, 1 << 60)) == int(indexed)


def test_units_made_anew_from_the_log_are_those_of_the_appends(
    tmp_path: Path, make_store: Any, small: Callable[..., StoreSettings], send: Callable[..., Any]
) -> None:
    store: Store = make_store()
    for n in range(20):
        send(store, "t", n % 2, b"%d" % n, tag=f"T{n % 3}" if n % 4 else None, keys=f"k{n}", now_ms=NOW_MS + n)
        send(store, "SCHEDULE_TOPIC_XXXX", 2, b"%d" % n, tag="T", now_ms=NOW_MS + n)
    queues = {(topic, i): store.queue_range(topic, i)[1] for topic, ids in store.queues().items() for i in ids}
    units = {key: store.queue_units(*key, 0, count) for key, count in queues.items()}
    for (topic, queue_id), found in units.items():
        queue = store.consume_queues.find(topic, queue_id)
        assert queue is not None
        for position, _, code in found:
            view = store.record_at(position)
            assert view is not None
            assert unit_code_of(queue, view) == code
    store.close()
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    again: Store = make_store()
    assert {key: again.queue_units(*key, 0, count) for key, count in queues.items()} == units
    assert [len(again.query("t", f"k{n}", 8, 0, 1 << 60)) for n in range(20)] == [1] * 20
