"""The epochs of a log: which master began to write where; the file epochFileCheckpoint, as RocketMQ writes it.

It is a text: the number of entries, a CRC of their lines, then `epoch-start` for each. The text before stays as `.bak`.
Rule: epochs and starts both rise from entry to entry; only at the log's beginning several may start at 0, where the
last of them wrote. A file that is not whole is not used.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from rocketspark.errors import StoreUnwritable
from rocketspark.model.text import INT_MAX, LONG_MAX, whole_number
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, remove_file

# The end of the newest epoch: nobody knows it yet.
NO_END = LONG_MAX


class Epoch(NamedTuple):
    """One master's time in office: its records lie in [start, end)."""

    epoch: int
    start: int
    end: int = NO_END


class EpochList:
    """The epochs of one log, oldest first. `path`: its file; None keeps them in memory alone.

    Raises StoreUnwritable if neither the file nor its `.bak` can be understood.
    """

    def __init__(self, path: str | None = None, files: OsFiles | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()
        self._starts: list[tuple[int, int]] = _read(path) if path is not None else []

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start position) of each epoch, as a handshake has them."""
        return tuple(self._starts)

    @property
    def entries(self) -> tuple[Epoch, ...]:
        """All epochs, each with its end."""
        return tuple(self._entry(at) for at in range(len(self._starts)))

    @property
    def last(self) -> Epoch | None:
        """The newest epoch; None if there is none."""
        return self._entry(len(self._starts) - 1) if self._starts else None

    @property
    def last_epoch(self) -> int:
        """The number of the newest epoch; -1 without any."""
        return self._starts[-1][0] if self._starts else -1

    def _entry(self, at: int) -> Epoch:
        epoch, start = self._starts[at]
        return Epoch(epoch, start, self._starts[at + 1][1] if at + 1 < len(self._starts) else NO_END)

    def of_position(self, position: int) -> Epoch | None:
        """Return the epoch in which the byte at `position` is written; None before the first."""
        at = bisect.bisect_right(self._starts, position, key=lambda entry: entry[1]) - 1
        return self._entry(at) if at >= 0 else None

    def entry(self, epoch: int) -> Epoch | None:
        """Return the epoch with the number `epoch`; None if there is none."""
        at = bisect.bisect_left(self._starts, (epoch, -1))
        return self._entry(at) if at < len(self._starts) and self._starts[at][0] == epoch else None

    def after(self, epoch: int) -> Epoch | None:
        """Return the epoch that follows the one with the number `epoch`; None after the last."""
        at = bisect.bisect_left(self._starts, (epoch + 1, -1))
        return self._entry(at) if at < len(self._starts) else None

    def append(self, epoch: int, start: int) -> bool:
        """Add an epoch. False, and nothing changes, unless both number and start are above the last epoch's (rule:
        EpochFileCache).

        So an epoch gets no entry if it begins where the one before it does, as nothing was written in that one. Java
        brokers share this list, and find no common point with one that has other entries. The exception is the very
        first epoch, which stays beside the next one that also starts at 0: a slave notes it before its first byte, and
        without both nobody would see that what the dead master wrote in it was cut.
        """
        if not _may_follow(self._starts, epoch, start):
            return False
        self._change([*self._starts, (epoch, start)])
        return True

    def begin(self, epoch: int, start: int) -> bool:
        """Add the epoch of a master that takes office at the log's end; entries with its number or a higher one, or
        that start later, are removed.

        Returns False, as `append` does, if it gets no entry.
        """
        kept = [entry for entry in self._starts if entry[0] < epoch and entry[1] <= start]
        if not _may_follow(kept, epoch, start):
            self._change(kept)
            return False
        self._change([*kept, (epoch, start)])
        return True

    def cut(self, position: int, masters: Sequence[tuple[int, int]] = ()) -> None:
        """Remove the entries of which the log has no byte, as it ends at `position` now.

        The only entry stays if `masters` has it: without any entry nothing could be compared. RocketMQ 5.5.0 keeps all
        entries when a slave cuts its log: later it copies too much, or takes what two masters wrote at one place for
        the same.
        """
        kept = [entry for entry in self._starts if entry[1] < position]
        if not kept:
            kept = [entry for entry in self._starts[:1] if entry[1] == position and entry in set(masters)]
        self._change(kept)

    def forget_before(self, position: int) -> None:
        """Remove the epochs that ended at or before `position`, where the log begins now."""
        self._change([(epoch, start) for epoch, start, end in self.entries if end > position or start >= position])

    def truncation_point(self, masters: Sequence[tuple[int, int]], *, masters_end: int, own_end: int) -> int | None:
        """Return up to which position this log, which ends at `own_end`, is equal to the master's; None if they share
        no epoch.

        Rule: the newest epoch that both have with the same start, up to where it ended first in either; epochs of which
        this log has no byte do not count.
        """
        if own_end == 0:
            return 0
        theirs = {epoch: at for at, (epoch, _) in enumerate(masters)}
        for mine in reversed(self.entries):
            at = theirs.get(mine.epoch)
            if at is None or masters[at][1] != mine.start or mine.start >= own_end:
                continue
            end = masters[at + 1][1] if at + 1 < len(masters) else max(masters_end, mine.start)
            return min(end, mine.end, own_end)
        return None

    def check_writable(self) -> None:
        """Write the file as it is. Raises StoreFull or StoreUnwritable if another epoch could not be noted now."""
        if self._path is not None and self._starts:
            config_files.write(self._path, _text(self._starts), self._files)

    def _change(self, starts: list[tuple[int, int]]) -> None:
        if starts == self._starts:
            return
        if self._path is not None:
            if starts:
                config_files.write(self._path, _text(starts), self._files)
            else:
                # The older first: left alone, it would come back.
                for path in (f"{self._path}.bak", self._path):
                    remove_file(path)
        self._starts = starts


def _may_follow(starts: Sequence[tuple[int, int]], epoch: int, start: int) -> bool:
    if not starts:
        return True
    last, last_start = starts[-1]
    return epoch > last and (start > last_start or start == last_start == 0)


def _text(starts: Sequence[tuple[int, int]]) -> str:
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in starts)
    return f"{len(starts)}\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"


def _read(path: str) -> list[tuple[int, int]]:
    text = config_files.read(path)
    if text is None:
        return []
    starts = parse(text)
    if starts is None:
        starts = parse(config_files.read_backup(path) or "")
    if starts is None:
        raise StoreUnwritable(
            f"{path} and its .bak hold no list of epochs: restore one of them, or remove both and the log, so that all"
            " is copied from the master again"
        )
    return starts


def parse(text: str) -> list[tuple[int, int]] | None:
    """Return the epochs of a file's text; None if it is cut or changed. A CRC of 0 is not compared, as in RocketMQ."""
    head = text.split("\n", 2)
    if len(head) < 3:
        return None
    count, crc = whole_number(head[0].strip(), high=INT_MAX), whole_number(head[1].strip(), high=INT_MAX)
    lines = head[2].replace("\r\n", "\n")
    if lines and not lines.endswith("\n"):
        lines += "\n"
    if count is None or crc is None or (crc != 0 and zlib.crc32(lines.encode()) & 0x7FFFFFFF != crc):
        return None
    starts: list[tuple[int, int]] = []
    for line in lines.splitlines():
        epoch_text, _, start_text = line.partition("-")
        epoch, start = whole_number(epoch_text, high=INT_MAX), whole_number(start_text)
        if epoch is None or start is None or not _may_follow(starts, epoch, start):
            return None
        starts.append((epoch, start))
    return starts if len(starts) == count else None
