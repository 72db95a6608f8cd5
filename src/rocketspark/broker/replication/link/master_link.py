"""The master's side of a link, without a socket: bytes of the slave in, frames out, times handed in.

Rule: a slave counts for nothing before it was found to hold a part of this very log; one that does not fit gets signs
of life and no log, so that a Java slave stays where it is instead of asking again every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.broker.replication.link.flow_window import FlowWindow
from rocketspark.broker.replication.link.replicated_log import ReplicatedLog
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError
from rocketspark.protocol import ha
from rocketspark.store.files.epoch_file import Epoch, EpochList


class MasterLink:
    """One slave of the classic protocol.

    `position`: of the next byte to send, -1 before the slave asked. `acked`: the slave holds all before, -1 while that
    is not known. `refused`: why it gets nothing.
    """

    header_bytes = ha.CLASSIC_HEADER_BYTES
    replica_id: int | None = None
    learner = False

    def __init__(self, log: ReplicatedLog, settings: BrokerSettings, now_s: float) -> None:
        self._log = log
        self._settings = settings
        self.position = -1
        self.acked = -1
        self.refused: ReplicationError | None = None
        self.began_s = self.last_read_s = self.last_write_s = now_s
        self.window = FlowWindow(now_s)
        # When the slave last held all there was; None before.
        self.caught_up_s: float | None = None
        self._end_when_sent = -1
        self._sent_s = now_s
        self._held_back = False
        self._reader: ha.ClassicReports | ha.SwitchReports = ha.ClassicReports()
        self._first = True

    # -- in

    def received(self, data: bytes, now_s: float) -> bool:
        """Take what the slave sent; True if it told how far it is. Raises FrameError, ReplicationError: close."""
        self.last_read_s = now_s
        if self._first:
            self._first = False
            self._check_dialect(data)
        told = False
        for piece in self._reader.feed(data):
            if isinstance(piece, ha.SlaveHandshake):
                self._greeted(piece)
            else:
                self._reported(piece.position, now_s)
                told = True
        return told

    def _check_dialect(self, data: bytes) -> None:
        # A slave in controller mode begins with 16 bytes: 1, two flags, a small id.
        if len(data) == 16 and data[:5] == b"\0\0\0\1\0" and data[6] == 0 and data[8:12] == bytes(4):
            raise ReplicationError(
                "the slave is in controller mode and this broker is not: set enableControllerMode on both or neither",
                reason="protocol",
            )

    def _greeted(self, hello: ha.SlaveHandshake) -> None:
        raise AssertionError("a classic slave does not greet")

    def _reported(self, position: int, now_s: float) -> None:
        if self.position < 0:
            self._begin(position)
            if self.refused is None:
                # The slave waits for a word: if there is no log to send a sign of life is due.
                self.last_write_s -= self._settings.ha_heartbeat_interval_ms / 1000
        if self.refused is not None:
            return
        if position > self.position:
            raise ReplicationError(
                f"the slave reports {position}, and was sent nothing after {self.position}", reason="diverged"
            )
        self.acked = position
        if position >= self._end_when_sent:
            self.caught_up_s = now_s if position == self._log.end_position else self._sent_s

    def _begin(self, requested: int) -> None:
        """Find where to send from. RocketMQ starts an empty slave at the last file; here it gets all."""
        log = self._log
        self.position = self._first_position() if requested == 0 else requested
        if requested > log.end_position:
            self._refuse(
                f"the slave holds {requested} bytes of log and this master {log.end_position}: it was ahead, or copies"
                " another log; nothing is sent to it. Stop it, remove its store and start it again",
                "ahead",
            )
        elif requested and requested < log.min_position:
            self._refuse_removed()

    def _first_position(self) -> int:
        return self._log.min_position

    def _refuse_removed(self) -> None:
        self._refuse(
            f"the slave asks for position {self.position}, and this master removed all before {self._log.min_position}:"
            " nothing is sent to it. Stop it, remove its store and start it again",
            "removed",
        )

    def _refuse(self, text: str, reason: str) -> None:
        self.refused = ReplicationError(text, reason=reason)
        self.acked = -1

    # -- out

    def next_frame(self, now_s: float) -> bytes:
        """Return what to write next; nothing if there is nothing to say yet."""
        self._held_back = False
        if self.position < 0:
            return b""
        room = self._room(now_s) if self.refused is None else 0
        body = self._log.log_bytes(self.position, room) if room > 0 else b""
        if not body:
            if self.refused is None and self.acked == self.position == self._log.end_position:
                self.caught_up_s = now_s
            if now_s - self.last_write_s < self._settings.ha_heartbeat_interval_ms / 1000:
                return b""
        frame = self._frame(body)
        self._end_when_sent, self._sent_s = self._log.end_position, now_s
        self.wrote(len(frame), now_s)
        return frame

    def _room(self, now_s: float) -> int:
        """How many bytes of log the next frame may hold; checks that they are still there."""
        if self.position < self._log.min_position:
            self._refuse_removed()
            return 0
        settings = self._settings
        room = min(settings.ha_batch_bytes, ha.FRAME_BYTES_MAX - self.header_bytes)
        if settings.ha_flow_control:
            left = self.window.room(settings.ha_bytes_per_second_max, now_s) - self.header_bytes
            # With a limit below a frame's header one byte a second goes.
            left = max(left, 1) if settings.ha_bytes_per_second_max <= self.header_bytes else left
            if left <= 0:
                self._held_back = self.position < self._log.end_position
            room = min(room, left)
        return room

    def _frame(self, body: bytes | memoryview) -> bytes:
        frame = ha.encode_frame(self.position, body)
        self.position += len(body)
        return frame

    def wrote(self, count: int, now_s: float) -> None:
        """Count bytes that go out."""
        self.last_write_s = now_s
        self.window.add(count, now_s)

    # -- times

    def due_s(self) -> float:
        """When `check` and `next_frame` are to be called again, if nothing else happens before."""
        due_s = self.silence_due_s()
        if self.position >= 0:
            due_s = min(due_s, self.last_write_s + self._settings.ha_heartbeat_interval_ms / 1000)
            if self._held_back:
                due_s = min(due_s, self.window.end_s)
        return due_s

    def silence_due_s(self) -> float:
        """When the slave was silent for too long."""
        return self.last_read_s + self._settings.ha_housekeeping_interval_ms / 1000

    def check(self, now_s: float) -> None:
        """Raise ReplicationError if the slave was silent for too long."""
        silent_s = now_s - self.last_read_s
        if silent_s >= self._settings.ha_housekeeping_interval_ms / 1000:
            raise ReplicationError(
                f"the slave sent nothing for {silent_s:.0f} s (haHousekeepingInterval): closed", reason="stalled"
            )

    @property
    def lacks(self) -> int:
        """How many bytes of the log the slave does not hold, as far as it said; one more before it said anything."""
        return self._log.end_position - self.acked

    def is_in_sync(self, end_position: int) -> bool:
        """Tell whether the slave is close enough to a log that ends there (haMaxGapNotInSync)."""
        return self.acked >= 0 and end_position - self.acked < self._settings.in_sync_gap_bytes


class SwitchMasterLink(MasterLink):
    """One slave of the switching protocol. `epochs`: the master's; `confirmed`: up to where all in-sync members are."""

    header_bytes = ha.SWITCH_HEADER_BYTES

    def __init__(
        self,
        log: ReplicatedLog,
        settings: BrokerSettings,
        now_s: float,
        *,
        epochs: EpochList,
        confirmed: Callable[[], int],
    ) -> None:
        super().__init__(log, settings, now_s)
        self._reader = ha.SwitchReports()
        self._epochs = epochs
        self._confirmed = confirmed
        self._epoch: Epoch | None = None
        self._answer_due = False
        self._from_last_file = False

    def _check_dialect(self, data: bytes) -> None:
        pass

    def _greeted(self, hello: ha.SlaveHandshake) -> None:
        if self.position >= 0 or (self.replica_id is not None and hello.replica_id != self.replica_id):
            raise ReplicationError("the slave greets again in the middle of the log", reason="state")
        self.replica_id, self.learner = hello.replica_id, hello.learner
        self._from_last_file = hello.from_last_file
        self._answer_due = True

    def _reported(self, position: int, now_s: float) -> None:
        if self.replica_id is None:
            raise ReplicationError("the slave reports before it greets", reason="state")
        super()._reported(position, now_s)

    def _first_position(self) -> int:
        end = self._log.end_position
        return end - end % self._log.file_bytes if self._from_last_file else self._log.min_position

    def _begin(self, requested: int) -> None:
        super()._begin(requested)
        if self.refused is None:
            self._epoch = self._epochs.of_position(self.position)
            if self._epoch is None:
                self._refuse(
                    f"no epoch of this master holds position {self.position}, where the slave begins: nothing is sent"
                    " to it. Stop it, remove its store and start it again",
                    "epoch",
                )

    def next_frame(self, now_s: float) -> bytes:
        """Return what to write next; nothing if there is nothing to say yet."""
        if self._answer_due:
            self._answer_due = False
            answer = ha.encode_master_handshake(self._log.end_position, self._epochs.starts)
            self.wrote(len(answer), now_s)
            return answer
        return super().next_frame(now_s)

    def _frame(self, body: bytes | memoryview) -> bytes:
        position, count = self.position, len(body)
        if self._epoch is not None:
            epoch = self._epochs.entry(self._epoch.epoch) or self._epoch
            if count and position + count > epoch.end:
                # The last piece of an epoch is cut there and names the next already, also when it is empty.
                count = epoch.end - position
                epoch = self._epochs.after(epoch.epoch) or epoch
            self._epoch = epoch
        told = self._epoch or next(iter(self._epochs.entries), Epoch(-1, 0))
        self.position += count
        return ha.encode_switch_frame(
            ha.Frame(position, body[:count], told.epoch, told.start, min(self._confirmed(), self._log.end_position))
        )
