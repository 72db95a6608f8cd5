"""The slave's side of a link, without a socket: bytes of the master in, reports out, times handed in.

Rule: nothing is appended that is not the next piece of this very log; a slave reports what it holds as soon as it does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum

from rocketspark.broker.replication.flow_window import FlowWindow
from rocketspark.broker.replication.replicated_log import ReplicatedLog
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError
from rocketspark.protocol import ha
from rocketspark.protocol.message.record_layout import MAGIC_BLANK, MAGICS
from rocketspark.store.files.epoch_file import EpochList

_SIZE_AND_MAGIC = struct.Struct(">ii")
_HEAD_BYTES = _SIZE_AND_MAGIC.size
# All fields of a record without body, topic and properties.
_RECORD_BYTES_MIN = 91


class State(Enum):
    """Of a slave's link: not connected, waiting for the master's epochs (switching protocol), taking the log."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2


class RecordWalk:
    """Follows the records of a log through pieces that are cut anywhere, before they are appended.

    Some 0.2 us a record. `end`: of the last piece; `next`: where the next record begins, at or after it.
    """

    def __init__(self, position: int) -> None:
        self.begin(position)

    def begin(self, position: int) -> None:
        """Begin anew where a record does."""
        self.end = self.next = position
        self._head = b""

    def back(self, before: tuple[int, int, bytes]) -> None:
        """Undo a step by what it returned."""
        self.end, self.next, self._head = before

    def step(self, position: int, data: memoryview, file_bytes: int) -> tuple[int, int, bytes]:
        """Go on through a piece that begins at `end`. Raises ReplicationError, and stays, where no record can be."""
        before = self.end, self.next, self._head
        at, end, head = self.next - position, len(data), self._head
        if head:
            # The size or the magic number was cut: its first bytes lie before this piece.
            missing = _HEAD_BYTES - len(head)
            head += bytes(data[:missing])
            if len(head) < _HEAD_BYTES:
                self.end, self._head = position + end, head
                return before
            size, magic = _SIZE_AND_MAGIC.unpack(head)
            at += _checked(self.next, size, magic, file_bytes)
        last = end - _HEAD_BYTES
        unpack = _SIZE_AND_MAGIC.unpack_from
        while at <= last:
            size, magic = unpack(data, at)
            at += _checked(position + at, size, magic, file_bytes)
        self._head = bytes(data[at:]) if at < end else b""
        self.end, self.next = position + end, position + at
        return before


def _checked(position: int, size: int, magic: int, file_bytes: int) -> int:
    """Return the size of the record that begins there. Raises ReplicationError if it is none."""
    left = file_bytes - position % file_bytes
    if magic in MAGICS and _RECORD_BYTES_MIN <= size <= left - _HEAD_BYTES:
        return size
    if magic == MAGIC_BLANK and size == left:
        return size
    if magic == MAGIC_BLANK or (magic in MAGICS and size > 0):
        raise ReplicationError(
            f"what the master's log holds at {position} does not end with a file of {file_bytes} bytes: give both"
            " brokers the same mappedFileSizeCommitLog, and this one an empty store",
            reason="file-size",
        )
    raise ReplicationError(
        f"the master's log has no record at {position}, where one of this log ends: the two are different logs. Stop"
        " this broker, remove its store and start it again",
        reason="diverged",
    )


class SlaveLink:
    """One connection to a master, in the classic protocol. `walk` goes on from one connection to the next."""

    state = State.TRANSFER

    def __init__(self, log: ReplicatedLog, settings: BrokerSettings, now_s: float, walk: RecordWalk) -> None:
        self._log = log
        self._settings = settings
        if walk.end != log.end_position:
            walk.begin(log.end_position)
        self._walk = walk
        self.last_read_s = self.last_write_s = now_s
        self.received_bytes = 0
        self.window = FlowWindow(now_s)
        # True once the master sent what fits.
        self.fits = False
        self._reader: ha.ClassicFrames | ha.SwitchFrames = ha.ClassicFrames()

    def hello(self, now_s: float) -> bytes:
        """Return what to send first."""
        return self._report(now_s)

    def received(self, data: bytes, now_s: float) -> bytes:
        """Append what came; return the report to send, one for all frames.

        Raises FrameError, ReplicationError, StoreError: close. What came before in `data` is appended.
        """
        self.last_read_s = now_s
        self.received_bytes += len(data)
        self.window.add(len(data), now_s)
        before = self._log.end_position
        answer = b""
        for piece in self._reader.feed(data):
            answer = self._take(piece, now_s) or answer
        return self._report(now_s) if self._log.end_position > before else answer

    def _take(self, piece: ha.Frame | ha.MasterHandshake, now_s: float) -> bytes:
        assert isinstance(piece, ha.Frame)
        self._append(piece.position, piece.body)
        return b""

    def _append(self, position: int, body: bytes | memoryview) -> None:
        log = self._log
        end = log.end_position
        if position != end:
            if end:
                raise ReplicationError(
                    f"the master sends position {position}, and this log ends at {end}: nothing was appended",
                    reason="diverged",
                )
            if body and (position < 0 or position % log.file_bytes):
                raise ReplicationError(
                    f"the master begins at {position}, where no file of {log.file_bytes} bytes does: give both brokers"
                    " the same mappedFileSizeCommitLog",
                    reason="file-size",
                )
        if body:
            view = memoryview(body)
            if self._walk.end != position:
                self._walk.begin(position)
            if position % log.file_bytes + len(view) > log.file_bytes:
                raise ReplicationError(
                    f"a frame at {position} crosses the end of a file of {log.file_bytes} bytes: give both brokers the"
                    " same mappedFileSizeCommitLog, and this one an empty store",
                    reason="file-size",
                )
            before = self._walk.step(position, view, log.file_bytes)
            try:
                log.append_raw(position, view)
            except BaseException:
                self._walk.back(before)
                raise
        self.fits = True

    def _report(self, now_s: float) -> bytes:
        self.last_write_s = now_s
        return ha.encode_report(self._log.end_position)

    def due_s(self) -> float:
        """When `check` is to be called again, if nothing else happens before."""
        return min(
            self.last_read_s + self._settings.ha_housekeeping_interval_ms / 1000,
            self.last_write_s + self._settings.ha_heartbeat_interval_ms / 1000,
        )

    def check(self, now_s: float) -> bytes:
        """Return a report if it is time for one. Raises ReplicationError if the master was silent for too long."""
        silent_s = now_s - self.last_read_s
        if silent_s >= self._settings.ha_housekeeping_interval_ms / 1000:
            raise ReplicationError(
                f"the master sent nothing for {silent_s:.0f} s (haHousekeepingInterval): connecting again",
                reason="stalled",
            )
        if now_s - self.last_write_s >= self._settings.ha_heartbeat_interval_ms / 1000:
            return self._sign_of_life(now_s)
        return b""

    def _sign_of_life(self, now_s: float) -> bytes:
        return self._report(now_s)


class SwitchSlaveLink(SlaveLink):
    """One connection in the switching protocol: this log is cut first where the master's epochs say that it differs.

    `epochs`: this log's. `confirm` is told up to where the in-sync members hold what this log holds.
    """

    state = State.HANDSHAKE

    def __init__(
        self,
        log: ReplicatedLog,
        settings: BrokerSettings,
        now_s: float,
        walk: RecordWalk,
        *,
        epochs: EpochList,
        replica_id: int,
        confirm: Callable[[int], None],
    ) -> None:
        super().__init__(log, settings, now_s, walk)
        self._reader = ha.SwitchFrames()
        self._epochs = epochs
        self._replica_id = replica_id
        self._confirm = confirm
        self._epoch = -1

    def hello(self, now_s: float) -> bytes:
        """Return the handshake."""
        self.last_write_s = now_s
        settings = self._settings
        return ha.encode_slave_handshake(
            ha.SlaveHandshake(self._replica_id, settings.sync_from_last_file, settings.async_learner)
        )

    def _take(self, piece: ha.Frame | ha.MasterHandshake, now_s: float) -> bytes:
        if isinstance(piece, ha.MasterHandshake):
            if self.state is not State.HANDSHAKE:
                raise ReplicationError("the master greets again in the middle of the log", reason="state")
            self._align(piece)
            self.state = State.TRANSFER
            return self._report(now_s)
        if self.state is not State.TRANSFER:
            raise ReplicationError("the master sends log before it greets", reason="state")
        self._append(piece.position, piece.body)
        if piece.epoch != self._epoch and piece.epoch >= 0:
            self._note_epoch(piece)
        self._confirm(max(0, min(piece.confirmed, self._log.end_position)))
        return b""

    def _note_epoch(self, piece: ha.Frame) -> None:
        """Record the epoch once its first byte is here, the very first at once as RocketMQ does.

        One without bytes would be taken for the same as a dead master's of that number, and what that one wrote last
        be kept.
        """
        if self._log.end_position > piece.epoch_start >= 0 or not self._epochs:
            self._epoch = piece.epoch
            self._epochs.append(piece.epoch, max(0, piece.epoch_start))

    def _align(self, master: ha.MasterHandshake) -> None:
        """Cut what this log has and the master's has not."""
        log, own_end = self._log, self._log.end_position
        if not self._epochs:
            if own_end > master.end_position:
                raise ReplicationError(
                    f"this log of {own_end} bytes has no epochs and the master's ends at {master.end_position}: what"
                    " both have in common is unknown. Stop this broker, remove its store and start it again",
                    reason="ahead",
                )
            return
        point = self._epochs.truncation_point(master.epochs, masters_end=master.end_position, own_end=own_end)
        if point is None:
            raise ReplicationError(
                f"this log and the master's have no epoch in common ({_listed(self._epochs.starts)};"
                f" {_listed(master.epochs)}). Stop this broker, remove its store and start it again",
                reason="diverged",
            )
        if point < own_end:
            if not log.record_begins(point):
                raise ReplicationError(
                    f"this log and the master's part at {point}, in the middle of a record here. Stop this broker,"
                    " remove its store and start it again",
                    reason="diverged",
                )
            log.truncate(point)
            self._walk.begin(log.end_position)
        self._epochs.cut(point, master.epochs)

    def _report(self, now_s: float) -> bytes:
        self.last_write_s = now_s
        return ha.encode_switch_report(self._log.end_position)

    def _sign_of_life(self, now_s: float) -> bytes:
        # Before the master's answer there is nothing to say again: the first handshake cannot be lost.
        if self.state is State.TRANSFER:
            return self._report(now_s)
        self.last_write_s = now_s
        return b""


def _listed(epochs: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in epochs[-5:]) or "none"
