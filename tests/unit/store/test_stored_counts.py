"""What was stored is counted per topic without a counter per message; recovered messages do not count."""

from __future__ import annotations

from pathlib import Path

from rocketspark.protocol.message import record_layout, sysflags
from rocketspark.store.commitlog.append_message import BatchMessage
from rocketspark.store.settings import StoreSettings
from rocketspark.store.store import Store

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
V6 = b"\x00" * 15 + b"\x01\x00\x00\x00\x01"


def opened(path: Path) -> Store:
    store = Store(
        StoreSettings(root=str(path), log_file_bytes=1 << 20, queue_file_units=1000, index_slots=100, index_entries=400)
    )
    store.open()
    return store


def put(store: Store, topic: bytes, body: bytes, host: bytes = HOST, sys_flag: int = 0, queue_id: int = 0) -> int:
    position, _, end = store.append(topic, queue_id, body, b"", 0, None, None, None, 1, 0, sys_flag, 1, host)
    return end - position


def test_counts_messages_and_bytes_since_the_last_call(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sizes = [put(store, b"a", b"one"), put(store, b"a", b"two!", queue_id=3)]
    other = put(store, b"b", b"", V6)
    assert sizes == [record_layout.record_bytes(3, 1, 0, 0), record_layout.record_bytes(4, 1, 0, 0)]
    assert sorted(store.take_stored()) == [("a", 1, sizes[0]), ("a", 1, sizes[1]), ("b", 1, other)]
    assert store.take_stored() == []
    batch = store.append_batch(b"a", 0, [BatchMessage(b"x", b""), BatchMessage(b"yy", b"")], 1, 0, 1, HOST)
    assert store.take_stored() == [("a", 2, batch[-1][2] - batch[0][0])]
    store.close()


def test_records_in_no_queue_are_not_counted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, b"a", b"half", sys_flag=sysflags.TRANSACTION_PREPARED)
    assert store.take_stored() == []
    store.close()


def test_what_was_there_before_the_start_is_not_counted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, b"a", b"before")
    # No close: the next start recovers the message from the log.
    store._give_back()
    again = opened(tmp_path)
    assert again.queue_range("a", 0) == (0, 1)
    assert again.take_stored() == []
    put(again, b"a", b"after")
    assert [(t, n) for t, n, _ in again.take_stored()] == [("a", 1)]
    again.close()
    third = opened(tmp_path)
    assert third.queue_range("a", 0) == (0, 2)
    assert third.take_stored() == []
    third.close()
