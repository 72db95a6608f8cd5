"""The lock of a store directory. Rule: held against other processes, Java brokers among them, and this one."""

from __future__ import annotations

import fcntl
import os

from rocketspark.errors import StoreLocked
from rocketspark.store.files.system_calls import failure

# A record lock does not keep out its own process, and closing any descriptor of the file gives it up.
_held: set[str] = set()


class DirectoryLock:
    """A lock file, locked as Java's FileChannel.tryLock does it (bytes 0 to 1)."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock. Raises StoreLocked if another store has it, StoreUnwritable if the file cannot be opened."""
        if self.path in _held:
            raise self._locked()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise failure(e, "open", self.path) from e
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as e:
            os.close(descriptor)
            raise self._locked() from e
        self._descriptor = descriptor
        _held.add(self.path)

    def release(self) -> None:
        """Release the lock; nothing happens if it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held.discard(self.path)

    def _locked(self) -> StoreLocked:
        return StoreLocked(
            f"the store in {os.path.dirname(self.path)} is in use by another server: "
            "stop that one or choose another directory"
        )
