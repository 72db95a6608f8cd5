"""A new copy of a broker takes from its master what compaction kept there, and only then what its own log has."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import NOW_MS, expire, send
from tests.unit.store.test_compaction import TOPIC, compact, copy, found, opened

from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.compaction import Compaction
from rocketspark.errors import ServerError, StoreFull, TransportError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store import Store
from rocketspark.store.compaction.copying import CompactionCopies
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows("topics with cleanup.policy=COMPACTION: a new copy has what its master kept")


class Master:
    """A master that does not answer the first `silent` pulls."""

    def __init__(self, store: Store, silent: int) -> None:
        self.store, self.silent = store, silent

    async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
        if self.silent:
            self.silent -= 1
            raise TransportError("it does not answer")
        read = self.store.read(topic, queue_id, offset, 2, 10_000)
        return b"".join(read.records), read.next_offset


def filled(root: Path) -> Store:
    store = opened(root)
    for n in range(200):
        send(store, TOPIC, 0, b"%d" % n + bytes(100), keys="once" if n == 3 else f"k{n % 7}", now_ms=NOW_MS + n)
    store.flush_log()
    return store


@pytest.mark.parametrize("silent", [0, 1])
def test_what_is_older_than_its_own_log_comes_from_the_master(tmp_path: Path, silent: int) -> None:
    theirs, ours = filled(tmp_path / "theirs"), filled(tmp_path / "ours")
    copy(theirs)
    compact(theirs)
    while expire(theirs, NOW_MS + 10_000):
        pass
    while expire(ours, NOW_MS + 10_000):
        pass
    low = ours.queue_range(TOPIC, 0)[0]
    assert low > 100
    master = Master(theirs, silent)
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: master)
    asyncio.run(compaction.copy())
    if silent:
        # Nothing is copied before its turn.
        assert found(ours, low)[0][0] == low
        assert ours.readable_range(TOPIC, 0)[0] == low
        asyncio.run(compaction.copy())
    kept = [each for each in found(theirs) if each[0] < low]
    assert kept[0][0] == 3
    assert [each for each in found(ours) if each[0] < low] == kept
    assert [offset for offset, _ in found(ours) if offset >= low] == list(range(low, 200))
    theirs.close()
    ours.close()


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY])
def test_a_topic_that_may_not_be_read_keeps_no_copy_out_of_the_set(tmp_path: Path, code: int) -> None:
    class Refusing(Master):
        async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
            if self.silent:
                raise ServerError(code, "not now")
            return await super().pull(topic, queue_id, offset)

    theirs, ours = filled(tmp_path / "theirs"), filled(tmp_path / "ours")
    expire(ours, NOW_MS + 10_000)
    master = Refusing(theirs, 1)
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: master)
    asyncio.run(compaction.copy())
    assert compaction.is_whole() is (code == ResponseCode.NO_PERMISSION)
    master.silent = 0
    asyncio.run(compaction.copy())
    assert compaction.is_whole()
    assert [offset for offset, _ in found(ours)] == list(range(200))
    theirs.close()
    ours.close()


def test_a_topic_that_may_not_be_read_holds_no_files_of_a_copy(tmp_path: Path) -> None:
    class Refusing(Master):
        async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
            raise ServerError(ResponseCode.NO_PERMISSION, "not now")

    ours = filled(tmp_path)
    expire(ours, NOW_MS + 10_000)
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: Refusing(ours, 0))
    assert asyncio.run(compaction.copied()) == ours.written_position
    ours.close()


def test_a_queue_that_cannot_be_copied_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    for queue_id in (0, 1):
        send(store, TOPIC, queue_id, b"x", keys="k")

    def copied(copies: CompactionCopies, topic: str, queue_id: int, copy: Any = CompactionCopies.copy) -> bool:
        if queue_id == 0:
            raise StoreFull("no room", needed_bytes=1, free_bytes=0)
        return bool(copy(copies, topic, queue_id))

    monkeypatch.setattr(CompactionCopies, "copy", copied)
    with pytest.raises(StoreFull):
        asyncio.run(Compaction(BrokerSettings(), store, lambda: frozenset({TOPIC}), lambda: None).copy())
    assert store.compaction.logs[TOPIC, 1].next == 1
    store.close()


def test_no_file_of_a_copy_goes_before_it_has_what_is_older(tmp_path: Path) -> None:
    theirs, ours = filled(tmp_path / "theirs"), filled(tmp_path / "ours")
    expire(ours, NOW_MS + 10_000)
    low = ours.queue_range(TOPIC, 0)[0]
    master = Master(theirs, 1)
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: master)
    assert asyncio.run(compaction.copied()) == next(iter(ours.queue_units(TOPIC, 0, low, 1)))[0]
    assert not compaction.is_whole()
    assert asyncio.run(compaction.copied()) == ours.written_position
    assert compaction.is_whole()
    assert [offset for offset, _ in found(ours)] == list(range(200))
    theirs.close()
    ours.close()


def test_a_compaction_puts_the_log_on_the_disk_first(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    for n in range(40):
        send(ours, TOPIC, 0, b"%d" % n, keys=f"k{n % 3}")
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: None)

    async def go() -> None:
        await compaction.copy()
        assert ours.flushed_position < ours.written_position
        await compaction.compact()

    asyncio.run(go())
    # Else a power cut would take the newest message of a key whose older ones are gone.
    assert ours.flushed_position == ours.written_position
    assert len(found(ours)) < 40
    ours.close()


@pytest.mark.shows("compaction: a message that a replica in sync lacks takes no older one's place, as it may be cut")
def test_what_a_replica_lacks_takes_no_others_place(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    for n in range(40):
        send(ours, TOPIC, 0, b"%d" % n, keys="rare" if n in (2, 30) else f"k{n % 3}")
    confirmed = [next(iter(ours.queue_units(TOPIC, 0, 30, 1)))[0]]
    compaction = Compaction(
        BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: None, replicated=lambda: confirmed[0]
    )

    async def go() -> None:
        await compaction.copy()
        await compaction.compact()
        kept = [offset for offset, _ in found(ours)]
        assert 2 in kept
        assert len(kept) < 40
        confirmed[0] = ours.written_position
        await compaction.compact()
        assert 2 not in [offset for offset, _ in found(ours)]
        assert 30 in [offset for offset, _ in found(ours)]

    asyncio.run(go())
    ours.close()


def test_a_replica_that_was_the_master_compacts_without_those_that_it_knew(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    for n in range(40):
        send(ours, TOPIC, 0, b"%d" % n, keys=f"k{n % 3}")
    masters: list[Any] = [None]
    compaction = Compaction(
        BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: masters[0], replicated=lambda: -1
    )

    async def kept() -> int:
        await compaction.copy()
        await compaction.compact()
        return len(found(ours))

    assert asyncio.run(kept()) == 40
    masters[0] = object()
    assert asyncio.run(kept()) < 40
    ours.close()


def test_while_a_compaction_runs_only_what_is_not_copied_holds_log_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = opened(tmp_path)
    send(ours, TOPIC, 0, b"1", keys="k")
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: None)
    end = threading.Event()
    monkeypatch.setattr(ours.compaction, "compact_all", lambda until: iter([(TOPIC, 0)] * (not end.wait(60))))

    async def go() -> None:
        before = await compaction.copied()
        assert before == ours.written_position
        running = asyncio.create_task(compaction.compact())
        await asyncio.sleep(0)
        send(ours, TOPIC, 0, b"2", keys="k")
        assert await compaction.copied() == before
        end.set()
        await running
        assert await compaction.copied() == ours.written_position

    asyncio.run(go())
    ours.close()


@pytest.mark.shows("compaction: a queue whose log cannot be written holds only the log files that it needs")
def test_one_log_that_cannot_be_written_holds_only_what_it_needs(tmp_path: Path) -> None:
    class OneFull(OsFiles):
        full = False

        def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
            if self.full and f"/{TOPIC}/0/" in path:
                raise OSError(28, "No space left on device", path)
            super().write_at(path, at, content)

    files = OneFull()
    ours = opened(tmp_path, files)
    for n in range(10):
        send(ours, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    compaction = Compaction(BrokerSettings(), ours, lambda: frozenset({TOPIC}), lambda: None)
    assert asyncio.run(compaction.copied()) == ours.written_position
    before = ours.written_position
    files.full = True
    for n in range(10):
        send(ours, TOPIC, n % 2, b"%d" % n, keys=f"k{n}")
    assert asyncio.run(compaction.copied()) == before
    assert ours.compaction.logs[TOPIC, 1].on_disk_until == 5
    files.full = False
    assert asyncio.run(compaction.copied()) == ours.written_position
    ours.close()
