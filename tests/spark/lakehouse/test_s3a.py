"""Places on s3a://, on Spark 4.0: looked at first, keys seen nowhere, tables whole after faults and a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.lakehouse.drivers import driver, settings
from tests.spark.lakehouse.kills_on_s3a import KillsOnS3a
from tests.spark.lakehouse.s3 import ACCESS_KEY, PASS, SECRET_KEY, STALL, Fault, Seen, s3_store, status
from tests.support.ports import free_ports

pytestmark = pytest.mark.shows(
    "object stores: jars of s3a:// without the SDK's bundle, endpoint, region and keys from the environment "
    "or settings",
    "Delta and Iceberg on s3a:// behind a store that refuses, cuts and errs by plan, driver killed in the "
    "middle of a request",
)

KINDS = {"/refused": status(403), "/broken": status(500), "/busy": status(503), "/silent": STALL}


def planned(seen: Seen) -> Fault:
    """What happens to a request by its bucket."""
    return next((fault for start, fault in KINDS.items() if seen.path.startswith(start)), PASS)


SAYS = {
    "lake/new": "",
    "nothere/x": "there is no such bucket",
    "refused/x": "the store refuses these credentials (403)",
    "broken/x": "errors of its own (5xx)",
    "busy/x": "errors of its own (5xx)",
    "silent/x": "did not answer within 8 s",
    "closed/x": "cannot be reached: check fs.s3a.endpoint",
}


@pytest.mark.shows(
    "a bucket that is not there, refuses, errs, hangs, or an endpoint where nobody listens: one line before the query",
    "keys in no plan, log, event log, error or command line of the JVM",
)
@pytest.mark.official
def test_a_place_is_looked_at_first_and_keys_are_seen_nowhere(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    with s3_store("lake") as store:
        store.proxy.plan = planned
        conf = settings(store, tmp_path) | {
            "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
            "spark.hadoop.fs.s3a.bucket.closed.endpoint": f"http://127.0.0.1:{free_ports()}",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        looks = [
            {
                "do": "look",
                "place": f"s3a://{place}",
                "writes": place == "lake/new",
                "limit_s": 8 if "silent" in place else 60,
            }
            for place in SAYS
        ]
        steps = [*looks, {"do": "write", "place": "s3://lake/table"}, {"do": "write", "place": "s3a://refused/table"}]
        spec = {"conf": conf, "places": ["s3a://lake/table"], "steps": steps, "log": "INFO"}
        with driver(spec, tmp_path / "log", {}) as job:
            job.until("ready")
            for place, says in SAYS.items():
                found = job.until("place")
                assert found["place"] == f"s3a://{place}"
                assert (says in found["said"]) if says else found["said"] == "", found
                assert "\n" not in found["said"]
                assert found["seconds"] < 60, found
            assert job.until("rows") == {"rows": 50, "file": "<html>grün</html>"}
            assert job.until("command")["said"] == ""
            refused = job.until("command")["said"]
            assert "403" in refused or "Forbidden" in refused or "AccessDenied" in refused
            assert "\n" not in refused
            assert job.process.wait(60) == 0
        kept = [path for path in [tmp_path / "log", *events.rglob("*")] if path.is_file()]
        assert any(path.stat().st_size > 1000 for path in kept[1:])
        for path in kept:
            text = path.read_text(errors="replace")
            assert SECRET_KEY not in text, path
            assert ACCESS_KEY not in text, path
        assert any(seen.path.startswith("/lake/table/_delta_log/") for seen in store.proxy.requests)


@pytest.mark.official
def test_tables_on_s3a_hold_each_message_once_after_faults_and_a_kill(tmp_path: Path) -> None:
    lines: list[str] = []
    run = KillsOnS3a(tmp_path, seed=16, say=lines.append)
    run.run(kills=1)
    assert run.killed == 1
    assert set(run.faults) >= {"cut", "refuse", "500", "503"}, run.faults
    printed = (tmp_path / "driver.log").read_text(errors="replace")
    assert SECRET_KEY not in printed
    assert ACCESS_KEY not in printed
