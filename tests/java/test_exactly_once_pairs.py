"""Exactly once on a pair of Java brokers, and on mixed pairs, whose master dies in the midst: each row is there once.

Spark's part is played as in tests/spark/test_exactly_once.py; a pair keeps both the rows and the commit records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_exactly_once import PARTITIONS, Once, Query, pieces, quick_drain
from tests.support.failovers import ReplicaSet, wait_for_topics

from rocketspark.admin.operations import Admin
from rocketspark.errors import RocketSparkError
from rocketspark.spark.exactly_once import failpoints

pytestmark = pytest.mark.xdist_group("jvm")

# Used by all tests here as well.
__all__ = ["pieces", "quick_drain"]

PAIRS = [*(pytest.param(each, "official", marks=pytest.mark.soak) for each in ("JJ", "JP")), ("PJ", "ours")]
# Once among the half messages and once among the ends, so that each of the two dies; the others in `make soak`.
FEW = ("halves under way", "some ends")
TRIES = 8


class PairQuery(Query):
    """A query whose topic lies on the pair."""

    async def _make_topic(self) -> None:
        with Admin(self.servers.namesrv) as operations:
            operations.create_topic(self.name, queue_count=PARTITIONS)
        # Java's slaves hear of it in up to 10 s; who is elected before makes it anew, with other queues.
        wait_for_topics(self.servers, self.name)  # type: ignore[arg-type]


def run_again(query: Query, batch: int) -> int:
    """Run a batch as Spark does, again if the query ended; returns how often it had to."""
    for number in range(TRIES):
        try:
            query.run(batch)
            return number
        except RocketSparkError:
            if number == TRIES - 1:
                raise
    raise AssertionError


@pytest.mark.shows("exactly once on a Java pair, JP and PJ: the master killed among half messages, records and ends")
@pytest.mark.parametrize("moments", [FEW, pytest.param(failpoints.MOMENTS, marks=pytest.mark.soak)], ids=["few", "all"])
@pytest.mark.parametrize(("kinds", "controller"), PAIRS)
def test_the_master_dies_in_the_midst(
    tmp_path: Path, kinds: str, controller: Any, moments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ReplicaSet(tmp_path, kinds, controller)
    try:
        query = PairQuery(pair)  # type: ignore[arg-type]
        query.run(0)
        for batch, moment in enumerate(moments, start=1):
            master = pair.wait_in_sync()
            dead: list[Any] = []

            def kill(master: Any = master, dead: list[Any] = dead) -> None:
                master.kill()
                dead.append(master)

            with Once(moment, kill):
                again = run_again(query, batch)
            with capsys.disabled():
                kind = kinds[pair.members.index(master)]
                print(f"{kinds}: the master ({kind}) killed at {moment!r}, run {again} times again", flush=True)
            assert dead == [master], moment
            master.start()
        pair.wait_in_sync()
        run_again(query, len(moments) + 1)
        query.expect(*range(len(moments) + 2))
    finally:
        pair.close()
