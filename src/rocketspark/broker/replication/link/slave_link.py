"""The slave's side of a link, without a socket: bytes of the master in, reports out, times handed in.

Rule: nothing is appended that is not the next piece of this very log; a slave reports what it holds as soon as it does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rocketspark.broker.replication.link.flow_window import FlowWindow
from rocketspark.broker.replication.link.replicated_log import ReplicatedLog
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError
from rocketspark.protocol import ha
from rocketspark.store.files.epoch_file import EpochList


class State(Enum):
    """Of a slave's link: not connected, waiting for the master's first word, taking the log."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2


class SlaveLink:
    """One connection to a master, in the classic protocol.

    What the connection before left of a record is given up: so the first bytes of this one must begin a record, or the
    log refuses them.
    """

    # A master that hangs takes connections too: its system does.
    state = State.HANDSHAKE

    def __init__(self, log: ReplicatedLog, settings: BrokerSettings, now_s: float) -> None:
        self._log = log
        self._settings = settings
        log.cut_partial_record()
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
        self.state = State.TRANSFER
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
            log.append_raw(position, body)
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

    `epochs`: this log's. `confirm` is told up to where the in-sync members hold what this log holds. `learner`: it is
    not to become a member of the in-sync set.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        settings: BrokerSettings,
        now_s: float,
        *,
        epochs: EpochList,
        replica_id: int,
        confirm: Callable[[int], None],
        learner: bool = False,
    ) -> None:
        super().__init__(log, settings, now_s)
        self.learner = learner or settings.async_learner
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
            ha.SlaveHandshake(self._replica_id, settings.sync_from_last_file, self.learner)
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
