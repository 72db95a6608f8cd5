"""The bytes of replication: written out by hand, cut at any byte, and any bytes at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import FrameError
from rocketspark.protocol import ha

pytestmark = pytest.mark.shows(
    "the HA link, both protocols, as bytes: cut anywhere, any bytes at all, what official brokers said to each other"
)

LONGS = st.integers(0, ha.POSITION_MAX)
EPOCHS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5)
BODIES = st.binary(max_size=40)

# (reader, what it reads, its bytes)
VECTORS = [
    (ha.ClassicReports, ha.Report(258), bytes.fromhex("0000000000000102")),
    (ha.ClassicFrames, ha.Frame(258, b"ab"), bytes.fromhex("0000000000000102 00000002 6162")),
    (ha.ClassicFrames, ha.Frame(258, b""), bytes.fromhex("0000000000000102 00000000")),
    (ha.SwitchReports, ha.SlaveHandshake(3, True, False), bytes.fromhex("00000001 0001 0000 0000000000000003")),
    (ha.SwitchReports, ha.SlaveHandshake(3, False, True), bytes.fromhex("00000001 0000 0001 0000000000000003")),
    (ha.SwitchReports, ha.Report(258), bytes.fromhex("00000002 0000000000000102")),
    (
        ha.SwitchFrames,
        ha.MasterHandshake(258, 7, ((2, 0), (7, 16))),
        bytes.fromhex(
            "00000001 00000018 0000000000000102 00000007 00000002 0000000000000000 00000007 0000000000000010"
        ),
    ),
    (
        ha.SwitchFrames,
        ha.Frame(258, b"ab", 7, 16, 250),
        bytes.fromhex("00000002 00000002 0000000000000102 00000007 0000000000000010 00000000000000fa 6162"),
    ),
]


def encoded(reader: type, piece: object) -> bytes:
    if isinstance(piece, ha.Report):
        return (ha.encode_report if reader is ha.ClassicReports else ha.encode_switch_report)(piece.position)
    if isinstance(piece, ha.SlaveHandshake):
        return ha.encode_slave_handshake(piece)
    if isinstance(piece, ha.MasterHandshake):
        return ha.encode_master_handshake(piece.end_position, piece.epochs)
    assert isinstance(piece, ha.Frame)
    return ha.encode_frame(piece.position, piece.body) if piece.epoch < 0 else ha.encode_switch_frame(piece)


@pytest.mark.parametrize(("reader", "piece", "wire"), VECTORS)
def test_each_piece_is_written_and_read_byte_by_byte(reader: type, piece: object, wire: bytes) -> None:
    assert encoded(reader, piece) == wire
    machine = reader()
    for at in range(len(wire) - 1):
        assert machine.feed(wire[at : at + 1]) == []
        assert machine.kept_bytes == at + 1
    assert machine.feed(wire[-1:]) == [piece]
    assert machine.kept_bytes == 0
    assert reader().feed(wire * 3) == [piece] * 3


PIECES = {
    ha.ClassicReports: st.builds(ha.Report, LONGS),
    ha.ClassicFrames: st.tuples(LONGS, BODIES).map(lambda found: ha.Frame(*found)),
    ha.SwitchReports: st.builds(ha.Report, LONGS)
    | st.builds(ha.SlaveHandshake, st.integers(0, 2**40), st.booleans(), st.booleans()),
    ha.SwitchFrames: st.builds(ha.Frame, LONGS, BODIES, st.integers(0, 9), LONGS, LONGS)
    | st.builds(
        lambda end, epochs: ha.MasterHandshake(end, epochs[-1][0] if epochs else -1, tuple(epochs)), LONGS, EPOCHS
    ),
}


@given(st.data(), st.sampled_from(list(PIECES)))
def test_streams_cut_anywhere_give_the_same(data: st.DataObject, reader: type) -> None:
    pieces = data.draw(st.lists(PIECES[reader], max_size=8))
    wire = b"".join(encoded(reader, piece) for piece in pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    machine = reader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += machine.feed(wire[start:end])
    # Compared at the end: views given out earlier still hold what they did.
    assert found == pieces
    assert machine.kept_bytes == 0


@given(st.sampled_from(list(PIECES)), st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_pieces_or_an_error_and_little_is_kept(reader: type, parts: list[bytes]) -> None:
    machine = reader()
    try:
        for part in parts:
            machine.feed(part)
            assert machine.kept_bytes <= sum(map(len, parts))
    except FrameError:
        pass


@pytest.mark.parametrize(
    ("reader", "wire"),
    [
        (ha.ClassicReports, b"GET / HT"),
        (ha.ClassicReports, b"\xff" * 8),
        (ha.ClassicFrames, bytes(8) + (ha.FRAME_BYTES_MAX - 12 + 1).to_bytes(4, "big")),
        (ha.ClassicFrames, bytes(8) + b"\xff" * 4),
        (ha.ClassicFrames, b"HTTP/1.1 400"),
        (ha.SwitchReports, bytes(4)),
        (ha.SwitchReports, b"\0\0\0\3"),
        (ha.SwitchReports, bytes.fromhex("00000001 0002 0000 0000000000000003")),
        (ha.SwitchReports, bytes.fromhex("00000001 0000 0000 ffffffffffffffff")),
        (ha.SwitchFrames, bytes(8)),
        (ha.SwitchFrames, b"\0\0\0\2" + (ha.FRAME_BYTES_MAX - 36 + 1).to_bytes(4, "big")),
        (ha.SwitchFrames, b"\0\0\0\1" + (12 * 1001).to_bytes(4, "big")),
        (ha.SwitchFrames, b"\0\0\0\1" + (13).to_bytes(4, "big")),
    ],
)
def test_what_is_no_piece_is_refused_as_soon_as_its_head_is_there(reader: type, wire: bytes) -> None:
    with pytest.raises(FrameError):
        reader().feed(wire)


def test_the_largest_frame_is_taken() -> None:
    body = bytes(ha.FRAME_BYTES_MAX - ha.CLASSIC_HEADER_BYTES)
    machine = ha.ClassicFrames()
    wire = ha.encode_frame(0, body)
    found = [frame for at in range(0, len(wire), 1 << 16) for frame in machine.feed(wire[at : at + (1 << 16)])]
    assert [(frame.position, len(frame.body)) for frame in found] == [(0, len(body))]


def test_only_the_newest_epochs_of_very_many_are_told() -> None:
    wire = ha.encode_master_handshake(9, [(n, n * 10) for n in range(1, 1003)])
    (found,) = ha.SwitchFrames().feed(wire)
    assert isinstance(found, ha.MasterHandshake)
    assert (len(found.epochs), found.epochs[0], found.last_epoch) == (1000, (3, 30), 1002)
