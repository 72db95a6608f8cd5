"""Which batch a message says it is of: what others wrote there is none."""

from __future__ import annotations

import pytest

from rocketspark.spark.exactly_once.commit_topic import batch_of


@pytest.mark.parametrize(
    ("key", "batch"),
    [
        ("query/7/0/12", 7),
        ("a/b/7/0/12", 7),
        ("query/7/0", None),
        ("", None),
        ("q/\u00b2/0/0", None),
        (f"q/{'9' * 5000}/0/0", None),
        ("q/-1/0/0", None),
        ("q/ 7/0/0", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_batch_of_a_key(key: str, batch: int | None) -> None:
    assert batch_of(key) == batch
