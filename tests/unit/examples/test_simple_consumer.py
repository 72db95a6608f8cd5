"""The workers of examples/simple_consumer: every job is done, also those of the one that dies."""

from __future__ import annotations

from examples.simple_consumer import run

from rocketspark.testing.cluster import run_cluster


def test_every_job_is_done() -> None:
    with run_cluster() as cluster:
        done = run.run(cluster.namesrv, jobs=30, workers=4)
    assert set(done) == {b"job %d" % n for n in range(30)}
