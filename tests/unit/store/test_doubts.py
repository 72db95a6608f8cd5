"""A bit that flipped where a record's CRC does not look: a slave asks its master for the record, and has all again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.test_replica import log_of

from rocketspark.protocol.message.record_layout import AT, FIXED_BYTES_V4
from rocketspark.store import Store

pytestmark = pytest.mark.shows(
    "mended: a record of a slave whose queue, offset or topic is damaged is found at its start, or as it is read, and"
    " taken from its master"
)

COUNT, QUEUES = 24, 3
BODY = 20
# The lowest byte of each; the topic's first letter.
FIELDS = {
    "queue id": AT["queue_id"] + 3,
    "queue offset": AT["queue_offset"] + 7,
    "topic": FIXED_BYTES_V4 + BODY + 1,
}


def body(number: int) -> bytes:
    return (b"message %d" % number).ljust(BODY)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bit", [0, 3])
@pytest.mark.parametrize("number", [0, 1, 10, COUNT - 1])
@pytest.mark.parametrize("lost", [True, False], ids=["queues made anew", "queues kept"])
def test_it_is_taken_from_the_master(
    make_store: Any, tmp_path: Path, send: Any, field: str, bit: int, number: int, lost: bool
) -> None:
    master, slave = make_store(tmp_path / "m"), make_store(tmp_path / "s")
    for i in range(COUNT):
        send(master, "t", i % QUEUES, body(i))
    slave.become_replica()
    slave.append_raw(0, log_of(master))
    slave.dispatch_received()
    slave.close()
    file = tmp_path / "s/commitlog/00000000000000000000"
    stored = bytearray(file.read_bytes())
    begin = stored.index(body(number)) - FIXED_BYTES_V4
    stored[begin + FIELDS[field]] ^= 1 << bit
    file.write_bytes(stored)
    if lost:
        shutil.rmtree(tmp_path / "s/consumequeue")
    slave = make_store(tmp_path / "s")
    slave.become_replica()
    mend(master, slave)
    assert log_of(slave) == log_of(master)
    for queue_id in range(QUEUES):
        wanted, got = (read(store, queue_id) for store in (master, slave))
        assert got == wanted


def mend(master: Store, slave: Store) -> None:
    """What a slave does with its master's answers."""
    for begin, size in tuple(slave.log.doubtful.items()):
        right = bytes(master.log_bytes(begin, size))
        if right != slave.log_bytes(begin, size):
            assert slave.mend(begin, right)
    for begin, end in slave.log.damaged:
        assert slave.mend(begin, bytes(master.log_bytes(begin, end - begin)))
    for queue in slave.consume_queues.loaded():
        queue.proven = ()


def read(store: Store, queue_id: int) -> bytes:
    """All that readers get of a queue."""
    found, offset = b"", 0
    while offset < (end := store.queue_range("t", queue_id)[1]):
        read = store.read("t", queue_id, offset, 32, 1 << 20)
        found += b"".join(map(bytes, read.records))
        assert offset < read.next_offset <= end
        offset = read.next_offset
    return found
