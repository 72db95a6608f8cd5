"""The files of all queues: an inventory of them with the sizes of files, and which are mapped for writing.

Rule: a file that was there once and is gone is noticed. RocketMQ has no such inventory and passes it over; without it
(a store of RocketMQ's, or an older one) nothing is promised.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

from rocketspark.errors import ConfigError
from rocketspark.model.text import whole_number
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles

# The ids of each of the many topics with one queue, such as light queues: a set of its own takes 216 bytes.
FIRST_ALONE = frozenset({0})


class NotedEnd(NamedTuple):
    """Where a queue ended: the byte after its last unit, its next queue offset, and the log's end at that time."""

    end: int
    next: int
    position: int


VERSION = 1
_T = TypeVar("_T", int, NotedEnd)
NOTHING_NOTED = NotedEnd(0, 0, 0)
# Queues in use that are passed over in search of an unused one.
_SPARED_MAX = 16


class QueueFileInventory:
    """The inventory of the queues' files, config/storeFiles.json.

    `sizes`: of files, by the setting's name. `queues`, `firsts`: where the last and the first file of each queue
    begins. `ends`: where each queue ended when it was last noted. `log_begin`, `log_end`: the physical offsets at which
    the log began and ended then; `log_end` is -1 if an older program wrote the file. Once files of the log were removed
    since, `firsts` says nothing. `noted_log_folder`: where the log lay then, if not on the store's own disk.
    """

    def __init__(self, root: str, files: OsFiles, commit_log: str | None = None) -> None:
        """`commit_log`: where the log lies, if not below the store."""
        if commit_log is None and (os.path.islink(own := f"{root}/commitlog") or os.path.ismount(own)):
            commit_log = own
        self._root = root
        self._path = f"{root}/config/storeFiles.json"
        self._files = files
        self.sizes: dict[str, int] = {}
        self.queues: dict[tuple[str, int], int] = {}
        self.firsts: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], NotedEnd] = {}
        self.log_begin = 0
        self.log_end = -1
        self.log_folder = os.path.realpath(commit_log) if commit_log else ""
        self.noted_log_folder = ""

    def read(self) -> None:
        """Read the file; one that is damaged counts as missing.

        Raises StoreUnwritable, ConfigError for a file that a newer program wrote.
        """
        config_files.check_version(self._path, VERSION)
        try:
            table = config_files.unsealed(config_files.read(self._path) or "{}")
            self.sizes = {name: _number(size) for name, size in table.get("sizes", {}).items()}
            self.queues, self.firsts = _starts(table.get("queues", {})), _starts(table.get("firsts", {}))
            self.log_begin = _number(table.get("logBegin", 0))
            self.log_end = _number(table["logEnd"]) if "logEnd" in table else -1
            self.noted_log_folder = str(table.get("logFolder", ""))
            self.ends = {
                (topic, _number(queue_id)): NotedEnd(*map(_number, noted))
                for topic, queues in table.get("ends", {}).items()
                for queue_id, noted in queues.items()
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.sizes, self.queues, self.firsts, self.ends = {}, {}, {}, {}

    def check_log_folder(self, folder: str, *, may_be_gone: bool) -> None:
        """Raise ConfigError if the log lies in another folder than `folder`, LogMissing if it is not there.

        `may_be_gone`: then it is begun anew.
        """
        if self.noted_log_folder:
            config_files.check_log_folder(folder, self.noted_log_folder, 0 if may_be_gone else self.log_end)

    def check_sizes(self, sizes: Mapping[str, int], log_folder: str) -> None:
        """Raise ConfigError if files were made with other sizes; none is touched then."""
        places = {
            "mappedFileSizeCommitLog": log_folder,
            "mappedFileSizeConsumeQueue": f"{self._root}/consumequeue",
            "mapperFileSizeBatchConsumeQueue": f"{self._root}/batchconsumequeue",
            "mappedFileSizeConsumeQueueExt": f"{self._root}/consumequeue_ext",
            "maxHashSlotNum": f"{self._root}/index",
            "maxIndexNum": f"{self._root}/index",
        }
        for option, size in sizes.items():
            was = self.sizes.get(option, size)
            if was != size and any(files for _, _, files in os.walk(places[option])):
                raise ConfigError(
                    f"the files in {places[option]} were made with {option}={was}, not {size}: set it as it was"
                )

    def is_noted(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether these sizes of files, and where the log lies, are what is noted."""
        return sizes == self.sizes and self.log_folder == self.noted_log_folder

    def forget(self, deleted: Mapping[str, int | None]) -> None:
        """Forget what is noted of topics that were deleted, by topic with the log's end at the deletion.

        What was noted after that end is about a later topic of the same name, and stays. With None as the end all that
        is noted of the topic goes. All topics are handed in together, as each call looks through the whole inventory.
        """
        if not deleted:
            return
        gone = {topic for topic, position in deleted.items() if position is None or 0 <= self.log_end <= position}
        for table in (self.queues, self.firsts):
            for name in [name for name in list(table) if name[0] in gone]:
                table.pop(name, None)
        for name, noted in list(self.ends.items()):
            if name[0] in deleted:
                position = deleted[name[0]]
                if position is None or noted.position <= position:
                    self.ends.pop(name, None)

    def write(
        self,
        sizes: dict[str, int],
        queues: dict[tuple[str, int], int],
        firsts: dict[tuple[str, int], int],
        ends: dict[tuple[str, int], NotedEnd],
        log_begin: int,
        log_end: int,
    ) -> None:
        """Replace the file. Raises StoreFull, StoreUnwritable."""
        table = {
            "version": VERSION,
            "sizes": sizes,
            "queues": _table(queues),
            "firsts": _table(firsts),
            "ends": _table(ends),
            "logBegin": log_begin,
            "logEnd": log_end,
            "logFolder": self.log_folder,
        }
        config_files.write(self._path, config_files.sealed(table), self._files)
        self.sizes, self.queues, self.firsts, self.log_begin = dict(sizes), dict(queues), dict(firsts), log_begin
        self.ends, self.log_end, self.noted_log_folder = dict(ends), log_end, self.log_folder


def _table(values: dict[tuple[str, int], _T]) -> dict[str, dict[str, _T]]:
    table: dict[str, dict[str, _T]] = {}
    for (topic, queue_id), value in sorted(values.items()):
        table.setdefault(topic, {})[str(queue_id)] = value
    return table


def _starts(table: dict[str, dict[str, int]]) -> dict[tuple[str, int], int]:
    return {
        (topic, _number(queue_id)): _number(start)
        for topic, queues in table.items()
        for queue_id, start in queues.items()
    }


def _number(value: object) -> int:
    number = value if isinstance(value, int) else whole_number(str(value))
    if number is None or not number >= 0:
        raise ValueError(value)
    return number


class WrittenTo(Protocol):
    """The part of a queue that ActiveQueues uses: its next queue offset, and how its file is unmapped."""

    next: int

    def release(self) -> None:
        """Unmap the file."""


class ActiveQueues:
    """The queues whose file is mapped for writing, about `count_max`; those that are written to stay mapped.

    `lock`: held while a queue's first file is made or given up, which a thread does beside the appends.
    """

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.lock = threading.Lock()
        # Each with the end it had when it was last looked at.
        self._queues: deque[tuple[WrittenTo, int]] = deque()

    def enter(self, queue: WrittenTo) -> None:
        """Add a queue whose file was just mapped; if there are too many, the one longest unused is unmapped."""
        # The message it enters for does not count.
        self._queues.append((queue, queue.next + 1))
        spared = 0
        while len(self._queues) > self.count_max:
            oldest, end = self._queues.popleft()
            if oldest is queue:
                continue
            if oldest.next != end and spared < _SPARED_MAX:
                spared += 1
                self._queues.append((oldest, oldest.next))
            else:
                oldest.release()


def queue_folders(directory: str) -> Iterator[tuple[str, Collection[int]]]:
    """Yield topics and queue ids that have a folder."""
    try:
        topics = os.listdir(directory)
    except FileNotFoundError:
        return
    for topic in topics:
        try:
            names = os.listdir(f"{directory}/{topic}")
        except NotADirectoryError:
            continue
        ids = {int(name) for name in names if name.isascii() and name.isdigit()}
        if ids:
            yield topic, FIRST_ALONE if ids == FIRST_ALONE else ids
