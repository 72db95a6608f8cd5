"""The bytes of replication: what master and slave send each other over the HA port, in both of RocketMQ's protocols.

    classic     slave -> master   report     i8 end of the slave's log
                master -> slave   frame      i8 position, i4 size, that many bytes of log
    switching   slave -> master   handshake  i4 1, i2 from the last file, i2 learner, i8 id of the slave
                slave -> master   report     i4 2, i8 end of the slave's log
                master -> slave   handshake  i4 1, i4 size, i8 end of the log, i4 last epoch, (i4 epoch, i8 start) ...
                master -> slave   frame      i4 2, i4 size, i8 position, i4 epoch, i8 its start, i8 confirmed, log bytes

No message of either begins with a magic number, a version or its length. Rule: a size is checked before the bytes that
it counts are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from rocketspark.errors import FrameError

# With its header: what a Java slave's buffer holds. It waits for the rest of a larger one until it gives up.
FRAME_BYTES_MAX = 4 << 20
EPOCHS_MAX = 1000
# No log is this long: such a position is the beginning of something else.
POSITION_MAX = 1 << 48

HANDSHAKE, TRANSFER = 1, 2

_REPORT = struct.Struct(">q")
_FRAME = struct.Struct(">qi")
_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_SWITCH_REPORT = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_SWITCH_FRAME = struct.Struct(">iiqiqq")
_EPOCH = struct.Struct(">iq")
_STATE_AND_SIZE = struct.Struct(">ii")
_STATE = struct.Struct(">i")

CLASSIC_HEADER_BYTES = _FRAME.size
SWITCH_HEADER_BYTES = _SWITCH_FRAME.size

T = TypeVar("T")


class Report(NamedTuple):
    """A slave's report: it has all of the log before `position`."""

    position: int


class SlaveHandshake(NamedTuple):
    """The first bytes that a slave sends. `from_last_file`: an empty slave begins at the master's last file, not its
    first; `learner`: the slave never counts as in sync.
    """

    replica_id: int
    from_last_file: bool = False
    learner: bool = False


class EpochStart(NamedTuple):
    """An epoch, the time in office of one master, and the position of the log at which it began."""

    epoch: int
    start: int


class MasterHandshake(NamedTuple):
    """A master's answer to a slave's handshake: the end of its log, and where each of its epochs began."""

    end_position: int
    last_epoch: int
    epochs: tuple[EpochStart, ...]


class Frame(NamedTuple):
    """A piece of the log, cut anywhere; one without bytes only shows that the master lives.

    `epoch`, its start and the confirmed position are in frames of the switching protocol alone.
    """

    position: int
    body: bytes | memoryview
    epoch: int = -1
    epoch_start: int = -1
    confirmed: int = -1


def encode_report(position: int) -> bytes:
    """Return a classic slave's report."""
    return _REPORT.pack(position)


def encode_frame(position: int, body: bytes | memoryview = b"") -> bytes:
    """Return a classic master's frame."""
    return b"".join((_FRAME.pack(position, len(body)), body))


def encode_slave_handshake(hello: SlaveHandshake) -> bytes:
    """Return a slave's handshake. It must leave in one write: Java reads it as soon as 12 bytes are there."""
    return _SLAVE_HANDSHAKE.pack(HANDSHAKE, hello.from_last_file, hello.learner, hello.replica_id)


def encode_switch_report(position: int) -> bytes:
    """Return a report of the switching protocol."""
    return _SWITCH_REPORT.pack(TRANSFER, position)


def encode_master_handshake(end_position: int, epochs: Sequence[tuple[int, int]]) -> bytes:
    """Return a master's handshake with the newest of its epochs, as many as fit."""
    kept = epochs[-EPOCHS_MAX:]
    last_epoch = kept[-1][0] if kept else -1
    head = _MASTER_HANDSHAKE.pack(HANDSHAKE, _EPOCH.size * len(kept), end_position, last_epoch)
    return head + b"".join(_EPOCH.pack(epoch, start) for epoch, start in kept)


def encode_switch_frame(frame: Frame) -> bytes:
    """Return a frame of the switching protocol."""
    position, body, epoch, epoch_start, confirmed = frame
    return b"".join((_SWITCH_FRAME.pack(TRANSFER, len(body), position, epoch, epoch_start, confirmed), body))


class _Reader(Generic[T]):
    """Cuts a stream into what it holds. It keeps no more than one unfinished piece, whose size was checked."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the piece that is not whole yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[T]:
        """Return what `data` completes. Bodies are views of it. Raises FrameError: the stream cannot be read on."""
        source: bytes | bytearray = data
        if self._rest:
            self._rest += data
            source = self._rest
        found: list[T] = []
        at, end = 0, len(source)
        while True:
            size = self._size(source, at, end - at)
            if size == 0 or at + size > end:
                break
            found.append(self._piece(source, at, size))
            at += size
        if at or source is data:
            # Another object: views of the one before are given out.
            self._rest = bytearray(memoryview(source)[at:])
        return found

    def _size(self, source: bytes | bytearray, at: int, have: int) -> int:
        """The bytes of the piece that begins there; 0 while too few of them have come to tell."""
        raise NotImplementedError

    def _piece(self, source: bytes | bytearray, at: int, size: int) -> T:
        raise NotImplementedError


def _position(position: int) -> int:
    if not 0 <= position <= POSITION_MAX:
        raise FrameError(f"{position} is no position of a log: whoever sends it speaks no replication, or another kind")
    return position


class ClassicReports(_Reader[Report]):
    """Reads what a master of the classic protocol receives: reports."""

    def _size(self, source: bytes | bytearray, at: int, have: int) -> int:
        return _REPORT.size

    def _piece(self, source: bytes | bytearray, at: int, size: int) -> Report:
        return Report(_position(_REPORT.unpack_from(source, at)[0]))


class SwitchReports(_Reader["SlaveHandshake | Report"]):
    """Reads what a master of the switching protocol receives: a handshake, then reports."""

    def _size(self, source: bytes | bytearray, at: int, have: int) -> int:
        if have < _STATE.size:
            return 0
        (state,) = _STATE.unpack_from(source, at)
        if state == HANDSHAKE:
            return _SLAVE_HANDSHAKE.size
        if state == TRANSFER:
            return _SWITCH_REPORT.size
        raise FrameError(
            f"state {state} is neither a handshake nor a report: the slave speaks another protocol, as one does without"
            " enableControllerMode"
        )

    def _piece(self, source: bytes | bytearray, at: int, size: int) -> SlaveHandshake | Report:
        if size == _SWITCH_REPORT.size:
            return Report(_position(_SWITCH_REPORT.unpack_from(source, at)[1]))
        _, from_last_file, learner, replica_id = _SLAVE_HANDSHAKE.unpack_from(source, at)
        if from_last_file not in (0, 1) or learner not in (0, 1) or replica_id < 0:
            raise FrameError(f"a handshake with flags {from_last_file}, {learner} and id {replica_id}")
        return SlaveHandshake(replica_id, bool(from_last_file), bool(learner))


def _body_size(size: int, header_bytes: int) -> int:
    if not 0 <= size <= FRAME_BYTES_MAX - header_bytes:
        raise FrameError(
            f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} with its header are taken: the master speaks another"
            " protocol, or its haTransferBatchSize is too large"
        )
    return size


class ClassicFrames(_Reader[Frame]):
    """Reads what a slave of the classic protocol receives: frames."""

    def _size(self, source: bytes | bytearray, at: int, have: int) -> int:
        if have < _FRAME.size:
            return 0
        return _FRAME.size + _body_size(_FRAME.unpack_from(source, at)[1], _FRAME.size)

    def _piece(self, source: bytes | bytearray, at: int, size: int) -> Frame:
        position, _ = _FRAME.unpack_from(source, at)
        return Frame(position, memoryview(source)[at + _FRAME.size : at + size])


class SwitchFrames(_Reader["MasterHandshake | Frame"]):
    """Reads what a slave of the switching protocol receives: a handshake, then frames."""

    def _size(self, source: bytes | bytearray, at: int, have: int) -> int:
        if have < _STATE_AND_SIZE.size:
            return 0
        state, size = _STATE_AND_SIZE.unpack_from(source, at)
        if state == TRANSFER:
            return _SWITCH_FRAME.size + _body_size(size, _SWITCH_FRAME.size)
        if state != HANDSHAKE:
            raise FrameError(
                f"state {state} is neither a handshake nor log: the master speaks another protocol, as one does without"
                " enableControllerMode"
            )
        if not 0 <= size <= EPOCHS_MAX * _EPOCH.size or size % _EPOCH.size:
            raise FrameError(f"a handshake with {size} bytes of epochs, each of {_EPOCH.size}, {EPOCHS_MAX} at most")
        return int(_MASTER_HANDSHAKE.size + size)

    def _piece(self, source: bytes | bytearray, at: int, size: int) -> MasterHandshake | Frame:
        if _STATE.unpack_from(source, at)[0] == HANDSHAKE:
            _, _, end_position, last_epoch = _MASTER_HANDSHAKE.unpack_from(source, at)
            body = memoryview(source)[at + _MASTER_HANDSHAKE.size : at + size]
            return MasterHandshake(end_position, last_epoch, tuple(map(EpochStart._make, _EPOCH.iter_unpack(body))))
        _, _, position, epoch, epoch_start, confirmed = _SWITCH_FRAME.unpack_from(source, at)
        return Frame(position, memoryview(source)[at + _SWITCH_FRAME.size : at + size], epoch, epoch_start, confirmed)
