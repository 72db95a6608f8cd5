"""Items of a batch that are sent anew: the same messages with other unique ids. Rows that RocketMQ does not take are
found among those that it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rocketspark.protocol.message import batch, properties
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.write.batch_encoding import BatchItems, encode, refused_rows
from rocketspark.spark.write.rows import CheckedRows


def decoded(items: BatchItems) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    for item in batch.decode(bytes(items.data)):
        yield item.flag, item.body, properties.decode(item.properties.decode())


@pytest.mark.parametrize("tags", [None, ["a", "ü", None, "d", "e"]])
def test_all_but_the_ids_stays(tags: list[Any] | None) -> None:
    ids = UniqueIdBlocks()
    columns = {"body": pa.array([b"x" * n for n in (3, 1, 40, 2, 7)])}
    if tags is not None:
        columns |= {"tag": pa.array(tags), "flag": pa.array([0, 1, 2, 3, 4])}
    items = encode(CheckedRows(pa.record_batch(columns), "t"), ids)
    anew = items.with_new_ids(ids, 1, 4)
    before, after = list(decoded(items)), list(decoded(anew))
    old = {pairs.pop("UNIQ_KEY") for _, _, pairs in before}
    new = {pairs.pop("UNIQ_KEY") for _, _, pairs in after}
    assert after == before[1:4]
    assert (len(old), len(new), old & new) == (5, 3, set())
    assert anew.outgoing(1, "t").body == b"x" * 40


def test_each_bad_row_is_found_and_says_why() -> None:
    count = 100
    bodies: list[bytes | None] = [b"x"] * count
    bodies[3], bodies[50] = b"", None
    tags = ["t"] * count
    tags[51] = "a\x01b"
    keys = [["k"]] * count
    keys[99] = ["two words"]
    properties = [[("name", "value")]] * count
    properties[7] = [("name", "x" * 40_000)]
    batch = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "tag": pa.array(tags),
            "keys": pa.array(keys, pa.list_(pa.string())),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )
    found = refused_rows(batch, "T")
    assert sorted(found) == [3, 7, 50, 51, 99]
    assert "0x01" in found[51]
    assert "blank" in found[99]
    assert refused_rows(batch.slice(8, 40), "T") == {}
    assert refused_rows(batch.slice(0, 0), "T") == {}
