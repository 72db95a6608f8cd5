"""Both ends of a link as state machines without a socket: bytes come in, bytes go out, and the time is an argument.

`MasterLink` and `SwitchMasterLink` stand for one slave at its master; `SlaveLink` and `SwitchSlaveLink` for the master
at its slave. The switching protocol is the one used under a controller.

Rules: a slave counts for nothing before it was found to hold a part of this very log. A slave that does not fit gets
signs of life and no log, so that a Java slave stays connected instead of asking again every few seconds. A slave
appends nothing but the next piece of its log, and reports what it holds as soon as it holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError
from rocketspark.protocol import ha
from rocketspark.store.files.epoch_file import Epoch, EpochList

# In place of a position: there is no such place.
NOWHERE = -1


def another_log(position: int) -> ReplicationError:
    """Return the error for a slave whose last record differs from the master's record at the same position."""
    return ReplicationError(
        f"the log here is no copy of this master's: at {position}, where its last record is, the master has another"
        " one. Nothing is copied. Stop this broker, save what it alone has, remove its store and start it again",
        reason="diverged",
    )


class FlowWindow:
    """Counts the bytes that a link carries, second by second."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._bytes = 0
        self._last_bytes = 0

    def add(self, count: int, now_s: float) -> None:
        """Count bytes that were sent or received."""
        self._turn(now_s)
        self._bytes += count

    def room(self, limit: int, now_s: float) -> int:
        """Return how many more bytes may be sent in this second, of `limit` bytes a second."""
        self._turn(now_s)
        return max(0, limit - self._bytes)

    def rate(self, now_s: float) -> int:
        """Return the bytes of the last whole second."""
        self._turn(now_s)
        return self._last_bytes

    @property
    def end_s(self) -> float:
        """The time at which the next second begins."""
        return self._began_s + 1.0

    def _turn(self, now_s: float) -> None:
        passed = int(now_s - self._began_s)
        if passed >= 1:
            self._last_bytes = self._bytes if passed == 1 else 0
            self._bytes = 0
            self._began_s += passed


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
        """Cut an incomplete record off the end; return the new end, where the next record must begin."""

    def record_begins(self, position: int) -> bool:
        """Tell whether a whole record, a blank or the end lies there."""

    def truncate(self, position: int) -> None:
        """Cut the log at `position`, and remove from queues and indexes what pointed behind it."""


class MasterLink:
    """The master's end of the link to one slave, in the classic protocol.

    `position`: of the next byte to send, -1 before the slave asked. `acked`: the slave holds the log before this
    position, -1 while that is not known. `refused`: why the slave gets no log, None if it gets it. `sent_end`: returns
    up to where the log may be sent; None: all of it.
    """

    header_bytes = ha.CLASSIC_HEADER_BYTES
    replica_id: int | None = None
    learner = False

    def __init__(
        self,
        log: ReplicatedLog,
        settings: BrokerSettings,
        now_s: float,
        *,
        sent_end: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._sent_end = sent_end
        self.position = -1
        self.acked = -1
        self.refused: ReplicationError | None = None
        self.began_s = self.last_read_s = self.last_write_s = now_s
        self.window = FlowWindow(now_s)
        # When the slave last held all that it could be sent; None before.
        self.caught_up_s: float | None = None
        self._end_when_sent = -1
        self._sent_s = now_s
        self._held_back = False
        self._reader: ha.ClassicReports | ha.SwitchReports = ha.ClassicReports()
        self._first = True

    # -- in

    def received(self, data: bytes, now_s: float) -> bool:
        """Read bytes from the slave; return True if they report up to where it has copied the log.

        Raises FrameError or ReplicationError for bytes after which the link must be closed.
        """
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
            self.caught_up_s = now_s if position == self._end() else self._sent_s

    def _begin(self, requested: int) -> None:
        """Find where to send from. RocketMQ starts an empty slave at the last file; here it gets all."""
        log = self._log
        self.position = self._first_position() if requested == 0 else requested
        if requested > log.end_position:
            self._refuse(
                f"the slave holds {requested} bytes of log and this master {log.end_position}: it was ahead, or copies"
                " another log; nothing is sent to it. If this master's store is an older one, the slave holds what is"
                " lost here: make it the master. Else stop it, remove its store and start it again",
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
            if self.refused is None and self.acked == self.position == self._end():
                self.caught_up_s = now_s
            if now_s - self.last_write_s < self._settings.ha_heartbeat_interval_ms / 1000:
                return b""
        frame = self._frame(body)
        self._end_when_sent, self._sent_s = self._end(), now_s
        self.wrote(len(frame), now_s)
        return frame

    def _end(self) -> int:
        """Return where what may be sent ends."""
        end = self._sent_end()
        return self._log.end_position if end is None else end

    def _room(self, now_s: float) -> int:
        """How many bytes of log the next frame may hold; checks that they are still there."""
        if self.position < self._log.min_position:
            self._refuse_removed()
            return 0
        settings = self._settings
        end = self._end()
        room = min(settings.ha_batch_bytes, ha.FRAME_BYTES_MAX - self.header_bytes, end - self.position)
        if settings.ha_flow_control:
            left = self.window.room(settings.ha_bytes_per_second_max, now_s) - self.header_bytes
            # With a limit below a frame's header one byte a second goes.
            left = max(left, 1) if settings.ha_bytes_per_second_max <= self.header_bytes else left
            if left <= 0:
                self._held_back = self.position < end
            room = min(room, left)
        return room

    def _frame(self, body: bytes | memoryview) -> bytes:
        frame = ha.encode_frame(self.position, body)
        self.position += len(body)
        return frame

    def wrote(self, count: int, now_s: float) -> None:
        """Count bytes that are written to the slave."""
        self.last_write_s = now_s
        self.window.add(count, now_s)

    # -- times

    def due_s(self) -> float:
        """Return when `check` and `next_frame` must be called again, if nothing else happens before."""
        due_s = self.silence_due_s()
        if self.position >= 0:
            due_s = min(due_s, self.last_write_s + self._settings.ha_heartbeat_interval_ms / 1000)
            if self._held_back:
                due_s = min(due_s, self.window.end_s)
        return due_s

    def silence_due_s(self) -> float:
        """Return when the slave will have been silent for too long (haHousekeepingInterval)."""
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
        """How many bytes of the log the slave does not hold, by its reports; the whole log before the first one."""
        return self._log.end_position - self.acked

    def is_in_sync(self, end_position: int) -> bool:
        """Tell whether the slave is close enough to a log that ends there (haMaxGapNotInSync)."""
        return self.acked >= 0 and end_position - self.acked < self._settings.in_sync_gap_bytes


class SwitchMasterLink(MasterLink):
    """The master's end of the link to one slave, in the switching protocol.

    `epochs`: the master's; `confirmed`: returns up to where every member of the in-sync set holds the log.
    """

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


class LinkState(Enum):
    """How far a slave's link is: not connected, waiting for the master's first bytes, or taking the log."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2


class SlaveLink:
    """The slave's end of a link, in the classic protocol.

    An incomplete record that an earlier link left at the end of the log is cut. So the first bytes that arrive must
    begin a record, or the log refuses them.
    """

    # A master that hangs takes connections too: its system does.
    state = LinkState.HANDSHAKE

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
        """Append what the master sent; return the report to send, one for all frames.

        Raises FrameError, ReplicationError or StoreError, after which the link must be closed. The frames of
        `data` before the one that failed are appended.
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
        self.state = LinkState.TRANSFER
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
        """Return when `check` must be called again, if nothing else happens before."""
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
    """The slave's end of a link, in the switching protocol.

    This log is first cut back to where, by the master's epochs, the two logs are the same. `epochs`: of this log;
    `confirm`: called with the position up to which the members of the in-sync set hold what this log holds; `learner`:
    this slave must not become a member of the in-sync set; `other_at`: where this log's last record begins if the
    master has another one there, else NOWHERE.

    If a master lost its log's end and went on in the same epoch, epochs do not show that; nothing is cut then.
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
        other_at: int = NOWHERE,
    ) -> None:
        super().__init__(log, settings, now_s)
        self.learner = learner or settings.async_learner
        self._other_at = other_at
        self._reader = ha.SwitchFrames()
        self._epochs = epochs
        self._replica_id = replica_id
        self._confirm = confirm
        self._epoch = -1

    def hello(self, now_s: float) -> bytes:
        """Return the handshake, which is sent first."""
        self.last_write_s = now_s
        settings = self._settings
        return ha.encode_slave_handshake(
            ha.SlaveHandshake(self._replica_id, settings.sync_from_last_file, self.learner)
        )

    def _take(self, piece: ha.Frame | ha.MasterHandshake, now_s: float) -> bytes:
        if isinstance(piece, ha.MasterHandshake):
            if self.state is not LinkState.HANDSHAKE:
                raise ReplicationError("the master greets again in the middle of the log", reason="state")
            self._align(piece)
            self.state = LinkState.TRANSFER
            return self._report(now_s)
        if self.state is not LinkState.TRANSFER:
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
            if self._other_at > NOWHERE:
                raise another_log(self._other_at)
            return
        point = self._epochs.truncation_point(master.epochs, masters_end=master.end_position, own_end=own_end)
        if point is None:
            raise ReplicationError(
                f"this log and the master's have no epoch in common ({_listed(self._epochs.starts)};"
                f" {_listed(master.epochs)}). Stop this broker, remove its store and start it again",
                reason="diverged",
            )
        if NOWHERE < self._other_at < point:
            raise another_log(self._other_at)
        if point < own_end:
            mine = self._epochs.of_position(own_end - 1)
            if mine is not None and (mine.epoch, mine.start) == master.epochs[-1]:
                raise ReplicationError(
                    f"the master's log ends at {master.end_position}, and this one at {own_end}, in the same epoch"
                    f" {mine.epoch}: the master lost the end of its log, and nothing is cut here for it. Elect this"
                    " broker to keep what it holds (enableElectUncleanMaster at the controller, mqadmin electMaster),"
                    " or stop it, save what it alone has, remove its store and start it again",
                    reason="ahead",
                )
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
        if self.state is LinkState.TRANSFER:
            return self._report(now_s)
        self.last_write_s = now_s
        return b""


def _listed(epochs: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in epochs[-5:]) or "none"
