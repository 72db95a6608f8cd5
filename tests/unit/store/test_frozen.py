"""Stores read as files, without opening them: the rows a broker would give, and never others."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.protocol import record
from rocketspark.store import Store
from rocketspark.store.frozen import Frozen
from rocketspark.store.log_read import LogRow
from rocketspark.store.records_read import RecordReader

Golden = Any  # root, manifest, settings: see conftest
Lost = list[tuple[str, int, int, int, str]]


def read_all(
    root: Path, commit_logs: tuple[str, ...] = (), lost: Lost | None = None, *, check_crc: bool = True
) -> dict[tuple[str, int], list[bytes]]:
    """Every record of every queue; what is lost fails, or is noted."""
    found: dict[tuple[str, int], list[bytes]] = {}
    frozen = Frozen(str(root), commit_logs)
    try:
        for key, queue in frozen.load(lambda topic: True).items():
            records: list[bytes] = []
            files = LogRow(frozen.log_directories)

            def gone(first: int, end: int, why: str, key: tuple[str, int] = key) -> None:
                assert lost is not None, (key, first, end, why)
                lost.append((*key, first, end, why))

            for piece in RecordReader(queue, files, gone, check_crc=check_crc).pieces():
                records += (
                    bytes(piece.buffer[start : start + size])
                    for start, size in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True)
                )
            files.close()
            if records:
                found[key] = records
        if lost is None:
            assert frozen.damages == []
    finally:
        frozen.close()
    return found


def appended(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """The same as `read_all`, by the store itself."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for topic, ids in store.queues().items():
        for queue_id in ids:
            records: list[bytes] = []
            offset, end = store.queue_range(topic, queue_id)
            while offset < end:
                read = store.read(topic, queue_id, offset, 1000, 1 << 20)
                for piece in read.records:
                    at = 0
                    while at < len(piece):
                        size = int.from_bytes(piece[at : at + 4], "big")
                        records.append(bytes(piece[at : at + size]))
                        at += size
                offset = read.next_offset
            if records:
                found[topic, queue_id] = records
    return found


NAMES = ["store", "store_unclean", "store_ext"]


@pytest.mark.parametrize("name", ["store", "store_ext"])
def test_official_stores_are_read_as_their_manifest_says(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    expected = defaultdict(list)
    for message in unpacked.manifest["messages"]:
        if message["sysFlag"] & 4 == 0:
            place = (message["queueOffset"], message["commitLogOffset"], message["size"])
            expected[message["topic"], message["queueId"]].append(place)
    places = {
        key: [(r.queue_offset, r.position, r.size) for r in map(record.decode, rows)]
        for key, rows in read_all(unpacked.root).items()
    }
    assert places == {key: sorted(rows) for key, rows in expected.items()}


@pytest.mark.parametrize("name", NAMES)
def test_official_stores_are_read_as_a_broker_reads_them(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    found = read_all(unpacked.root)
    store = Store(unpacked.settings)
    store.open()
    expected = appended(store)
    store.close()
    assert found == expected
    assert read_all(unpacked.root) == expected


@pytest.mark.parametrize("name", NAMES)
def test_without_consume_queues_the_log_says_the_same(golden: Callable[[str], Golden], name: str) -> None:
    unpacked = golden(name)
    expected = read_all(unpacked.root)
    shutil.rmtree(unpacked.root / "consumequeue")
    shutil.rmtree(unpacked.root / "batchconsumequeue", ignore_errors=True)
    assert read_all(unpacked.root) == expected
