"""Rows that RocketMQ does not take, found among those that it does."""

from __future__ import annotations

import pyarrow as pa

from rocketspark.spark.write.refused_rows import refused_rows


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
