"""Compaction logs after failures: what a power cut or a full disk leaves of a row of segments hides no message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.store.conftest import NOW_MS, expire, send
from tests.unit.store.test_compaction import TOPIC, copy, found, opened

from rocketspark.errors import StoreFull
from rocketspark.store.compaction.copying import CompactionCopies
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows("compaction: a full disk, a kill or a power cut hides no message between two segments")


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("removed", [False, True])
def test_a_hole_that_a_power_cut_left_between_segments_is_filled(tmp_path: Path, left: int, removed: bool) -> None:
    store = opened(tmp_path, log_file_bytes=4096)
    for n in range(70):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    copy(store)
    store.flush_queues()
    segments = store.compaction.logs[TOPIC, 0].segments
    if removed:
        # The compaction log alone has what lies before the segment before the last.
        position = store.queue_units(TOPIC, 0, segments[-2].unit(0).offset, 1)[0][0]
        store.flush_log()
        for remove in store.expire_steps(NOW_MS + 1, below=position):
            if remove is not None:
                remove()
    damaged = segments[-2]
    kept = damaged.unit(left - 1).at + damaged.unit(left - 1).size if left else 0
    store.abandon()
    # The last one was written to the disk by chance; of the one before it only the first sectors were.
    for path, end in ((damaged.log_path, kept), (damaged.units_path, left * 46)):
        size = os.path.getsize(path)
        os.truncate(path, end)
        os.truncate(path, size)
    store = opened(tmp_path, log_file_bytes=4096)
    oldest = store.stored_range(TOPIC, 0)[0]
    copy(store)
    bodies = [n for n, _ in found(store)]
    assert set(range(oldest, 70)) <= set(bodies)
    assert bodies == sorted(bodies)
    store.close()


class NoNewFile(OsFiles):
    """A disk that has no room for files of compaction beyond the first `left`."""

    left = 1 << 30

    def create(self, path: str, size: int, *, keep: bool = False) -> None:
        if "/compaction/" in path:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().create(path, size, keep=keep)


@pytest.mark.parametrize("failures", [1, 2])
def test_segments_made_before_a_failure_keep_their_messages(tmp_path: Path, failures: int) -> None:
    store = opened(tmp_path, files := NoNewFile(), log_file_bytes=4096)
    for n in range(60):
        send(store, TOPIC, 0, b"%d" % n, keys=f"k{n}")
    store.flush_log()
    for room in (5, 0)[:failures]:
        files.left = room
        with pytest.raises(StoreFull):
            copy(store)
        # As retention does it: what is copied and on the disk may go.
        store.compaction.flush()
        for remove in store.expire_steps(NOW_MS + 1, below=CompactionCopies(store).uncopied_from(TOPIC, 0)):
            if remove is not None:
                remove()
        assert [n for n, _ in found(store)] == list(range(60))
    store.abandon()
    store = opened(tmp_path, log_file_bytes=4096)
    assert [n for n, _ in found(store)] == list(range(60))
    copy(store)
    expire(store, NOW_MS + 1)
    assert [n for n, _ in found(store)] == list(range(60))
    store.close()
