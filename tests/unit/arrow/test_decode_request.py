"""Rows chosen while they are decoded equal the messages that `Wanted.takes` takes, whatever the records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.arrow import records
from rocketspark.arrow.decode_request import INT64_MAX, INT64_MIN, RowFilter
from rocketspark.filters import sql92
from rocketspark.protocol.message import batch, record, sysflags

pytestmark = pytest.mark.shows("`tags`, `sql`, `key`, times: the same rows whatever a broker filters")

EXPRESSIONS = ["n > 5", "TAGS = 'Aa' OR n IS NULL", "KEYS CONTAINS 'k1'", "NOT (n = 3)", "n BETWEEN 2 AND 8"]


def make(number: int, stored: bytes, **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "topic": b"T",
        "queue_id": 1,
        "queue_offset": number,
        "position": number * 100,
        "store_time_ms": 1_700_000_000_000 + number,
        "body": b"b%d" % number,
        "properties": stored,
    }
    return record.encode(**values | fields)


PAIRS = st.tuples(
    st.sampled_from(["TAGS", "KEYS", "n", "uni"]),
    st.sampled_from(["Aa", "BB", "C", "k1", "k1 k2", " k1", "k11", "k1\tk2", "5", "7", "x", "中 文", ""]),
)
STORED = st.lists(PAIRS, max_size=5).map(lambda pairs: "".join(f"{n}\x01{v}\x02" for n, v in pairs).encode())
BROKEN = st.sampled_from([b"TAGS\x01\xff\x02n\x017\x02", b"KEYS\x01k1", b"TAGS\x01Aa\x02\x02", b"\x02"])


@st.composite
def wanted(draw: st.DrawFn) -> RowFilter:
    sql = draw(st.none() | st.sampled_from(EXPRESSIONS))
    compiled = sql92.compile(sql) if sql else None
    first, last = sorted(draw(st.tuples(st.integers(-1, 12), st.integers(-1, 12))))
    edges = draw(st.sampled_from([(0, 0), (1, 0), (0, -1), (999, -999)]))
    span = (1_700_000_000_000 + first) * 1000 + edges[0], (1_700_000_000_000 + last) * 1000 + edges[1]
    return RowFilter(
        draw(st.none() | st.frozensets(st.sampled_from(["Aa", "BB", "5", "\ufffd"]))),
        draw(st.none() | st.sampled_from(["k1", "k2", "k", "文", "Aa"])),
        compiled.accepts_record if compiled else None,
        compiled.accepts if compiled else None,
        draw(st.sampled_from([(INT64_MIN, INT64_MAX), span])),
    )


@given(st.lists(STORED | BROKEN, max_size=12), wanted(), st.booleans())
def test_rows_are_the_messages_it_takes(stored: list[bytes], wanted: RowFilter, v6: bool) -> None:
    host = {"born_host": bytes(20), "sys_flag": sysflags.BORN_HOST_V6} if v6 else {}
    data = b"".join(make(i, text, **host) for i, text in enumerate(stored))
    expected = [m.queue_offset for m in record.decode_messages(data, "b") if wanted.takes(m)]
    for columns in (["queueOffset"], ["queueOffset", "properties", "tag", "keys", "body"]):
        decoded = records.decode(data, columns=columns, broker="b", wanted=wanted)
        assert decoded.column(0).to_pylist() == expected


def test_messages_of_inner_batches_are_asked_one_by_one() -> None:
    items = [
        batch.BatchItem(0, b"%d" % i, b"TAGS\x01%b\x02KEYS\x01k%d\x02" % (b"AB"[i % 2 :][:1], i)) for i in range(6)
    ]
    stored = make(
        10,
        b"INNER_NUM\x016\x02INNER_BASE\x0110\x02",
        body=batch.encode(items),
        sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
    )
    compiled = sql92.compile("TAGS = 'B'")
    for wanted in (
        RowFilter(frozenset("B")),
        RowFilter(accepts_record=compiled.accepts_record, accepts=compiled.accepts),
    ):
        assert records.decode(stored, columns=["body"], wanted=wanted).column(0).to_pylist() == [b"1", b"3", b"5"]
    assert records.decode(stored, columns=["body"], wanted=RowFilter(key="k4")).column(0).to_pylist() == [b"4"]


def test_no_tag_wants_no_row() -> None:
    data = make(0, b"TAGS\x01A\x02") + make(1, b"")
    assert records.decode(data, wanted=RowFilter(frozenset())).num_rows == 0
    assert records.decode(data, wanted=RowFilter()).num_rows == 2
