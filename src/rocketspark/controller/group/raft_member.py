"""One member of the group: pysyncobj's Raft, with this project's disk, wire and encoding in the place of its own.

Three parts of the library are replaced: the journal, which it does not sync (by raft_log); the transport, which opens a
port of its own, to everybody or under one password, and takes pickles, which run whatever a stranger wrote (by links);
and the encoding of commands and snapshots, which are pickles too. Some of the library's methods that are called here
are private to it, so its version is fixed in pyproject.toml; `tests/unit/controller/group` breaks where another one
differs.

Rule: nothing is sent before all that it rests on is on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from rocketspark import machine
from rocketspark.controller.group.entries import (
    ENTRY_BYTES_MAX,
    LogEntry,
    Snapshot,
    State,
    applied,
    decode_entry,
    decode_snapshot,
    encode_snapshot,
)
from rocketspark.controller.group.raft_log import LEARNER, VOTER, WAITING, RaftLog
from rocketspark.errors import RocketSparkError
from rocketspark.model import typed_json
from rocketspark.store.files.system_calls import OsFiles, failure

SNAPSHOT = "controllerSnapshot"
_REGULAR, _MEMBERSHIP = b"\0", b"\2"
# What the library adds to the name of a snapshot that is coming.
_COMING = ".1.tmp"
# Elections begin after so long without a word of the leader; a leader that hears no majority for so long leads no more.
ELECTION_S_MIN, ELECTION_S_MAX = 0.8, 1.6
LEADER_ALONE_S = 1.5
HEARTBEAT_S = 0.15
# A leader whose connection ended has ended, most likely: the members try to replace it within this time.
GONE_S_MAX = 0.4
# So long one with an empty disk is deaf: it may have voted for a new leader and forgotten it, and must not have an
# entry agreed on with the old one, which leads no more by then.
DEAF_S = 2 * LEADER_ALONE_S + ELECTION_S_MAX
ENTRIES_MAX = 1000
SNAPSHOT_PIECE_BYTES = 1 << 18
# One message of the library's; an entry is shorter, or it would come as a pickle in pieces.
MESSAGE_BYTES = 2 * ENTRY_BYTES_MAX

_journal_of_the_library = library.createJournal


def _journal(given: Any) -> Any:
    return given if isinstance(given, RaftLog) else _journal_of_the_library(given)


class _Chance:
    """In the place of the library's `random`."""

    @staticmethod
    def random() -> float:
        return machine.randrange(1 << 53) / (1 << 53)


library.createJournal = _journal
library.monotonicTime = lambda: machine.monotonic()
library.random = _Chance


class _Wire(Transport):  # type: ignore[misc]
    """What the library sends and is told. `send`: by the name of a member."""

    def __init__(self, flush: Callable[[], None], send: Callable[[str, dict[str, Any]], None]) -> None:
        super().__init__(None, None, ())
        self._flush, self._send = flush, send
        self.term: Callable[[], int] = lambda: 0
        self._later: list[Any] = []
        # While a message is taken: what its answer may claim at most.
        self.acknowledged_max: int | None = None

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        if message["type"] not in _TYPES:
            # Commands go to the leader by the controllers' own way.
            return False
        if message["type"] == "next_node_idx":
            # The library's answer does not say which term it belongs to: one that comes late would count as another's.
            message["term"] = self.term()
            if self.acknowledged_max is not None:
                message["next_node_idx"] = min(message["next_node_idx"], self.acknowledged_max)
        self._flush()
        if "serialized" in message and not message["serialized"]:
            # The snapshot cannot be read now. The library would say so as often as it can until the next heartbeat,
            # unless the member is gone; it comes back at once.
            self._onNodeDisconnected(node)
            self._later.append(node)
            return False
        self._send(node.id, message)
        return True

    def go_on(self) -> None:
        """Start sending again to the members for which no snapshot was ready."""
        later, self._later = self._later, []
        for node in later:
            self._onNodeConnected(node)

    def forget(self, node: Any) -> None:
        """Forget that a member waits for a snapshot, as the way to it has ended."""
        self._later = [each for each in self._later if each != node]

    def dropNode(self, node: Any) -> None:
        self.forget(node)
        # Should it be a member again one day, its way is another.
        self._onNodeDisconnected(node)


_TYPES = frozenset(("request_vote", "response_vote", "append_entries", "next_node_idx", "timeout_now"))


class RaftMember(SyncObj):  # type: ignore[misc]
    """A member. `state`: after all entries that are agreed on; `changed`: called with each new state.

    `own`, `others`: names of the members; the log or the snapshot overrule `others` if they name members. Raises
    ConfigError if the snapshot cannot be used, StoreError.
    """

    def __init__(
        self,
        own: str,
        others: Iterable[str],
        log: RaftLog,
        folder: str,
        send: Callable[[str, dict[str, Any]], None],
        changed: Callable[[State], None],
        files: OsFiles | None = None,
    ) -> None:
        self.state = State()
        self.failure: RocketSparkError | None = None
        self._changed = changed
        self._log = log
        self._folder = folder
        self._files = files or OsFiles()
        # What its leader said last to be agreed on.
        self._agreed = 0
        self._deaf_until = machine.monotonic() + DEAF_S
        path = os.path.join(folder, SNAPSHOT)
        snapshot = self._read(path) if os.path.exists(path) else None
        if snapshot is not None:
            log.align(snapshot.last, snapshot.previous)
        members = self._members_in_log(snapshot.members if snapshot else (own, *others))
        self._wire = _Wire(log.flush, send)
        conf = SyncObjConf(
            autoTick=False,
            commandsWaitLeader=False,
            dynamicMembershipChange=True,
            journalFile=log,
            fullDumpFile=path,
            serializer=self._write,
            deserializer=self._load,
            useFork=False,
            raftMinTimeout=ELECTION_S_MIN,
            raftMaxTimeout=ELECTION_S_MAX,
            leaderFallbackTimeout=LEADER_ALONE_S,
            appendEntriesPeriod=HEARTBEAT_S,
            appendEntriesBatchSizeBytes=MESSAGE_BYTES,
            logCompactionMinEntries=ENTRIES_MAX,
            logCompactionMinTime=3600,
            logCompactionBatchSize=SNAPSHOT_PIECE_BYTES,
        )
        super().__init__(
            Node(own), [Node(each) for each in members if each != own], conf, nodeClass=Node, transport=self._wire
        )
        self._wire.term = lambda: int(self.raftCurrentTerm)

    # -- what happens to it -----------------------------------------------------------------------------------------

    def received(self, sender: str, message: dict[str, Any]) -> None:
        """Take a message of another member. Raises StoreError, ConfigError."""
        node, kind = self._node(sender), message.get("type")
        if node is None and self._log.standing == LEARNER and kind == "append_entries":
            # It leads a group of later than this member's settings: what it sends has the members.
            self._SyncObj__doChangeCluster(["add", sender])
            node = self._node(sender)
        if node is None or kind not in _TYPES or "transmission" in message:
            return
        if self._log.standing == LEARNER and (kind == "request_vote" or machine.monotonic() < self._deaf_until):
            return
        if kind == "next_node_idx" and message["term"] != self.raftCurrentTerm:
            return
        if "commit_index" in message:
            self._agreed = message["commit_index"]
        if kind == "append_entries" and message["term"] >= self.raftCurrentTerm:
            if "serialized" in message and not self._wants(node, message):
                return
            if "entries" in message:
                self._keep_what_matches(message)
        try:
            self._wire._onMessageReceived(node, message)
        finally:
            self._wire.acknowledged_max = None
        self._settle()

    def _wants(self, node: Any, message: dict[str, Any]) -> bool:
        """Look at a piece of a snapshot; False for the last piece of one that holds nothing new."""
        # With a snapshot the library takes its own log for the leader's, as far as the leader has agreed: it would
        # apply what nobody agreed on.
        message["commit_index"] = min(message["commit_index"], self.raftCommitIndex)
        if not message["serialized"][2]:
            return True
        path = os.path.join(self._folder, f"{SNAPSHOT}{_COMING}")
        coming = self._SyncObj__serializer._Serializer__incomingTransmissionFile
        if coming is None:
            return True
        try:
            coming.flush()
        except OSError as e:
            raise failure(e, "write", path) from e
        snapshot = self._read(path)
        if snapshot.last.index > self.raftLastApplied:
            # What follows in this log may be another's: it is kept, and not told to be the leader's.
            self._wire.acknowledged_max = snapshot.last.index + 1
            return True
        # A question that came late. The library would put the older state in the place of the newer one, and drop
        # entries that were answered.
        self._wire.send(
            node,
            {"type": "next_node_idx", "next_node_idx": self.raftLastApplied + 1, "reset": True, "success": True},
        )
        return False

    def _keep_what_matches(self, message: dict[str, Any]) -> None:
        """Let the library see those entries alone that are not in the log: it cuts the log where a message begins.

        What it cuts and adds again may have been counted as held by a majority, and a message may end before it.
        """
        entries = [(command, index, term) for command, index, term in message["entries"]]
        message["entries"] = entries
        first, last, end = self._log[0][1], self._log[-1][1], message["prevLogIdx"]
        if end is None or not first <= end <= last or self._log[end - first][2] != message["prevLogTerm"]:
            return
        while entries and entries[0][1] <= last and self._log[entries[0][1] - first][2] == entries[0][2]:
            end = entries.pop(0)[1]
        if entries:
            message["prevLogIdx"], message["prevLogTerm"] = end, self._log[end - first][2]
        else:
            # All is there, and what follows is kept: it is the leader's, or an entry to come shows that it is not.
            message["prevLogIdx"], message["prevLogTerm"] = last, self._log[-1][2]
            self._wire.acknowledged_max = end + 1
            message["commit_index"] = min(message["commit_index"], end)

    def up(self, name: str) -> None:
        """Note that the way to another member is open."""
        node = self._node(name)
        if node is not None:
            self._wire._onNodeConnected(node)

    def down(self, name: str) -> None:
        """Note that the way to another member has ended, and lost whatever was on it."""
        node = self._node(name)
        if node is None:
            return
        self._wire.forget(node)
        self._wire._onNodeDisconnected(node)
        # What it was to have of a snapshot is gone with the rest.
        self._SyncObj__serializer.cancelTransmisstion(node)
        if self._getLeader() == node:
            soon = machine.monotonic() + GONE_S_MAX * (self._SyncObj__generateRaftTimeout() / ELECTION_S_MAX)
            deadline: float = self._SyncObj__raftElectionDeadline  # type: ignore[has-type]
            self._SyncObj__raftElectionDeadline = min(deadline, soon)

    def step(self) -> None:
        """Let the library work: time has passed, or a message was taken. Raises StoreError, ConfigError."""
        if not self._may_be_elected:
            self._SyncObj__raftElectionDeadline = machine.monotonic() + ELECTION_S_MAX
        if self._log.is_long:
            self.forceLogCompaction()
        self.doTick(0)
        self._wire.go_on()
        # A snapshot that has just been written can be sent, and the log before it be cut.
        self._SyncObj__tryLogCompaction()
        if self.failure is not None:
            raise self.failure
        self._settle()
        self._log.flush()

    def propose(self, entry: bytes, done: Callable[[bool | None, int], None]) -> None:
        """Propose an entry, as the leader.

        `done` is called with whether the entry changed the state, and with the library's code, 0 once the entry is
        agreed on. It is not called if this member stops being the leader.
        """
        self._applyCommand(_REGULAR + entry, done)
        self._send_now()

    def change_members(self, what: str, name: str, done: Callable[[Any, int], None]) -> None:
        """Propose, as the leader, to "add" or "rem" (`what`) the member `name`; `done` is called with the outcome."""
        self._applyCommand(_MEMBERSHIP + msgspec.json.encode([what, name]), done)
        self._send_now()

    def _send_now(self) -> None:
        self.step()
        # The library would wait for the next heartbeat.
        self._SyncObj__newAppendEntriesTime = 0
        self.step()

    # -- what it knows ----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True while this member leads, as far as it knows."""
        return bool(self._isLeader())

    @property
    def leader(self) -> str | None:
        """The name of the leader; None if none is known, or if the known one cannot be reached."""
        found = self._getLeader()
        if found is None or (found != self.selfNode and not self.isNodeConnected(found)):
            return None
        return str(found.id)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all members, this one among them."""
        return tuple(sorted([self.selfNode.id, *(node.id for node in self.otherNodes)]))

    @property
    def _may_be_elected(self) -> bool:
        return self._log.standing not in (LEARNER, WAITING)

    def _node(self, name: str) -> Any:
        return next((node for node in self.otherNodes if node.id == name), None)

    @property
    def _is_current(self) -> bool:
        """True if an entry of the present term is agreed on, and this member has it and all before."""
        at = self.raftLastApplied - self._log[0][1]
        return bool(
            0 <= at < len(self._log)
            and self._log[at][2] == self.raftCurrentTerm > 0
            and self.raftLastApplied >= (self.raftCommitIndex if self.leads else self._agreed)
        )

    def _settle(self) -> None:
        """Vote from now on, if this member had to catch up first, and has."""
        if self._log.standing != VOTER and self._is_current:
            self._log.stand(VOTER)

    # -- in the place of the library's own --------------------------------------------------------------------------

    def _SyncObj__doApplyCommand(self, command: bytes) -> bool | None:
        # A change of members counted when it came into the log; a later one may have followed it since.
        if command[:1] != _REGULAR:
            return None
        after = applied(self.state, decode_entry(command[1:]))
        if after is None:
            return False
        if after is not self.state:
            self.state = after
            self._changed(after)
        return True

    def _SyncObj__changeCluster(self, change: list[str]) -> bool:
        # The library lets two changes be under way: a majority after both need not have one in common with one before.
        after = self.raftLastApplied + 1 - self._log[0][1]
        if any(entry[0][:1] == _MEMBERSHIP for entry in self._log[max(0, after) :]):
            return False
        return bool(SyncObj._SyncObj__changeCluster(self, change))

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> list[str] | None:
        return typed_json.decode(command[1:], list[str]) if command[:1] == _MEMBERSHIP else None

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        if clearJournal:
            # What follows in the log is kept if it may be the leader's; the library would drop it.
            snapshot = self._read(os.path.join(self._folder, SNAPSHOT))
            self._log.align(snapshot.last, snapshot.previous)
        SyncObj._SyncObj__loadDumpFile(self, False)
        # The library goes on without the state that it could not read.
        if self.failure is not None:
            raise self.failure
        self._changed(self.state)

    def _members_in_log(self, members: Iterable[str]) -> list[str]:
        """Return the members after those changes in the log that follow: each counts once it is there."""
        found = list(members)
        for i in range(len(self._log)):
            change = self._SyncObj__parseChangeClusterRequest(self._log[i][0])
            if change is not None and change[0] == "add" and change[1] not in found:
                found.append(change[1])
            elif change is not None and change[0] == "rem" and change[1] in found:
                found.remove(change[1])
        return found

    def _members_at(self, index: int, members: set[str]) -> tuple[str, ...]:
        """Return the members as they were after an entry, of those that are now.

        A change counts once it is in the log, and may be cut off again; a snapshot keeps what is agreed on.
        """
        for i in reversed(range(len(self._log))):
            command, at, _ = self._log[i]
            change = self._SyncObj__parseChangeClusterRequest(command) if at > index else None
            if change is not None:
                (members.discard if change[0] == "add" else members.add)(change[1])
        return tuple(sorted(members))

    def _read(self, path: str) -> Snapshot:
        try:
            with open(path, "rb") as file:
                return decode_snapshot(file.read(), path)
        except OSError as e:
            raise failure(e, "read", path) from e

    def _load(self, path: str) -> tuple[Any, Any, Any]:
        try:
            snapshot = self._read(path)
            try:
                # One that another member sent has been written, and no more; a sync of it may have failed before.
                self._files.write_file(f"{path}.again", encode_snapshot(snapshot))
                self._files.replace(f"{path}.again", path)
                self._files.sync_directory(self._folder)
            except OSError as e:
                raise failure(e, "write", path) from e
        except RocketSparkError as e:
            self.failure = e
            raise
        self.state = snapshot.state
        last, previous = snapshot.last, snapshot.previous
        return (
            (last.command, last.index, last.term),
            (previous.command, previous.index, previous.term),
            {Node(name) for name in self._members_in_log(snapshot.members)},
        )

    def _write(self, path: str, data: tuple[Any, Any, Any]) -> None:
        last, previous, nodes = data
        members = self._members_at(last[1], {node.id for node in nodes})
        content = encode_snapshot(Snapshot(self.state, LogEntry(*last), LogEntry(*previous), members))
        try:
            self._files.write_file(path, content)
        except OSError as e:
            self.failure = failure(e, "write", path, len(content))
            raise


def write_first(folder: str, state: State, members: Iterable[str], files: OsFiles) -> None:
    """Write a state into a new member's folder as a snapshot, as if it had been agreed on. Raises StoreError."""
    noop = b"\1"
    # Later than anything that a member without a state has: it wins each comparison.
    first = Snapshot(state, LogEntry(noop, 3, 1), LogEntry(noop, 2, 1), tuple(sorted(members)))
    path, content = os.path.join(folder, SNAPSHOT), encode_snapshot(first)
    try:
        files.write_file(path, content)
        files.sync_directory(folder)
    except OSError as e:
        raise failure(e, "write", path, len(content)) from e
