"""What replication needs of a log. The store is one; tests have one in memory."""

from __future__ import annotations

from typing import Protocol


class ReplicatedLog(Protocol):
    """The raw bytes of a commit log, in files of one size. The end may lie within a record while they arrive."""

    @property
    def min_position(self) -> int:
        """The first byte that is kept."""

    @property
    def end_position(self) -> int:
        """The end of what was appended or received, flushed or not; 0 for an empty log."""

    @property
    def file_bytes(self) -> int:
        """The size of each file."""

    def log_bytes(self, position: int, count_max: int) -> memoryview:
        """Return the bytes from `position` on, never over the end of a file or of the log; empty at the end."""

    def append_raw(self, position: int, data: bytes | memoryview) -> None:
        """Append bytes at the end, cut anywhere, none of them over the end of a file.

        An empty log takes any file start. Raises StoreError if they cannot be written, ReplicationError if they do not
        belong there: a record must begin where one ended, and files end where the master's do.
        """

    def cut_partial_record(self) -> int:
        """Give up the bytes of a record that is not whole; return the end, where a record must begin."""

    def record_begins(self, position: int) -> bool:
        """Tell whether a whole record, a blank or the end lies there."""

    def truncate(self, position: int) -> None:
        """Cut the log there, and what was made of it."""
