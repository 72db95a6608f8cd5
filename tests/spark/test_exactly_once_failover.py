"""Exactly once across failovers: the rows of docs/exactly_once.md for brokers with replicas.

Each kill falls at a named moment; another replica is elected by itself. As in test_exactly_once, Spark's part is played
here, the writers and all brokers are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.spark.test_exactly_once import COMMIT_BROKER, TARGET_BROKER, Once, Query

from rocketspark.errors import RocketSparkError
from rocketspark.spark.exactly_once import failpoints
from rocketspark.testing import Cluster, run_cluster


@pytest.fixture(scope="module")
def pairs() -> Iterator[Cluster]:
    """Two brokers of two replicas each."""
    with run_cluster(brokers=2, replicas=2) as cluster:
        yield cluster


def in_sync(cluster: Cluster, broker: str) -> None:
    cluster.start_again(broker)
    cluster.wait_in_sync(2, broker)


def run_through(query: Query, moment: str, act: Callable[[], object]) -> None:
    """Batches 0 to 2; in 1 something happens. Spark would run a batch again if its query ended; so does this."""
    query.run(0)
    with Once(moment, act):
        for left in range(3, -1, -1):
            try:
                query.run(1)
                break
            except RocketSparkError:
                if not left:
                    raise
    query.run(2)
    query.expect(0, 1, 2)


@pytest.mark.parametrize("broker", [COMMIT_BROKER, TARGET_BROKER])
@pytest.mark.parametrize("moment", failpoints.MOMENTS)
def test_a_master_is_killed(pairs: Cluster, broker: str, moment: str) -> None:
    """The rows' master or the one of the records; the other replica goes on."""
    query = Query(pairs)
    dead: list[str] = []
    run_through(query, moment, lambda: dead.append(pairs.kill_master(broker)))
    assert pairs.master(broker) not in dead
    in_sync(pairs, broker)
    query.expect(0, 1, 2)
