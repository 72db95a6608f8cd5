"""Items of a batch that are sent anew: the same messages with other unique ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rocketspark.protocol.message import batch, properties
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.write.batch_encoding import BatchItems, encode
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
