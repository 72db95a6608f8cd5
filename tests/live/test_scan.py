"""A topic as a LazyFrame: the rows of each query, and what was read for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rocketspark import Producer
from rocketspark.errors import RouteNotFound
from rocketspark.tables import scan
from rocketspark.testing import run_cluster


@pytest.mark.shows("Polars: scan_rocketmq with columns, rows, tags and times pushed down")
def test_a_query_reads_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    read = scan.read_batches

    def noted(namesrv: str, topic: str, **how: Any) -> Any:
        asked.append(how)
        return read(namesrv, topic, **how)

    with run_cluster() as cluster, Producer(cluster.namesrv) as producer:
        for number in range(40):
            producer.send("orders", b"%d" % number, tag="ab"[number % 2])
        first = scan.scan_rocketmq(cluster.namesrv, "orders")
        monkeypatch.setattr(scan, "read_batches", noted)
        assert first.select(pl.len()).collect().item() == 40
        assert first.collect().shape == (40, 18)
        taken = first.filter(pl.col("tag") == "a").select(pl.col("body").cast(pl.String).cast(pl.Int64)).collect()
        assert sorted(taken["body"]) == list(range(0, 40, 2))
        assert first.head(7).select("queueOffset").collect().shape == (7, 1)
        late = datetime.now(UTC) + timedelta(hours=1)
        assert first.filter(pl.col("storeTime") > late).collect().shape == (0, 18)
        assert first.filter(pl.col("storeTime").is_between(late, late - timedelta(hours=2))).collect().is_empty()
        grouped = first.group_by("tag").len().sort("tag").collect(engine="streaming")
        assert grouped.rows() == [("a", 20), ("b", 20)]
        # A filter behind `head` has only the first rows, not as many as pass it.
        odd = pl.col("queueOffset") % 2 == 1
        ahead = first.select("tag", "queueOffset").collect().head(9)
        for filtered in (pl.col("tag") == "b", odd & pl.col("tag").is_in(["a", "b"])):
            assert first.head(9).filter(filtered).select("tag", "queueOffset").collect().equals(ahead.filter(filtered))
            assert first.filter(filtered).head(9).select(pl.len()).collect().item() == 9
        # What comes later is there the next time.
        producer.send("orders", b"40", tag="a")
        assert first.filter(pl.col("tag").is_in(["a", "c"])).select(pl.len()).collect().item() == 21
        # Brokers trim the tags that they are asked for.
        for tag in ("\tx", "x\n", "\u2003x", "x\xa0"):
            producer.send("blanks", b"x", tag=tag)
            found = scan.scan_rocketmq(cluster.namesrv, "blanks").filter(pl.col("tag") == tag).collect()
            assert found["tag"].to_list() == [tag]
        with pytest.raises(RouteNotFound):
            scan.scan_rocketmq(cluster.namesrv, "nowhere")
    assert [(how.get("columns"), how.get("tags"), "start" in how) for how in asked[2:5]] == [
        (["tag", "body"], "a", False),
        (["queueOffset"], None, False),
        (first.collect_schema().names(), None, True),
    ]
