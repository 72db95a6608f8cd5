"""Arrow decoding equals the row by row decoder of `protocol.record`, on an official log and on made-up records."""

from __future__ import annotations

import datetime
import struct
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.arrow.property_texts import odd_properties

from rocketspark.arrow import records
from rocketspark.arrow.decode_request import DecodeRequest, RowFilter
from rocketspark.arrow.message_columns import COLUMNS, schema_of
from rocketspark.arrow.properties import Properties, split_keys
from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import batch, compression, record, record_layout, record_places, sysflags

pytestmark = pytest.mark.shows(
    "columns, subsets, properties, compressed bodies, headers only; recipes for JSON and Avro",
)

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "arrow"


def expected_row(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "body": message.body,
        "properties": list(message.properties.items()),
        "bornTime": message.born_time_ms * 1000,
        "storeTime": message.store_time_ms * 1000,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "offsetMessageId": message.offset_message_id,
        "logPosition": message.physical_offset,
    }


def rows_of(decoded: pa.RecordBatch) -> list[dict[str, Any]]:
    decoded.validate(full=True)
    numbers = [decoded.column(i) for i in range(decoded.num_columns)]
    numbers = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in numbers]
    return pa.RecordBatch.from_arrays(numbers, names=decoded.schema.names).to_pylist()


def assert_equal_to_row_decoder(data: bytes) -> int:
    expected = [expected_row(m) for m in record.decode_messages(data, "broker-a")]
    decoded = records.decode(data, broker="broker-a")
    assert decoded.schema.equals(schema_of())
    assert rows_of(decoded) == expected
    return len(expected)


@pytest.fixture(scope="module")
def official() -> list[bytes]:
    """Every record of the official log, in order."""
    found = []
    with tarfile.open(VECTORS / "commitlog.tar.gz") as tar:
        for member in sorted((m for m in tar.getmembers() if m.isfile()), key=lambda m: m.name):
            file = tar.extractfile(member)
            assert file is not None
            data = file.read()
            at = 0
            while at + 8 <= len(data):
                size, magic = struct.unpack_from(">ii", data, at)
                if magic not in (record_layout.MAGIC_V1, record_layout.MAGIC_V2):
                    break
                found.append(data[at : at + size])
                at += size
    return found


def is_inner_batch(stored: bytes) -> bool:
    return bool(int.from_bytes(stored[36:40], "big") & sysflags.INNER_BATCH)


def test_official_log_decodes_as_row_by_row(official: list[bytes]) -> None:
    assert len(official) == 613
    plain = [r for r in official if not is_inner_batch(r)]
    assert assert_equal_to_row_decoder(b"".join(plain)) == len(plain)


def test_official_inner_batches_are_unwrapped(official: list[bytes]) -> None:
    inner = [r for r in official if is_inner_batch(r)]
    assert inner
    assert assert_equal_to_row_decoder(b"".join(inner)) > len(inner)


def test_official_compressed_bodies_and_long_topic_take_the_quick_way(
    official: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "slow_batches", None)
    plain = [r for r in official if not is_inner_batch(r)]
    decoded = records.decode(b"".join(plain))
    kinds = {f & 0x701 for f in decoded.column("sysFlag").to_pylist() if f & 1}
    assert kinds == {0x101, 0x201, 0x301}
    assert max(len(t) for t in decoded.column("topic").to_pylist()) > 127


def test_each_column_alone(official: list[bytes]) -> None:
    data = b"".join(r for r in official if not is_inner_batch(r))
    everything = records.decode(data, broker="b")
    for name in COLUMNS:
        alone = records.decode(data, columns=[name], broker="b")
        assert alone.schema.names == [name]
        assert alone.column(0).equals(everything.column(name))


def make(number: int, **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "topic": b"T",
        "queue_id": 1,
        "queue_offset": number,
        "position": number * 1000,
        "body": b"body %d" % number,
        "properties": b"UNIQ_KEY\x01%032X\x02TAGS\x01tag%d\x02KEYS\x01k%d\x02" % (number, number % 3, number),
        "born_time_ms": 1_700_000_000_000 + number,
        "store_time_ms": 1_700_000_000_500 + number,
    }
    return record.encode(**values | fields)


def test_spans_offsets_and_tags_choose_rows() -> None:
    parts = [make(i) for i in range(100)]
    junk = b"\xff" * 37
    data = bytearray(b"".join(parts[:50]) + junk + b"".join(parts[50:]))
    first = sum(map(len, parts[:50]))
    spans = [(0, first), (first + len(junk), len(data))]
    decoded = records.decode(data, spans, ["queueOffset", "tag"], offset_first=10, offset_end=90)
    assert decoded.column("queueOffset").to_pylist() == list(range(10, 90))
    chosen = records.decode(
        data, spans, ["queueOffset"], offset_first=10, offset_end=90, wanted=RowFilter(frozenset({"tag1", "x"}))
    )
    assert chosen.column("queueOffset").to_pylist() == [i for i in range(10, 90) if i % 3 == 1]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=8), st.integers(1, 50))
def test_records_of_equal_and_other_sizes(runs: list[tuple[int, int]], walk: int) -> None:
    bodies = [b"x" * length for length, count in runs for _ in range(count)]
    made = [make(i, body=body, properties=b"") for i, body in enumerate(bodies)]
    before, record_places._WALK = record_places._WALK, walk
    try:
        decoded = records.decode(b"".join(made), columns=["queueOffset", "body"])
    finally:
        record_places._WALK = before
    assert decoded.column("queueOffset").to_pylist() == list(range(len(bodies)))
    assert decoded.column("body").to_pylist() == bodies


def test_tags_leave_out_messages_without_one() -> None:
    data = make(0, properties=b"") + make(1) + make(2, properties=b"TAGS\x01tag12\x02")
    assert records.decode(data, columns=["queueOffset"], wanted=RowFilter(frozenset({"tag1"}))).column(
        0
    ).to_pylist() == [1]


def test_no_rows_keep_the_schema() -> None:
    for decoded in (
        records.decode(b""),
        records.decode(make(1), offset_first=5),
        records.decode(make(1), wanted=RowFilter(frozenset({"no"}))),
    ):
        assert decoded.num_rows == 0
        assert decoded.schema.equals(schema_of())


def test_buffer_may_be_reused_once_decoded() -> None:
    data = bytearray(b"".join(make(i, topic=b"topic%d" % i) for i in range(20)))
    decoded = records.decode(data, broker="b")
    before = rows_of(decoded)
    data[:] = bytes(len(data))
    assert rows_of(decoded) == before


def test_inner_batch_rows_are_cut_at_the_offsets() -> None:
    items = [batch.BatchItem(0, b"inner %d" % i, b"TAGS\x01t%d\x02" % (i % 2)) for i in range(10)]
    outer = make(
        20,
        body=batch.encode(items),
        sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
        properties=b"INNER_NUM\x0110\x02INNER_BASE\x0120\x02",
    )
    decoded = records.decode(outer, columns=["queueOffset", "body"], offset_first=23, offset_end=28)
    assert decoded.column("queueOffset").to_pylist() == [23, 24, 25, 26, 27]
    assert decoded.column("body")[0].as_py() == b"inner 3"
    assert records.decode(outer, columns=["queueOffset"], wanted=RowFilter(frozenset({"t1"}))).column(
        0
    ).to_pylist() == [
        21,
        23,
        25,
        27,
        29,
    ]


@pytest.mark.parametrize("slowly", [False, True])
def test_rows_that_come_again_are_left_out_when_ascending(slowly: bool) -> None:
    # A name twice in one row takes the slow way.
    odd = b"a\x01b\x02a\x01c\x02" if slowly else b""
    data = b"".join(make(i, properties=odd) for i in [3, 4, 5, 6, 4, 5, 6, 7, 2, 9, 8])
    decoded = records.decode(data, offset_first=4, offset_end=9, ascending=True)
    assert decoded.column("queueOffset").to_pylist() == [4, 5, 6, 7, 8]
    decoded = records.decode(data, offset_first=4, ascending=False)
    assert decoded.column("queueOffset").to_pylist() == [4, 5, 6, 4, 5, 6, 7, 9, 8]
    decoded = records.decode(data, position_end=5001)
    assert decoded.column("queueOffset").to_pylist() == [3, 4, 5, 4, 5, 2]


BROKEN = {
    "size": lambda r: b"\x00\x00\x00\x05" + r[4:],
    "size too large": lambda r: (len(r) + 1).to_bytes(4, "big") + r[4:],
    "magic": lambda r: r[:4] + b"\x00\x00\x00\x00" + r[8:],
    "body length": lambda r: r[:84] + (1 << 20).to_bytes(4, "big") + r[88:],
    "body length below 0": lambda r: r[:84] + b"\xff\xff\xff\xff" + r[88:],
    "topic length": lambda r: r[:94] + b"\x7f" + r[95:],
    "properties length": lambda r: r[:96] + b"\x00\x01" + r[98:],
    "cut off": lambda r: r[:-1],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_records_are_named(kind: str) -> None:
    good = make(1)
    with pytest.raises(RecordError, match="record"):
        records.decode(BROKEN[kind](good))
    with pytest.raises(RecordError, match="record"):
        records.decode(make(0) + BROKEN[kind](good), columns=["queueOffset"])


def test_wrong_crc_is_found_when_asked() -> None:
    data = bytearray(make(0) + make(1))
    data[len(make(0)) + 90] ^= 1
    assert records.decode(data).num_rows == 2
    with pytest.raises(RecordError, match="CRC"):
        records.decode(data, check_crc=True)


def test_body_that_does_not_inflate_is_an_error() -> None:
    with pytest.raises(RecordError, match="inflate"):
        records.decode(make(0, sys_flag=sysflags.COMPRESSED, body=b"no zlib"), columns=["body"])


# Texts that rows of one producer share in part: what is looked for in all rows at once must not be taken for granted.
ALIKE = [
    "UNIQ_KEY\x01{n:032X}\x02WAIT\x01true\x02TAGS\x01t{n}\x02KEYS\x01k{n} {n}\x02a\x01{n}\x02longer name\x01ü{n}\x02",
    "UNIQ_KEY\x01{n:032X}\x02WAIT\x01true\x02TAGS\x01t{n}\x02KEYS\x01k{n} {n}\x02a\x01{n}\x02longer name\x01{n}",
    "a\x01{n}\x02KEYS\x01 k{n}  b \x02",
    "KEYS\x01k{n}\x02",
    "a\x01{n}\x02TAGS\x01A\x02a\x01{n}{n}\x02",
    "TAGS\x01{n}\x01b\x02",
]
ODD = [
    "",
    "\x02",
    "a",
    "a\x01",
    "\x01b\x02",
    "a\x01b\x02\x02",
    "b\x01{n}\x02KEYS\x01 k{n}  b \x02",
    "KEYT\x01k{n}\x02",
    "KEYS\x01k\x02{n}\x02",
    "KEYS\x01\x02",
    "KEYS\x02k{n}\x01",
    "UNIQ_KEX\x01{n:032X}\x02WAIT\x01true\x02TAGS\x01t{n}\x02KEYS\x01k{n} {n}\x02a\x01{n}\x02longer name\x01ü{n}\x02",
    "XNIQ_KEY\x01{n:032X}\x02WAIT\x01true\x02TAGS\x01t{n}\x02KEYS\x01k{n} {n}\x02a\x01{n}\x02longer name\x01ü{n}\x02",
    "UNIQ_KEY\x01{n:032X}\x02WAIT\x01true\x02TAGS\x01t{n}\x02KEYS\x01k{n} {n}\x02a\x01{n}\x02longer nane\x01{n}",
]


@pytest.mark.parametrize("text", ALIKE)
@pytest.mark.parametrize("odd", [None, *ODD])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_rows_with_the_same_names_and_one_that_differs(text: str, odd: str | None, place: int) -> None:
    texts = [text.format(n=n) for n in (1, 22, 333, 4, 55, 6, 7)]
    if odd is not None:
        texts[place] = odd.format(n=9)
    assert_equal_to_row_decoder(b"".join(make(i, properties=t.encode()) for i, t in enumerate(texts)))


def test_rows_with_the_same_names_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Properties, "_cut", None)
    for text in ALIKE[:4]:
        data = b"".join(make(n, properties=text.format(n=n).encode()) for n in range(20))
        assert assert_equal_to_row_decoder(data) == 20


alike_rows = st.tuples(st.sampled_from(ALIKE), st.lists(st.one_of(st.none(), st.sampled_from(ODD)), max_size=4))


@pytest.mark.shows("option `columns`: its columns alone, decoded faster")
@settings(max_examples=300, deadline=None)
@given(alike_rows, st.randoms(use_true_random=False))
def test_rows_that_are_alike_in_part_decode_as_row_by_row(rows: tuple[str, list[str | None]], random: Random) -> None:
    text, others = rows
    texts = [text.format(n=random.randrange(10**6)) for _ in range(random.randrange(6))]
    for other in others:
        texts.insert(
            random.randrange(len(texts) + 1), (text if other is None else other).format(n=random.randrange(99))
        )
    assert_equal_to_row_decoder(b"".join(make(i, properties=t.encode()) for i, t in enumerate(texts)))


@given(st.lists(st.text(st.sampled_from("ab  "), max_size=7), max_size=9))
def test_keys_are_cut_at_blanks(texts: list[str]) -> None:
    found = split_keys(pa.array([*texts, None, " x"], pa.string())[:-1])
    assert found.to_pylist() == [*(text.split() for text in texts), []]


@pytest.mark.parametrize(
    "sizes", [[], [91], [91, 90], [91, 0], [-5, 91], [91, 3], [2**31 - 1], [91, 92, -(2**31), 91], [91] * 40 + [1, 91]]
)
@pytest.mark.parametrize("cut", [0, 2, 5])
def test_sizes_that_cannot_be_are_errors(sizes: list[int], cut: int) -> None:
    data = bytearray()
    for size in sizes:
        data += size.to_bytes(4, "big", signed=True) + bytes(max(0, min(size, 200) - 4))
    data = data[: max(0, len(data) - cut)]
    possible = all(size >= 91 for size in sizes) and sum(sizes) == len(data)
    # What lies behind the span is no part of it.
    buffer = bytes(data) + make(0) * 3
    if possible:
        assert len(record_places.find_records(buffer, (0, len(data)))) == len(sizes)
    else:
        with pytest.raises(RecordError, match=r"fewer than any record has|is cut off"):
            record_places.find_records(buffer, (0, len(data)))


tidy_properties = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "longer name"]),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8),
    max_size=5,
).map(lambda d: "\x02".join(f"{k}\x01{v}" for k, v in d.items()).encode())
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


@st.composite
def any_record(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    sys_flag = 0
    if draw(st.booleans()):
        body, sys_flag = compression.deflate(body, draw(st.sampled_from(["zlib", "lz4", "zstd"])))
    return record.encode(
        topic=draw(st.sampled_from([b"T", b"%RETRY%group", b"t" * 127, b"t" * 200])),
        queue_id=draw(st.integers(0, 1 << 30)),
        queue_offset=draw(st.integers(0, 1 << 60)),
        position=draw(st.integers(0, 1 << 60)),
        body=body,
        properties=draw(st.one_of(odd_properties, tidy_properties)),
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        sys_flag=sys_flag,
        born_time_ms=draw(st.integers(0, 1 << 42)),
        born_host=draw(hosts),
        store_time_ms=draw(st.integers(0, 1 << 42)),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 100)),
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(any_record(), max_size=6))
def test_any_records_decode_as_row_by_row(made: list[bytes]) -> None:
    assert_equal_to_row_decoder(b"".join(made))


@pytest.mark.shows("fuzzed frame and record decoders")
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 150))
def test_any_bytes_end_in_rows_or_a_record_error(noise: bytes, where: int) -> None:
    data = bytearray(make(0) + make(1))
    data[where : where + len(noise)] = noise
    try:
        decoded = records.decode(data)
    except RecordError:
        return
    decoded.validate(full=True)
    expected = [r for r in record.decode_all(data, check_crc=False) if r.queue_offset >= 0]
    assert decoded.column("queueOffset").to_pylist() == [r.queue_offset for r in expected]
    if not any(r.sys_flag & sysflags.COMPRESSED for r in expected):
        assert decoded.column("body").to_pylist() == [r.body for r in expected]


COMPRESSED_GARBAGE = {"body": b"no zlib at all" * 1000, "sys_flag": sysflags.COMPRESSED}


def test_without_the_body_s_column_no_body_is_looked_at() -> None:
    stored = record.encode(
        topic=b"T", queue_id=0, queue_offset=7, position=0, properties=b"TAGS\x01A\x02", **COMPRESSED_GARBAGE
    )
    others = [name for name in COLUMNS if name != "body"]
    batch = records.decode(stored * 50, columns=others)
    assert batch.num_rows == 50
    # Neither copied nor kept alive: the rows hold less than one body.
    assert batch.nbytes < 50 * 1000
    assert batch.get_total_buffer_size() < 50 * 2000
    with pytest.raises(RecordError):
        records.decode(stored, columns=["body"])


def test_a_column_that_is_not_wanted_is_not_decoded() -> None:
    # Properties that are no UTF-8 break the columns made of them alone.
    stored = record.encode(
        topic=b"T", queue_id=0, queue_offset=7, position=0, body=b"b", properties=b"TAGS\x01\xff\x02"
    )
    batch = records.decode(stored, columns=["queueOffset", "body", "storeTime"])
    assert batch.column("queueOffset").to_pylist() == [7]
    assert batch.column("body").to_pylist() == [b"b"]


@pytest.mark.shows('mended: compressed bodies inflate whole, "Cannot convert ChunkedArray" (515 x 4 MiB)')
@pytest.mark.parametrize("slow", [False, True])
def test_bodies_that_inflate_to_much_make_several_batches(slow: bool) -> None:
    packed, flags = compression.deflate(bytes(4000))
    twice = b"a\x011\x02a\x012\x02" if slow else b""
    data = b"".join(
        record.encode(
            topic=b"T",
            queue_id=0,
            queue_offset=i,
            position=i,
            body=b"plain" if i % 4 == 3 else packed,
            sys_flag=0 if i % 4 == 3 else flags,
            properties=twice,
        )
        for i in range(40)
    )
    found = list(records.batches(data, DecodeRequest(["queueOffset", "body", "properties"], inflated_bytes_max=10_000)))
    assert all(sum(map(len, b.column(1).to_pylist())) <= 10_000 for b in found)
    assert len(found) == 15
    rows = [row for b in found for row in rows_of(b)]
    assert [row["queueOffset"] for row in rows] == list(range(40))
    assert all(row["body"] == (b"plain" if i % 4 == 3 else bytes(4000)) for i, row in enumerate(rows))
    with pytest.raises(RecordError, match="several batches"):
        records.decode(data, columns=["body"], inflated_bytes_max=10_000)


@pytest.mark.shows("mended: born time 2^63-1")
@pytest.mark.parametrize("properties", [b"", b"a\x011\x02a\x012\x02"], ids=["quick", "slow"])
@pytest.mark.parametrize(
    ("stated", "year"), [((1 << 63) - 1, 9999), (10**17, 9999), (-(1 << 63), 1), (-1000, 1969)], ids=str
)
def test_any_time_that_a_producer_states_can_be_shown(stated: int, year: int, properties: bytes) -> None:
    data = record.encode(
        topic=b"T", queue_id=0, queue_offset=0, position=0, body=b"x", born_time_ms=stated, properties=properties
    )
    [row] = records.decode(data, columns=["bornTime", "properties"]).select(["bornTime"]).to_pylist()
    assert row["bornTime"].year == year
    # As Spark's `collect` does, in the zone of the machine.
    datetime.datetime.fromtimestamp(row["bornTime"].timestamp())
