"""Makes decisions durable, one after the other, in a file of all sets of replicas that is replaced whole at each event.

Rule: the sets in memory change only once the file holds the change. A file that is damaged, or of another version, is
never taken for an older state: with falling epochs two masters could have the same epoch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import msgspec

from rocketspark.controller.group.entries import State, advance
from rocketspark.controller.group.raft_log import RaftLog
from rocketspark.controller.headed_content import HeadedFormat
from rocketspark.controller.replica_sets import ReplicaSet, Sets
from rocketspark.controller.replicas_info import Decision
from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.limited_log import LimitedLog
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import DirectoryLock, OsFiles, failure, make_folder

log = LimitedLog("rocketspark.controller")

NAME = "controllerState"
_FORMAT = HeadedFormat(
    "rocketspark controller state",
    1,
    cure="put back a copy of it; without one every broker has to join anew, with its brokerIdentity file removed",
)


class StateFile:
    """The file with a single controller's state. Its folder is locked against other controllers until `close`."""

    def __init__(self, folder: str, files: OsFiles | None = None) -> None:
        self._folder = folder
        self.path = os.path.join(folder, NAME)
        self._files = files or OsFiles()
        self._lock = DirectoryLock(os.path.join(folder, "lock"))

    def open(self) -> Sets:
        """Lock the folder and return the sets in its file; none for a new folder.

        Raises ConfigError for a file that cannot be used, StoreError for a folder that is in use or not writable.
        """
        try:
            make_folder(self._files, self._folder)
        except OSError as e:
            raise failure(e, "make", self._folder) from e
        self._lock.acquire()
        try:
            if RaftLog.is_in(self._folder):
                raise ConfigError(
                    f"{self._folder} is that of a member of several controllers: --peers and --id, or"
                    " controllerDLegerPeers, have to name them"
                )
            sets = self._read()
            # A folder that cannot be written is told now, not at the first election.
            self.write(sets)
        except BaseException:
            self._lock.release()
            raise
        if any(name.startswith("dledger-") for name in os.listdir(self._folder)):
            log.warning("%s holds the log of Apache's controllers, too: it is not read", self._folder)
        return sets

    def _read(self) -> Sets:
        try:
            with open(self.path, "rb") as file:
                return decode(file.read(), self.path)
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise failure(e, "read", self.path) from e

    def write(self, sets: Sets) -> None:
        """Put the sets on the disk. Raises StoreError; the file then holds the sets before, or these."""
        config_files.write(self.path, encode(sets).decode(), self._files, keep_before=False)

    def close(self) -> None:
        """Release the lock of the folder."""
        self._lock.release()


def encode(sets: Sets) -> bytes:
    """Return the file's content."""
    return _FORMAT.encode(msgspec.json.format(msgspec.json.encode(list(sets.values())), indent=1) + b"\n")


def decode(content: bytes, path: str) -> Sets:
    """Return the sets of a file's content. Raises ConfigError if it is damaged or of another version."""
    found = _FORMAT.decode(content, path, lambda body: typed_json.decode(body, list[ReplicaSet]))
    return {s.broker_name: s for s in found}


class Journal:
    """Makes the decisions of a single controller durable. `sets`: as they are on the disk, only to be read.

    A single controller always leads.
    """

    leads = True

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._state = State()
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Decision]] = set()

    def open(self) -> None:
        """Lock the controller's folder, and read the sets of replicas from its file.

        Raises ConfigError for a file that cannot be used, StoreError for a folder that is in use or not writable.
        """
        self._state = State(sets=self._file.open())

    @property
    def sets(self) -> Sets:
        """The sets as they are on disk."""
        return self._state.sets

    async def carry_out(self, decide: Callable[[State], Decision]) -> Decision:
        """Call `decide` with the present state, write the events, and return the decision. Raises StoreError.

        What was begun is done even if whoever asked goes away.
        """
        task = asyncio.get_running_loop().create_task(self._carry_out(decide))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Decision]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Told to who asked, if that one still waits.

    async def _carry_out(self, decide: Callable[[State], Decision]) -> Decision:
        async with self._turn:
            decision = decide(self._state)
            after = advance(self._state, decision.events, (decision.looked,) if decision.looked else ())
            if decision.events:
                # A sync takes as long as the disk does: brokers are answered meanwhile.
                await asyncio.to_thread(self._file.write, after.sets)
            self._state = after
            return decision

    async def close(self) -> None:
        """Wait for the decisions under way, and release the folder."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._file.close()
