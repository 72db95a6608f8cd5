"""Tables on their way to disk and to who asks: what a file holds whatever comes between, how often one is made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.patience import LIMIT_S

from rocketspark import machine
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage import table_saving
from rocketspark.broker.storage.json_tables import JsonFile, sorted_json
from rocketspark.broker.storage.table_saving import SavedTable, UnsavedChanges, pieces
from rocketspark.broker.topics import Topics
from rocketspark.errors import StoreFull
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import GroupConfig, GroupConfigTable, OffsetTable, TopicConfig, TopicConfigTable

pytestmark = pytest.mark.shows("100,000 topics, groups or offsets")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_saving, "SMALL_ROWS", 0)
    monkeypatch.setattr(table_saving, "ROWS_IN_PIECE", 3)


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=12))
def test_pieces_make_the_whole(queues: dict[str, int]) -> None:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=n) for name, n in queues.items()}
    found = list(pieces(TopicConfigTable(), "topicConfigTable", table))
    assert b"".join(found) == sorted_json(TopicConfigTable(topic_config_table=table))
    assert len(found) == 2 + -(-len(queues) // 3)


class Disk:
    """A file whose writes wait for `gate`; `begun` counts them. `full` makes them fail."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.full = False
        self.texts: list[bytes] = []
        self.rows: dict[str, int] = {}

    def write(self, text: bytes) -> None:
        self.begun.release()
        assert self.gate.acquire(timeout=LIMIT_S)
        if self.full:
            raise StoreFull("no room")
        self.texts.append(text)

    def snapshot(self) -> Iterator[bytes]:
        rows = list(self.rows.items())
        return iter([repr(rows).encode()])

    async def is_writing(self) -> None:
        await asyncio.to_thread(self.begun.acquire)

    def put(self, name: str, table: UnsavedChanges) -> None:
        self.rows[name] = 1
        table.changed()


def with_disk(act: Any) -> None:
    async def main() -> None:
        disk, beside = Disk(), BackgroundThread("test")
        table = UnsavedChanges("table", lambda: disk.rows, disk.snapshot, disk.write)
        table.begin(asyncio.get_running_loop().call_soon, beside)
        try:
            await act(disk, table)
        finally:
            disk.gate.release(100)
            beside.close()

    asyncio.run(main())


def test_who_changes_a_table_while_it_is_saved_waits_for_the_next_save() -> None:
    async def act(disk: Disk, table: UnsavedChanges) -> None:
        disk.put("a", table)
        first = asyncio.create_task(table.saved())
        await disk.is_writing()
        for name in "bcd":
            disk.put(name, table)
        later = [asyncio.create_task(table.saved()) for _ in range(3)]
        await asyncio.sleep(0)
        disk.gate.release()
        await first
        await disk.is_writing()
        assert not any(task.done() for task in later)
        disk.gate.release()
        await asyncio.gather(*later)
        # One save for all that came while the first was written.
        assert disk.texts == [b"[('a', 1)]", b"[('a', 1), ('b', 1), ('c', 1), ('d', 1)]"]

    with_disk(act)


@pytest.mark.parametrize(("turn_s", "saves"), [(0.0, 1), (table_saving.GATHERED_S / 4, 5)])
def test_small_changes_of_turns_in_a_row_are_saved_together_for_a_time(
    turn_s: float, saves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who waits for one of them waits for that save."""
    monkeypatch.setattr(table_saving, "SMALL_ROWS", 1000)
    clock = [0.0]
    monkeypatch.setattr(machine, "perf_counter", lambda: clock[0])

    async def act(disk: Disk, table: UnsavedChanges) -> None:
        disk.gate.release(100)
        waiting = []
        for n in range(20):
            disk.put(str(n), table)
            waiting.append(asyncio.create_task(table.saved()))
            clock[0] += turn_s
            await asyncio.sleep(0)
            # Nobody is told before.
            assert disk.texts or not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        assert len(disk.texts) == saves
        assert disk.texts[-1].count(b"(") == 20

    with_disk(act)


def test_a_small_save_that_fails_is_told_to_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_saving, "SMALL_ROWS", 1000)

    async def act(disk: Disk, table: UnsavedChanges) -> None:
        def fails(text: bytes) -> None:
            raise StoreFull("no room", needed_bytes=1, free_bytes=0)

        table._write = fails
        waiting = []
        for name in "ab":
            disk.put(name, table)
            waiting.append(asyncio.create_task(table.saved()))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [StoreFull] * 2
        table._write = disk.write
        disk.gate.release(100)
        table.again()
        await table.saved()
        assert disk.texts == [b"[('a', 1), ('b', 1)]"]

    with_disk(act)


def test_what_nobody_waits_for_is_saved_too() -> None:
    async def act(disk: Disk, table: UnsavedChanges) -> None:
        disk.put("a", table)
        await disk.is_writing()
        disk.put("b", table)
        disk.gate.release(2)
        await disk.is_writing()
        await table.saved()
        assert disk.texts[-1] == b"[('a', 1), ('b', 1)]"

    with_disk(act)


def test_an_older_state_never_replaces_a_newer_one() -> None:
    """The last flush at the end overtakes a save whose turn in the thread has not come."""

    async def act(disk: Disk, table: UnsavedChanges) -> None:
        busy = threading.Event()
        assert table._beside is not None
        waits = table._beside.run(lambda: busy.wait(LIMIT_S))
        disk.put("a", table)
        await asyncio.sleep(0)
        disk.put("b", table)
        disk.gate.release(2)
        table.flush()
        busy.set()
        await waits
        await table.saved()
        # The thread's own was dropped: whatever else runs there comes behind it.
        await table._beside.run(lambda: None)
        assert disk.texts == [b"[('a', 1), ('b', 1)]"]

    with_disk(act)


def test_a_save_that_failed_is_told_and_tried_again() -> None:
    async def act(disk: Disk, table: UnsavedChanges) -> None:
        disk.full = True
        disk.gate.release(100)
        disk.put("a", table)
        with pytest.raises(StoreFull):
            await table.saved()
        with pytest.raises(StoreFull):
            await table.saved()
        disk.full = False
        await table.saved()
        assert disk.texts == [b"[('a', 1)]"]

    with_disk(act)


def made_of(count: int, root: Path) -> tuple[Topics, SubscriptionGroups, ConsumerOffsets]:
    settings = BrokerSettings(store_root=str(root))
    topics = Topics(settings, JsonFile(root / "topics.json", TopicConfigTable))
    groups = SubscriptionGroups(settings, JsonFile(root / "groups.json", GroupConfigTable))
    offsets = ConsumerOffsets(JsonFile(root / "offsets.json", OffsetTable, encode_offsets))
    topics.put_all([TopicConfig(topic_name=f"t{n}") for n in range(count)])
    groups.put_all([GroupConfig(group_name=f"g{n}") for n in range(count)])
    groups.set_readable("g1", "t1", False)
    for n in range(count):
        offsets.commit(f"g{n}", "t", n % 3, n)
    return topics, groups, offsets


def test_documents_of_a_broker_are_those_of_one_piece(tmp_path: Path) -> None:
    topics, groups, offsets = made_of(20, tmp_path)
    table = TopicConfigTable(topic_config_table=topics.table, data_version=topics.version)
    assert (tmp_path / "topics.json").read_bytes() == bodies.encode(table)
    assert bodies.encode(topics.wrapper()) == bodies.encode(
        bodies.java_json.decode(b"".join(topics.wrapper_json()), TopicConfigTable)
    )
    whole = GroupConfigTable(
        subscription_group_table=groups.table, forbidden_table=groups.forbidden, data_version=groups.version
    )
    assert (tmp_path / "groups.json").read_bytes() == bodies.encode(whole)
    text = encode_offsets(OffsetTable(offset_table=offsets.table, data_version=offsets.version))
    assert b"".join(offsets.snapshot()) == text


@pytest.mark.shows("mended: a large consumerOffset.json holds an older progress of half messages than of their ends")
def test_how_far_half_and_op_messages_are_done_is_of_one_moment(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "consumerOffset.json", OffsetTable, encode_offsets)
    offsets = ConsumerOffsets(file)
    half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    offsets.commit("CID_RMQ_SYS_TRANS", half, 0, 1)
    for n in range(1500):
        offsets.commit(f"g{n}", "t", 0, n)
    offsets.commit("CID_RMQ_SYS_TRANS", op, 0, 1)
    parts = offsets.snapshot()
    made = [next(parts), next(parts)]
    for topic in (half, op):
        offsets.commit("CID_RMQ_SYS_TRANS", topic, 0, 2)
    offsets.commit("g1400", "t", 0, 7)
    file.write(b"".join([*made, *parts]))
    found = ConsumerOffsets(file)
    assert [found.get("CID_RMQ_SYS_TRANS", topic, 0) for topic in (half, op)] == [1, 1]
    assert found.get("g1400", "t", 0) == 7


def test_a_broker_s_permission_cuts_what_is_shown_of_each_topic(tmp_path: Path) -> None:
    settings = BrokerSettings(store_root=str(tmp_path))
    topics = Topics(settings, JsonFile(tmp_path / "topics.json", TopicConfigTable))
    topics.put_all([TopicConfig(topic_name=f"t{n}", perm=6) for n in range(7)])
    before = topics.state()
    settings.broker_permission = 4
    assert topics.state() != before
    shown = bodies.java_json.decode(b"".join(topics.wrapper_json()), TopicConfigTable).topic_config_table
    assert {shown[f"t{n}"].perm for n in range(7)} == {4}
    assert {topics.table[f"t{n}"].perm for n in range(7)} == {6}


def test_offsets_that_are_committed_while_they_are_saved(tmp_path: Path) -> None:
    _, _, offsets = made_of(20, tmp_path)

    async def main() -> None:
        beside = BackgroundThread("test")
        offsets.begin(asyncio.get_running_loop().call_soon, beside)
        busy = threading.Event()
        waits = beside.run(lambda: busy.wait(LIMIT_S))
        offsets.save()
        await asyncio.sleep(0)
        offsets.commit("g1", "t", 7, 70)
        offsets.commit("new", "t", 0, 1)
        busy.set()
        await waits
        await offsets.unsaved.saved()
        # Another queue of a group may be in or not; the new group is in the next save.
        kept = ConsumerOffsets(JsonFile(tmp_path / "offsets.json", OffsetTable))
        assert kept.of("g5", "t") == {2: 5}
        assert kept.of("new", "t") == {}
        offsets.save()
        await asyncio.sleep(0)
        await offsets.unsaved.saved()
        beside.close()
        offsets.commit("last", "t", 0, 1)
        offsets.finish()

    asyncio.run(main())
    kept = ConsumerOffsets(JsonFile(tmp_path / "offsets.json", OffsetTable))
    assert kept.table == offsets.table
    assert (kept.of("g1", "t"), kept.of("new", "t"), kept.of("last", "t")) == ({1: 1, 7: 70}, {0: 1}, {0: 1})


def test_a_document_is_made_once_for_all_who_ask() -> None:
    async def main() -> None:
        state = 0
        made: list[int] = []
        gate = threading.Semaphore(0)

        def snapshot() -> Iterator[bytes]:
            now = state
            made.append(now)

            def parts() -> Iterator[bytes]:
                assert gate.acquire(timeout=LIMIT_S)
                yield b"%d" % now

            return parts()

        beside = BackgroundThread("test")
        document = SavedTable(lambda: state, lambda: [1, 2, 3], snapshot, beside)
        assert document.now() is None
        first = [asyncio.create_task(document.made()) for _ in range(5)]
        await asyncio.sleep(0)
        state = 1
        later = [asyncio.create_task(document.made()) for _ in range(5)]
        await asyncio.sleep(0)
        gate.release(10)
        # None is older than who asked for it.
        assert {await task for task in later} == {(3, b"1")}
        assert {await task for task in first} <= {(3, b"0"), (3, b"1")}
        assert made == [0, 1]
        assert document.now() == (3, b"1")
        state = 2
        assert document.now() is None
        beside.close()

    asyncio.run(main())
