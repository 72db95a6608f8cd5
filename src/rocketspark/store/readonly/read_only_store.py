"""A store directory as it is now, read beside a broker or without one. Rule: nothing is written; the log is the truth.

Consume queues count up to a physical offset where they are known to be complete; from there on the log itself is read,
as a broker does that starts after a kill. So early units of a young queue, and queues that lag, are not missed, and
units that point beyond the log's end are not believed.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from rocketspark.errors import ConfigError
from rocketspark.protocol import light_queues
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.record_layout import Ints
from rocketspark.protocol.topic_attributes import is_compacted
from rocketspark.store.commitlog.dispatch import enters_queue
from rocketspark.store.deleted_topics import topics_of
from rocketspark.store.files import checkpoint, config_files
from rocketspark.store.readonly.file_places import listed, unreadable
from rocketspark.store.readonly.log_scan import LogScan, WholeRecord
from rocketspark.store.readonly.queue_units import NO_TAIL, LogTail, QueueFiles, QueueUnitFiles

# Bytes of the log before the safe position that are read again, to notice a tail that was cut.
VERIFY_BYTES = 1 << 20
# A queue that ends so little before the newest message is looked for in the log from its end on.
LAG_BYTES_MAX = 256 << 20
# Times that the log is read from an earlier position because a queue lacks messages before.
_TRIES = 3

QueueKey = tuple[str, int]


class DamagedRange(NamedTuple):
    """A byte range of the log that should hold records and does not."""

    first: int
    end: int


class ReadOnlyStore:
    """A store directory. Close it when done.

    Args:
        root: storePathRootDir.
        commit_logs: the directories of the log where they are elsewhere (storePathCommitLog, several with a comma).

    Raises ConfigError if there is no store, StoreError if it cannot be read.
    """

    def __init__(self, root: str, commit_logs: Sequence[str] = ()) -> None:
        self.root = root
        _check(root, commit_logs)
        self.log_directories = tuple(commit_logs) or (f"{root}/commitlog",)
        self.log = LogScan(self.log_directories)
        self.damages: list[DamagedRange] = []
        # Closed in good order: nobody writes, and its files are of one moment.
        self._clean = False
        # The end of the log, after `load`.
        self.log_end = 0
        self._folders: dict[QueueKey, tuple[str, bool]] = {}

    def topics(self) -> set[str]:
        """Return the topics that have queues or settings. Topics that are only in the log's tail are found by
        `load`.
        """
        return {topic for topic, _ in _queue_folders(self.root)} | self._configured().keys()

    def compacted(self) -> set[str]:
        """Return the topics whose older messages are in compaction logs, as config/topics.json says."""
        return {topic for topic, config in self._topic_table().items() if _is_compacted(config)}

    def load(self, wanted: Callable[[str], bool]) -> dict[QueueKey, QueueFiles]:
        """Return every queue of the wanted topics. Raises StoreError."""
        # In this order: what a checkpoint vouches for is in the queues and the log that are looked at after it.
        self._clean = not os.path.exists(f"{self.root}/abort")
        vouched = self._vouched()
        self._folders = _queue_folders(self.root)
        self.log.close()
        self.log = LogScan(self.log_directories)
        rows = {key: QueueUnitFiles(folder, batch) for key, (folder, batch) in self._folders.items() if wanted(key[0])}
        begin = self._begin(vouched, rows.values(), wanted)
        tails = self._scan(begin, wanted)
        if not self._clean and self.log_end < begin:
            # The checkpoint is of another moment than the log.
            begin = min(self._queues_end(self.log_end), self.log_end)
            tails = self._scan(begin, wanted)
        found, earlier = self._join(rows, tails, begin)
        for _ in range(_TRIES):
            if earlier is None or begin <= self.log.min_position:
                break
            begin = max(min(earlier, begin), self.log.min_position)
            tails = self._scan(begin, wanted)
            found, earlier = self._join(rows, tails, begin)
        for topic, count in self._configured().items():
            if wanted(topic):
                for queue_id in range(count):
                    found.setdefault((topic, queue_id), QueueFiles(topic, queue_id, "", False, 0, 0, 0, NO_TAIL))
        for row in rows.values():
            row.close()
        return found

    def log_of(self, queue: QueueFiles) -> LogScan:
        """Return the log that has a queue's records."""
        return self.log

    def directories_of(self, queue: QueueFiles) -> tuple[str, ...]:
        """Return the directories of that log."""
        return self.log_directories

    def _begin(self, at: int, rows: Collection[QueueUnitFiles], wanted: Callable[[str], bool]) -> int:
        """Return the physical offset from which on the queues are not relied on; `at`: the checkpoint's position."""
        log = self.log
        if not os.path.isdir(f"{self.root}/consumequeue"):
            return log.min_position
        unproved = at <= 0 or (at > log.end() and not self._clean)
        if unproved:
            # Before the first checkpoint, written by RocketMQ before 5.4, or newer than the log here.
            at = self._queues_end(log.end())
        if not self._clean:
            # A broker runs or was killed, or this is a copy made meanwhile: its files may be of different moments.
            ends = [row.end_position(log.end()) for row in rows]
            newest = max([at, *ends])
            at = min([at, *(end for end in ends if newest - end <= LAG_BYTES_MAX)])
        known = {topic for topic, _ in self._folders}
        if at - log.min_position <= LAG_BYTES_MAX and (
            any(row.begins_late(log.min_position) for row in rows)
            or any(
                topic not in known
                or (unproved and any((topic, queue_id) not in self._folders for queue_id in range(count)))
                for topic, count in self._configured().items()
                if wanted(topic)
            )
        ):
            # The topic may be without messages, or without its queues; a queue's first file may be still to be made, or
            # be missing.
            at = 0
        return max(at, log.min_position)

    def _vouched(self) -> int:
        """Return the physical offset up to which the checkpoint says that queues are complete; 0 if it does not say."""
        path = f"{self.root}/checkpoint"
        try:
            return checkpoint.read(path).queues_position
        except OSError as e:
            raise unreadable(e, path) from None

    def _queues_end(self, below: int) -> int:
        """Return the end of the newest record before a physical offset that is in a queue."""
        newest = 0
        for folder, batch in self._folders.values():
            row = QueueUnitFiles(folder, batch)
            newest = max(newest, row.end_position(below))
            row.close()
        return newest

    def _scan(self, begin: int, wanted: Callable[[str], bool]) -> dict[QueueKey, _Found]:
        """The records in queues of wanted topics from physical offset `begin` on; sets `log_end` and `damages`."""
        log = self.log
        index = max(log.index_of(min(begin, log.end())), 0)
        start = log.starts[index] if log.starts else begin
        near = max(begin - VERIFY_BYTES, start)
        if near > start and (boundary := log.boundary(near)) is not None and boundary < begin:
            start = boundary
        while True:
            tails = self._tails(start, begin, wanted)
            if log.end_found > start or start <= log.min_position:
                break
            # Nothing here: the log ends earlier than the queues.
            start = log.starts[max(log.index_of(start - 1), 0)]
        self.log_end = log.end_found
        self.damages = [DamagedRange(*found) for found in log.damages if found[1] > begin]
        return tails

    def _tails(self, start: int, begin: int, wanted: Callable[[str], bool]) -> dict[QueueKey, _Found]:
        deleted = self._deleted()
        chosen: dict[bytes, str | None] = {}
        tails: dict[QueueKey, _Found] = defaultdict(_Found)
        for found in self.log.scan(start, self.log.end() if self._clean else begin):
            if found.position < begin or not enters_queue(found.sys_flag):
                continue
            if found.topic not in chosen:
                topic = found.topic.decode()
                chosen[found.topic] = topic if wanted(topic) else None
            name = chosen[found.topic]
            if name is not None and found.position >= deleted.get(name, 0):
                tails[name, found.queue_id].add(found)
        return tails

    def _join(
        self, rows: dict[QueueKey, QueueUnitFiles], tails: dict[QueueKey, _Found], begin: int
    ) -> tuple[dict[QueueKey, QueueFiles], int | None]:
        """The queues of files and log together, and from where the log has to be read if some lack messages between."""
        found: dict[QueueKey, QueueFiles] = {}
        earlier: int | None = None
        # Files of a store that was closed belong together: what the log lacks there is lost, not yet to come.
        below = begin if self._clean else min(begin, self.log_end)
        for key in rows.keys() | tails.keys():
            row, tail = rows.get(key), tails.get(key) or _Found()
            batch = row.batch if row is not None else tail.batch
            first = end = end_position = 0
            if row is not None:
                first, end, end_position = row.bounds(below, self.log.min_position)
            records, is_of_log = tail.table(), first == end
            if is_of_log and len(records) and begin <= self.log.min_position:
                end = int(records[0, 0])  # Also of what files that are missing held.
            table, restarted, hole = in_order(records, end)
            if hole or (row is not None and row.is_torn):
                earlier = min(end_position, begin if earlier is None else earlier)
            if restarted or is_of_log:
                end = first = int(table[0, 0]) if len(table) else end
            following = int(table[-1, 0] + table[-1, 1]) if len(table) else end
            folder = row.folder if row is not None else ""
            found[key] = QueueFiles(*key, folder, batch, first, end, following, LogTail(table))
        return found, earlier

    def _configured(self) -> dict[str, int]:
        """Topics of config/topics.json and how many queues they are read from; none if it cannot be understood."""
        found = {}
        for topic, config in self._topic_table().items():
            count = config.get("readQueueNums")
            if type(count) is int and 0 <= count <= 1 << 16:
                found[topic] = count
        return found

    def _topic_table(self) -> dict[str, dict[str, object]]:
        table = _json(f"{self.root}/config/topics.json").get("topicConfigTable")
        rows = table.items() if isinstance(table, dict) else ()
        return {topic: config for topic, config in rows if isinstance(config, dict)}

    def _deleted(self) -> dict[str, int]:
        """Return the deleted topics, each with the physical offset before which its records are in no queue."""
        found = topics_of(_json(f"{self.root}/config/deletedTopics.json"))
        return {topic: at for topic, at in found.items() if type(at) is int and at <= self.log.end()}

    def close(self) -> None:
        """Give the descriptors back."""
        self.log.close()


class _Found:
    """Records of one queue in log order."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self.batch = False

    def add(self, found: WholeRecord) -> None:
        self._numbers.extend((found.queue_offset, found.messages, found.position, found.size))
        self.batch = self.batch or bool(found.sys_flag & sysflags.INNER_BATCH)

    def table(self) -> Ints:
        """Return a row of four numbers for each: queue offset, count of messages, physical offset, size."""
        return np.array(self._numbers, np.int64).reshape(-1, 4)


def in_order(found: Ints, following: int) -> tuple[Ints, bool, bool]:
    """Return the records that follow offset `following` in queue order, whether the queue began anew, and whether
    messages are missing before.

    As in recovery: a queue whose offsets begin at 0 again, and go on, is that of a topic that was made anew.
    """
    ends = found[:, 0] + found[:, 1]
    if len(found) and found[0, 0] == following and (found[1:, 0] == ends[:-1]).all():
        return found, False, False
    joined: list[int] = []
    restarted = hole = False
    reborn = -1
    for i, (offset, messages) in enumerate(found[:, :2].tolist()):
        if offset != following:
            if reborn >= 0 and offset == found[reborn, 1]:
                joined, restarted, hole, reborn = [reborn], True, False, -1
            elif offset < following:
                if offset == 0:
                    reborn = i
                continue
            elif not joined:
                hole = True
        joined.append(i)
        following = offset + messages
    return found[joined], restarted, hole


def _is_compacted(config: dict[str, object]) -> bool:
    attributes = config.get("attributes")
    return isinstance(attributes, dict) and is_compacted(attributes)


def _queue_folders(root: str) -> dict[QueueKey, tuple[str, bool]]:
    """Return the folder of each queue of a topic, and whether it is a batch queue's."""
    folders: dict[QueueKey, tuple[str, bool]] = {}
    for name, batch in (("consumequeue", False), ("batchconsumequeue", True)):
        # Light queues are of no topic: what they lead to was sent to others.
        for topic in (one for one in listed(f"{root}/{name}") if not one.startswith(light_queues.NAME_PREFIX)):
            for queue_id in listed(f"{root}/{name}/{topic}"):
                folder = f"{root}/{name}/{topic}/{queue_id}"
                if queue_id.isascii() and queue_id.isdigit() and os.path.isdir(folder):
                    folders[topic, int(queue_id)] = (folder, batch)
    return folders


def _check(root: str, commit_logs: Sequence[str]) -> None:
    if not os.path.exists(root):
        raise ConfigError(f"there is no directory {root}: give a broker's storePathRootDir, the folder with commitlog/")
    if not os.path.isdir(root):
        raise ConfigError(f"{root} is a file: give a broker's storePathRootDir, the folder with commitlog/")
    names = listed(root)
    config_files.check_restored(root)
    for directory in commit_logs or (f"{root}/commitlog",):
        if os.path.isdir(directory):
            listed(directory)
            continue
        if commit_logs:
            raise ConfigError(f"there is no directory {directory}: storePathCommitLog names the log's own, by commas")
        inner = [name for name in sorted(names) if os.path.isdir(f"{root}/{name}/commitlog")]
        if inner:
            hint = f"the stores in it are {', '.join(f'{root}/{name}' for name in inner)}"
        elif "consumequeue" in names:
            hint = "if the broker's log lies elsewhere, name it by the option storePathCommitLog"
        else:
            hint = "give a broker's storePathRootDir, the folder with commitlog/"
        raise ConfigError(f"{root} holds no commitlog/: {hint}")


def _json(path: str) -> dict[str, object]:
    """Return the object in a config file; an empty one if there is none or it is damaged: the log is the truth."""
    for candidate in (path, f"{path}.bak"):
        try:
            with open(candidate, "rb") as file:
                found = json.loads(file.read().decode("utf-8", "replace").strip("\0"))
        except FileNotFoundError:
            continue
        except OSError as e:
            raise unreadable(e, candidate) from None
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}
