"""The log of one member on its disk: terms, votes and entries, each record with a checksum.

In the place of the library's journal, which leaves it to the system when its file and its votes reach the disk. Rule:
what changes is gathered, and written and synced as one record by `flush`, which is called before anything is told that
rests on it. So a vote or an entry that was answered survives the loss of power, and a torn record is one whose content
nobody was told.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import zlib
from typing import Any

import msgspec

from rocketspark.controller.group.entries import START_ANEW, LogEntry
from rocketspark.errors import ConfigError
from rocketspark.store.files.system_calls import OsFiles, failure

NAME = "controllerLog"
MAGIC = b"rocketspark controller log 1\n"
_MAGIC_START = b"rocketspark controller log "
_RECORD = struct.Struct("<II")
_SECTOR = 512
# From here on the log is folded into a snapshot, however few its entries are.
BYTES_MAX = 8 << 20

Entry = tuple[bytes, int, int]
# How a member stands. It has nothing, and lost it perhaps: it votes for nobody before it has all (learner). All were
# seen to have nothing: it votes (founding), and if another one brings the state of a single controller (seeding) is not
# elected itself (waiting). It has what a leader wrote (voter).
LEARNER, WAITING, FOUNDING, SEEDING, VOTER = "learner", "waiting", "founding", "seeding", "voter"


class RaftLog:
    """The journal of the library, on this member's disk. `term`, `voted_for`: the newest; `standing`: LEARNER, …"""

    def __init__(self, folder: str, files: OsFiles | None = None) -> None:
        self.path = os.path.join(folder, NAME)
        self._folder = folder
        self._files = files or OsFiles()
        self._entries: list[Entry] = []
        self._changes: list[list[Any]] = []
        self._end = 0
        self.term = 0
        self.voted_for: str | None = None
        self.standing = LEARNER

    @staticmethod
    def is_in(folder: str) -> bool:
        """Tell whether a folder holds the log of a member."""
        return os.path.exists(os.path.join(folder, NAME))

    def open(self) -> None:
        """Read the file; make one if there is none. Raises ConfigError if it is damaged, StoreError."""
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            self._rewrite()
            return
        except OSError as e:
            raise failure(e, "read", self.path) from e
        if not content.startswith(MAGIC):
            if content.startswith(_MAGIC_START):
                version = content[len(_MAGIC_START) :].partition(b"\n")[0].decode("ascii", "replace")
                raise ConfigError(
                    f"{self.path} is of version {version}, this RocketSpark reads version 1: start the one that wrote"
                    " it"
                )
            raise ConfigError(f"{self.path} is damaged: {START_ANEW}")
        at = len(MAGIC)
        while (payload := _record(content, at)) is not None:
            for change in msgspec.msgpack.decode(payload):
                self._take(change)
            at += _RECORD.size + len(payload)
        if at < len(content) and not _is_torn(content, at):
            raise ConfigError(f"{self.path} is damaged: {START_ANEW}")
        # What is here is counted on from now on, and if a sync failed another one would not write it. Of a last write
        # that did not end nobody was told; what is left of it must not be read after the next record.
        self._rewrite()

    def _take(self, change: list[Any]) -> None:
        kind = change[0]
        if kind == "add":
            self._entries.append((change[1], change[2], change[3]))
        elif kind == "cut":
            del self._entries[change[1] :]
        elif kind == "clear":
            self._entries = []
        elif kind == "term":
            self.term, self.voted_for = change[1], change[2]
        elif kind == "standing":
            self.standing = change[1]

    def _change(self, *change: Any) -> None:
        self._take(list(change))
        self._changes.append(list(change))

    def flush(self) -> None:
        """Put all changes on the disk. Raises StoreError: then this object must not be used again; the file can be."""
        if not self._changes:
            return
        record = _framed(self._changes)
        try:
            self._files.write_at(self.path, self._end, record)
            self._files.sync_file(self.path)
        except OSError as e:
            # What could not be synced can be read all the same, and would be taken for what is on the disk.
            with contextlib.suppress(OSError):
                self._files.cut(self.path, self._end, self._end)
            raise failure(e, "write", self.path, len(record)) from e
        self._changes = []
        self._end += len(record)

    def _rewrite(self) -> None:
        changes: list[list[Any]] = [["standing", self.standing], ["term", self.term, self.voted_for]]
        changes += [["add", *entry] for entry in self._entries]
        content = MAGIC + _framed(changes)
        beside = f"{self.path}.tmp"
        try:
            self._files.write_file(beside, content)
            # Before the entries that a snapshot holds are gone its own name must be on the disk.
            self._files.sync_directory(self._folder)
            self._files.replace(beside, self.path)
            self._files.sync_directory(self._folder)
        except OSError as e:
            raise failure(e, "write", self.path, len(content)) from e
        self._changes = []
        self._end = len(content)

    @property
    def is_long(self) -> bool:
        """True once the file is so long that a snapshot is wanted."""
        return self._end > BYTES_MAX

    def stand(self, standing: str) -> None:
        """Note how this member stands in its group: LEARNER, …."""
        if standing != self.standing:
            self._change("standing", standing)

    def align(self, last: LogEntry, previous: LogEntry) -> None:
        """Make the log begin with the two entries that a snapshot ends with; the entries after them are kept.

        The library drops the whole log if its first two entries differ from the snapshot's. They differ also if the
        process ended between writing the snapshot and cutting the log, and then entries that were acknowledged would be
        lost.
        """
        wanted = [(each.command, each.index, each.term) for each in (previous, last)]
        if self._entries[:2] == wanted:
            return
        at = next((i for i, entry in enumerate(self._entries) if entry[1:] == wanted[1][1:]), None)
        after = [] if at is None else self._entries[at + 1 :]
        self._entries = wanted + after
        self._rewrite()

    # -- as the library calls it ------------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Add an entry."""
        self._change("add", command, idx, term)

    def clear(self) -> None:
        """Remove all entries."""
        self._change("clear")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Remove the entries from position `entryFrom` on."""
        self._change("cut", entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Remove the entries before position `entryTo`, which a snapshot holds."""
        del self._entries[:entryTo]
        self._rewrite()

    def __getitem__(self, item: Any) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        """Nothing is held open."""

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Do nothing: the commit index is not kept, as a leader tells it again."""

    def getRaftCommitIndex(self) -> int:
        """The commit index at the start: only the first entry counts as committed."""
        return 1

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Note the term, and for which member this member votes in it."""
        self._change("term", term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        """The newest term."""
        return self.term

    def getVotedForNodeId(self) -> str | None:
        """The member for which this member voted in the newest term; None if for none."""
        return self.voted_for

    def onOneSecondTimer(self) -> None:
        """Do nothing: no change waits for a timer."""


def _is_torn(content: bytes, at: int) -> bool:
    """Tell whether what lies at the end is a write that did not end, and no damage to one that did.

    Of such a write the end is missing, or pieces of 512 bytes never came to the disk and are zero.
    """
    if any(_record(content, later) is not None for later in range(at + 1, len(content) - _RECORD.size)):
        return False
    rest = content[at:]
    if len(rest) < _RECORD.size:
        return True
    size, crc = _RECORD.unpack_from(rest)
    if size > len(rest) - _RECORD.size:
        # Or it is the length that is damaged.
        return bool(zlib.crc32(rest[_RECORD.size :]) != crc)
    bounds = [at, *range(at - at % _SECTOR + _SECTOR, len(content), _SECTOR), len(content)]
    return any(not any(content[a:b]) for a, b in itertools.pairwise(bounds))


def _framed(changes: list[list[Any]]) -> bytes:
    payload = msgspec.msgpack.encode(changes)
    return _RECORD.pack(len(payload), zlib.crc32(payload)) + payload


def _record(content: bytes, at: int) -> bytes | None:
    """Return the payload of the record at a position; None if no whole one lies there."""
    if at + _RECORD.size > len(content):
        return None
    size, crc = _RECORD.unpack_from(content, at)
    payload = content[at + _RECORD.size : at + _RECORD.size + size]
    return payload if size and len(payload) == size and zlib.crc32(payload) == crc else None
