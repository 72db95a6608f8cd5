"""Exactly once across failovers: the rows of docs/develop/exactly_once.md for brokers with replicas.

Each kill falls at a named moment; another replica is elected by itself. As in test_exactly_once, Spark's part is played
here, the writers and all brokers are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.one_pair import OnePair
from tests.spark.test_exactly_once import COMMIT_BROKER, TARGET_BROKER, Query, pieces, run_through

from rocketspark.client import SendStatus
from rocketspark.client.results import SendResult
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.exactly_once import failpoints
from rocketspark.spark.exactly_once.commit_topic import safely_stored
from rocketspark.testing import Cluster, run_cluster
from rocketspark.testing.replicas import Replicas

pytestmark = pytest.mark.shows(
    "exactly once while the master (any of ten phases, of rows and of records), a slave or the controller is killed",
    "the table of kills with batches and ranges, failovers too",
)

# Used by all tests here as well.
__all__ = ["pieces"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers of two replicas each."""
    with run_cluster(brokers=2, replicas=2) as cluster:
        yield cluster


@pytest.fixture
def pairs(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whole again afterwards, also if the test fails between a kill and its end."""
    yield cluster
    for broker in (COMMIT_BROKER, TARGET_BROKER):
        in_sync(cluster, broker)


def in_sync(cluster: Cluster, broker: str) -> None:
    cluster.start_again(broker)
    cluster.wait_in_sync(2, broker)


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


@pytest.mark.parametrize(
    ("broker", "moment"),
    [(TARGET_BROKER, "halves under way"), (COMMIT_BROKER, "record sent"), (TARGET_BROKER, "ends sent")],
)
def test_a_slave_is_killed(pairs: Cluster, broker: str, moment: str) -> None:
    """It leaves the in-sync set; then the master goes on alone."""
    query = Query(pairs)

    async def kill(replicas: Replicas) -> None:
        number = next(n for n, one in replicas._running.items() if not one.role.is_master)
        await replicas._running.pop(number).kill()

    run_through(query, moment, lambda: pairs._of(broker, kill))
    in_sync(pairs, broker)
    query.expect(0, 1, 2)


@pytest.mark.parametrize(
    "moment",
    # A controller that starts again waits 10 s before it replaces a master.
    ["record sent", *(pytest.param(each, marks=pytest.mark.soak) for each in ("halves under way", "some ends"))],
)
def test_the_controller_is_killed(tmp_path: Path, moment: str) -> None:
    """Masters stay masters; nothing is noticed."""
    with OnePair(tmp_path, TARGET_BROKER) as pair:
        query = Query(pair)
        run_through(query, moment, pair.stop_controller)
        pair.start_controller()
        pair.do(pair.replicas.wait_in_sync(2))
        pair.do(pair.replicas.kill_master())
        pair.do(pair.replicas.wait_in_sync(1))
        query.expect(0, 1, 2)


@pytest.mark.parametrize("status", list(SendStatus))
def test_what_is_stored_but_not_safely_counts_as_not_sent(status: SendStatus) -> None:
    """A new master need not have it: no manifest and no later record may build on it."""
    sent = SendResult(status, "id", "offset id", MessageQueue("T", "broker-a", 0), 7)
    if status is SendStatus.SEND_OK:
        assert safely_stored(sent) is sent
        return
    with pytest.raises(RocketSparkError, match=f"broker 'broker-a' answered {status.name}") as failed:
        safely_stored(sent)
    assert failed.value.retriable
