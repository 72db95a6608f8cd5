"""The body of a batch that is made of columns is byte for byte what its messages make one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.protocol.message import batch, batch_columns
from rocketspark.protocol.message.message_ids import UniqueIdBlocks, joined_ids

FEW = st.binary(max_size=3)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[bytes], list[batch_columns.Piece]]:
    count = draw(st.integers(0, 30))
    some = st.lists(st.binary(min_size=1, max_size=40), min_size=count, max_size=count)
    width = draw(st.sampled_from([9, batch_columns.ALIKE_BYTES_MAX, batch_columns.ALIKE_BYTES_MAX + 1]))
    bodies = draw(some | st.lists(st.binary(min_size=width, max_size=width), min_size=count, max_size=count))
    return bodies, draw(st.lists(FEW | st.lists(FEW, min_size=count, max_size=count), max_size=4))


@given(made=columns(), first=st.integers(0, 1 << 47) | st.integers(0xFFFF_FFF0, 0xFFFF_FFFF))
def test_columns_make_what_messages_make(made: tuple[list[bytes], list[batch_columns.Piece]], first: int) -> None:
    bodies, pieces = made
    prefix, _ = UniqueIdBlocks().take(1)
    ids = [f"{prefix}{first + row:012X}" for row in range(len(bodies))]
    stored = [
        batch_columns.first_properties(ids[row]) + b"".join([p if isinstance(p, bytes) else p[row] for p in pieces])
        for row in range(len(bodies))
    ]
    wanted = b"".join([batch.encode_item(0, body, more) for body, more in zip(bodies, stored, strict=True)])
    assert batch_columns.encode(bodies, pieces, prefix, first) == wanted
    assert joined_ids(prefix, first, len(ids)) == ",".join(ids)
    assert all(more.startswith(b"UNIQ_KEY\x01") for more in stored)
    assert {len(batch_columns.first_properties(each)) for each in ids} <= {batch_columns.FIRST_BYTES}


@pytest.mark.parametrize("width", [1, 128])
def test_flags_stand_in_the_heads(width: int) -> None:
    flags = np.array([-1, 0, 1 << 30], np.int32)
    head, middle = batch_columns.frames("A" * 20, 7, np.full(3, width), np.zeros(3, np.int64), flags)
    rows = [bytes(h) + b"b" * width + bytes(m) for h, m in zip(head, middle, strict=True)]
    assert [item.flag for item in batch.decode(b"".join(rows))] == flags.tolist()
