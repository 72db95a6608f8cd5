"""The compaction logs of a store: which queues have one, how far each is, and the reads that they answer.

Rule: a log follows its consume queue, message by message; what it does not have yet is read from the queue. So a log
that is behind, or gone, hides nothing that the commit log has.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping

from rocketspark.errors import StoreError, StoreFull
from rocketspark.store.compaction.compaction_log import CompactionLog
from rocketspark.store.compaction.segments import Places
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT_BYTES
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, failure
from rocketspark.store.settings import StoreSettings

Ranges = Callable[[str, int], tuple[int, int]]
_log = logging.getLogger("rocketspark.store")
# A digest of a key and its offset, in RocketMQ's table of keys (CompactionLog.OffsetMap, 5.x).
_KEY_BYTES = 24


def segment_bytes(log_bytes: int, units_bytes: int) -> tuple[int, int]:
    """Return the bytes of a segment's two files for compactionMappedFileSize and compactionCqMappedFileSize.

    Those of units are whole units; those of the log a multiple of that, at least five times (CompactionLog, 5.x).
    """
    units_bytes = max(units_bytes // BATCH_UNIT_BYTES, 2) * BATCH_UNIT_BYTES
    times, rest = divmod(log_bytes, units_bytes)
    if times < 5:
        return units_bytes * 5, units_bytes
    return (times if 0 < rest < units_bytes >> 1 else times + 1) * units_bytes, units_bytes


class CompactionStore:
    """The folder `compaction` of a store. `logs`: by topic and queue id."""

    def __init__(self, settings: StoreSettings, files: OsFiles) -> None:
        self._root = f"{settings.root}/compaction"
        self._files = files
        self._log_bytes, self._units_bytes = segment_bytes(
            settings.compaction_log_bytes, settings.compaction_units_bytes
        )
        self._keys_max = max(settings.compaction_keys_bytes // _KEY_BYTES, 100)
        self.logs: dict[tuple[str, int], CompactionLog] = {}
        self._done: dict[str, int] = {}
        self._given_up = False

    @property
    def _positions_path(self) -> str:
        return f"{self._root}/position-checkpoint"

    def open(self, topics: Collection[str], gone: Collection[str], ranges: Ranges, *, crashed: bool) -> None:
        """Open the logs of topics. Raises StoreFull, StoreUnwritable.

        `gone`: topics that were deleted; what a kill left of their logs is removed. `ranges`: the oldest and the next
        offset of a queue; what a log has beyond that, as the commit log lost its end, is forgotten. `crashed`: the last
        run was killed.
        """
        try:
            found = json.loads(config_files.read(self._positions_path) or "{}").get("queueOffsetMap", {})
            self._done = {name: int(at) for name, at in found.items()}
        except (ValueError, TypeError, AttributeError):
            self._done = {}  # All is compacted once more.
        for topic in self._folders() & set(gone):
            self.delete(topic)
        for topic in topics:
            folder = f"{self._root}/compactionLog/{topic}"
            names = os.listdir(folder) if os.path.isdir(folder) else ()
            for queue_id in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
                log = self._made(topic, queue_id)
                oldest, end = ranges(topic, queue_id)
                log.open(oldest, crashed=crashed)
                self._cut_beyond(log, end, f"{folder}/{queue_id}")
                self.logs[topic, queue_id] = log

    def _folders(self) -> set[str]:
        """Return the topics that have a folder."""
        found: set[str] = set()
        for kind in ("compactionLog", "compactionCq"):
            folder = f"{self._root}/{kind}"
            found.update(os.listdir(folder) if os.path.isdir(folder) else ())
        return found

    @staticmethod
    def _cut_beyond(log: CompactionLog, end: int, name: str) -> None:
        if log.next > end:
            _log.warning("%s is cut at offset %d, where the queue ends now", name, end)
            log.cut(end)

    def _made(self, topic: str, queue_id: int) -> CompactionLog:
        log, units = (f"{self._root}/{kind}/{topic}/{queue_id}" for kind in ("compactionLog", "compactionCq"))
        return CompactionLog(Places(log, units, self._log_bytes, self._units_bytes), self._files)

    def follow(self, topic: str, queue_id: int, queue: ConsumeQueue) -> CompactionLog:
        """Return the log of a queue, a new one if it has none yet. Raises StoreFull, StoreUnwritable."""
        found = self.logs.get((topic, queue_id))
        if found is None:
            found = self._made(topic, queue_id)
            found.open(queue.min, crashed=True)
            self.logs[topic, queue_id] = found
        self._cut_beyond(found, queue.next, f"{self._root}/compactionLog/{topic}/{queue_id}")
        return found

    def cut(self, ranges: Ranges) -> None:
        """Forget what logs have beyond the ends of their queues. Raises StoreFull, StoreUnwritable."""
        for (topic, queue_id), log in self.logs.items():
            self._cut_beyond(log, ranges(topic, queue_id)[1], f"{self._root}/compactionLog/{topic}/{queue_id}")

    def unfollow(self, topic: str) -> None:
        """Read a topic from its queues alone again. Its files stay, for a time when it is followed again."""
        for key in [key for key in self.logs if key[0] == topic]:
            self.logs.pop(key).end()

    def begin_anew(self, topic: str, queue_id: int) -> None:
        """Remove the log of a queue that belonged to an earlier topic of the same name. Raises StoreFull,
        StoreUnwritable.
        """
        _log.warning("the compaction log of queue %d of %s is of an earlier topic: it begins anew", queue_id, topic)
        self.logs.pop((topic, queue_id)).end()
        self._done.pop(f"{topic}_{queue_id}", None)
        self._remove(f"{topic}/{queue_id}")
        self._write_positions()

    def of(self, topic: str, queue_id: int) -> CompactionLog | None:
        """Return the log of a queue, if it has one."""
        return self.logs.get((topic, queue_id))

    def flush(self) -> None:
        """Put all on the disk. For a thread. Raises StoreFull, StoreUnwritable, after all that can be written."""
        failed: StoreError | None = None
        for log in list(self.logs.values()):
            try:
                log.flush()
            except StoreError as e:
                failed = e
        if failed is not None:
            raise failed

    def compact_all(self, until: Mapping[tuple[str, int], int] | None = None) -> Iterator[tuple[str, int]]:
        """Compact each log that has new closed segments, and yield its topic and queue id. For a thread. `until`: where
        no message at or after this offset may take another's place.

        One that cannot be written now is passed over with a line in the log.
        """
        for (topic, queue_id), log in list(self.logs.items()):
            if self._given_up:
                return
            name, end = f"{topic}_{queue_id}", None if until is None else until.get((topic, queue_id), 0)
            try:
                while (upto := log.compact(done := self._done.get(name, -1), self._keys_max, end)) != done:
                    if self.logs.get((topic, queue_id)) is not log:
                        break
                    self._done[name] = upto
                    self._write_positions()
                    yield topic, queue_id
            except StoreFull as e:
                _log.error("messages of %s are not compacted: %s", topic, e)

    def give_up(self) -> None:
        """Have `compact_all`, in its thread, end soon: the store is closed."""
        self._given_up = True
        for log in self.logs.values():
            log.give_up()

    def _write_positions(self) -> None:
        text = json.dumps({"queueOffsetMap": dict(self._done)}, ensure_ascii=False, separators=(",", ":"))
        config_files.write(self._positions_path, text, self._files)

    def delete(self, topic: str) -> None:
        """Remove the logs of a topic. Raises StoreFull, StoreUnwritable."""
        self.unfollow(topic)
        for name in [name for name in self._done if name.rpartition("_")[0] == topic]:
            del self._done[name]
        self._remove(topic)
        if os.path.exists(self._positions_path):
            self._write_positions()

    def _remove(self, place: str) -> None:
        # Units first: a kill in between leaves records that nothing tells of, whose topic is removed at the next start.
        for kind in ("compactionCq", "compactionLog"):
            folder = f"{self._root}/{kind}/{place}"
            try:
                if os.path.isdir(folder):
                    self._files.remove_tree(folder)
                    self._files.sync_directory(os.path.dirname(folder))
            except OSError as e:
                raise failure(e, "remove", folder) from e
