"""Iceberg archives with their catalog in PostgreSQL: it restarts, two writers, tables that others changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lakehouse.drivers import JobDriver, driver, local_settings
from tests.support import postgres
from tests.support.ports import free_ports

from rocketspark import Message, Producer
from rocketspark.testing import Cluster, run_cluster

pytestmark = [
    pytest.mark.official,
    pytest.mark.shows(
        "Iceberg's catalog in SQLite; in PostgreSQL: archive, restore, audit, and a server that restarts "
        "between commits and in the midst of one",
        "two processes that write an Iceberg archive: both at its begin, one that idled while its number "
        "expired, one that stood between staging and publishing while all commits expired, two that began "
        "from the rows at once, `write.wap.enabled` switched off, a table rolled back meanwhile",
    ),
]

PASSWORD = "known to nobody"
TAKEN = "ConfigError: another process writes the archive "


class Scene:
    """A cluster, a PostgreSQL server that is a catalog, and two drivers on Spark 4.0."""

    def __init__(self, cluster: Cluster, database: postgres.Server, job: JobDriver, other: JobDriver) -> None:
        self.cluster, self.database, self.job, self.other = cluster, database, job, other

    def send(self, topic: str, count: int) -> None:
        with Producer(self.cluster.namesrv, group="tables") as producer:
            for n in range(count):
                producer.send(Message(topic=topic, body=str(n).encode()))

    def step(self, do: str, topic: str, **more: Any) -> dict[str, Any]:
        catalog = f"jdbc:postgresql://127.0.0.1:{self.database.port}/postgres"
        step = {"do": do, "namesrv": self.cluster.namesrv, "format": "iceberg", "catalog": catalog}
        return step | {"table": self.table(topic), "topics": [topic], "topic": topic} | more

    @staticmethod
    def table(topic: str) -> str:
        return f"lake.{topic.replace('-', '_')}"

    def paused(self, topic: str, at: str, **more: Any) -> None:
        """Have the first driver begin to archive, and wait until it is about to call a method of its table."""
        self.job.tell(json.dumps(self.step("archive", topic, pause=at, **more)))
        self.job.until("paused")

    def go_on(self) -> dict[str, Any]:
        """Have it go on, and return what came of it."""
        self.job.tell("go on")
        return self.job.until("told")["told"]

    def whole(self, topic: str, rows: int, **where: Any) -> None:
        """Check that the table has so many rows, each once."""
        found = self.job.ask(**self.step("figures", topic, **where))
        assert (found.get("rows"), found.get("places")) == (rows, rows), found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("writers")
    keys = {"PGUSER": postgres.USER, "PGPASSWORD": PASSWORD}
    spec = {"conf": local_settings(), "places": []}
    with (
        postgres.running(free_ports()) as database,
        run_cluster(store=folder / "store") as cluster,
        driver(spec, folder / "log", keys, "archive_job") as job,
        driver(spec, folder / "other-log", keys, "archive_job") as other,
    ):
        job.until("ready")
        other.until("ready")
        yield Scene(cluster, database, job, other)
        assert PASSWORD not in (folder / "log").read_text(errors="replace")


@pytest.mark.soak
def test_an_archive_waits_for_a_catalog_that_restarts(scene: Scene, tmp_path: Path) -> None:
    topic, where = "restarts", {"place": str(tmp_path / "lake")}
    away = f"the catalog jdbc:postgresql://127.0.0.1:{scene.database.port}/postgres does not answer: see that the"
    scene.send(topic, 20)
    # Once between two commits, once in the midst of one.
    scene.job.tell(json.dumps(scene.step("archive", topic, stop_at=50, **where)))
    assert scene.job.until("rows") == {"rows": 20}
    scene.database.stop()
    scene.send(topic, 30)
    assert scene.job.until("says")["says"].startswith(away)
    scene.database.start()
    done = scene.job.until("told")["told"]
    assert (done.get("rows"), done.get("total_rows")) == (50, 50), done
    scene.send(topic, 10)
    scene.paused(topic, "_publish", **where)
    scene.database.stop()
    scene.job.tell("go on")
    assert scene.job.until("says")["says"].startswith(away)
    scene.database.start()
    done = scene.job.until("told")["told"]
    assert (done.get("rows"), done.get("total_rows")) == (10, 60), done
    scene.whole(topic, 60, **where)

    state = str(tmp_path / "state")
    sent = scene.job.ask(**scene.step("restore", topic, to=f"{topic}-again", state=state, **where))
    assert sent.get("rows") == 60, sent
    same = scene.job.ask(**scene.step("compare", f"{topic}-again", of=topic, table=scene.table(topic), **where))
    assert (same.get("ok"), same.get("other_messages")) == (True, 60), same

    # One that begins while it is away ends with a line, as it does without a broker.
    scene.database.stop()
    try:
        for do in ("archive", "figures"):
            assert scene.job.ask(**scene.step(do, topic, **where))["error"].startswith(f"DatabaseFailed: {away}")
    finally:
        scene.database.start()


def test_the_second_of_two_writers_ends_and_doubles_nothing(scene: Scene, tmp_path: Path) -> None:
    topic, where = "two-writers", {"place": str(tmp_path / "lake")}
    scene.send(topic, 10)
    scene.paused(topic, "_publish", **where)
    # Both begin the table: its first commit, without rows, is published by the other one.
    first = scene.other.ask(**scene.step("archive", topic, **where))
    assert (first.get("rows"), first.get("total_rows")) == (10, 10), first
    assert scene.go_on()["error"].startswith(TAKEN)
    scene.send(topic, 5)
    scene.paused(topic, "_publish", **where)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 5
    assert scene.go_on()["error"].startswith(TAKEN)
    scene.whole(topic, 15, **where)


@pytest.mark.soak
def test_a_writer_that_idled_while_its_number_expired_doubles_nothing(scene: Scene, tmp_path: Path) -> None:
    topic, where = "idle", {"place": str(tmp_path / "lake")}
    scene.send(topic, 10)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 10

    def expire() -> None:
        # All snapshots but the newest are forgotten, and their numbers with them.
        options = f"table => '{scene.table(topic)}', older_than => now(), retain_last => 1"
        expired = f"CALL rocketspark.system.expire_snapshots({options})"
        found = scene.other.ask(**scene.step("sql", topic, sql=expired, **where))
        assert isinstance(found, list), found

    scene.send(topic, 5)
    scene.paused(topic, "append", **where)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 5
    scene.send(topic, 5)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 5
    expire()
    assert scene.go_on()["error"].startswith(TAKEN)
    scene.whole(topic, 20, **where)

    # And where the newest snapshot that is left is of no archive's commit: one of merged files.
    scene.send(topic, 5)
    scene.paused(topic, "append", **where)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 5
    assert scene.other.ask(**scene.step("archive", topic, later=True, **where))["hours_compacted"] >= 1
    expire()
    assert scene.go_on()["error"].startswith(TAKEN)
    scene.send(topic, 5)
    goes_on = scene.job.ask(**scene.step("archive", topic, **where))
    assert (goes_on.get("rows"), goes_on.get("total_rows")) == (5, 30), goes_on
    scene.whole(topic, 30, **where)


@pytest.mark.soak
def test_staging_that_others_switched_off_is_set_again(scene: Scene, tmp_path: Path) -> None:
    topic, where = "switched-off", {"place": str(tmp_path / "lake")}
    scene.send(topic, 10)
    assert scene.job.ask(**scene.step("archive", topic, **where)).get("rows") == 10

    def sql(text: str) -> Any:
        return scene.job.ask(**scene.step("sql", topic, sql=text, **where))

    for change in ("SET TBLPROPERTIES ('write.wap.enabled'='false')", "UNSET TBLPROPERTIES ('write.wap.enabled')"):
        assert sql(f"ALTER TABLE rocketspark.{scene.table(topic)} {change}") == []
        scene.send(topic, 10)
        beaten = scene.job.ask(**scene.step("archive", topic, fault="beaten", **where))
        assert beaten["error"].startswith(TAKEN), beaten
        asked = f"SHOW TBLPROPERTIES rocketspark.{scene.table(topic)} ('write.wap.enabled')"
        assert sql(asked) == [{"key": "write.wap.enabled", "value": "true"}]
    scene.whole(topic, 30, **where)


@pytest.mark.soak
def test_rows_that_were_taken_back_meanwhile_are_archived_again(scene: Scene, tmp_path: Path) -> None:
    topic, where = "taken-back", {"place": str(tmp_path / "lake")}
    scene.send(topic, 10)
    assert scene.job.ask(**scene.step("archive", topic, **where)).get("rows") == 10
    snapshots = f"SELECT snapshot_id FROM rocketspark.{scene.table(topic)}.snapshots ORDER BY committed_at"
    first, *_ = scene.other.ask(**scene.step("sql", topic, sql=snapshots, **where))
    scene.send(topic, 5)
    scene.paused(topic, "append", **where)
    back = f"CALL rocketspark.system.rollback_to_snapshot('{scene.table(topic)}', {first['snapshot_id']})"
    assert isinstance(scene.other.ask(**scene.step("sql", topic, sql=back, **where)), list)
    error = scene.go_on()["error"]
    assert error.startswith("ConfigError: rows of the table ")
    assert "were taken back" in error
    again = scene.job.ask(**scene.step("archive", topic, **where))
    assert (again.get("rows"), again.get("total_rows")) == (15, 15), again
    scene.whole(topic, 15, **where)


@pytest.mark.shows("mended: an Iceberg archive passes rows over that a rollback took back as its commit was published")
@pytest.mark.soak
def test_rows_taken_back_just_before_a_commit_counts_come_before_its_own(scene: Scene, tmp_path: Path) -> None:
    topic, where = "taken-back-last", {"place": str(tmp_path / "lake")}
    for count in (10, 5):
        scene.send(topic, count)
        assert scene.job.ask(**scene.step("archive", topic, **where)).get("rows") == count
    snapshots = f"SELECT snapshot_id FROM rocketspark.{scene.table(topic)}.snapshots ORDER BY committed_at"
    _, second, *_ = scene.other.ask(**scene.step("sql", topic, sql=snapshots, **where))
    scene.send(topic, 3)
    scene.paused(topic, "_publish", **where)
    back = f"CALL rocketspark.system.rollback_to_snapshot('{scene.table(topic)}', {second['snapshot_id']})"
    assert isinstance(scene.other.ask(**scene.step("sql", topic, sql=back, **where)), list)
    done = scene.go_on()
    assert (done.get("rows"), done.get("total_rows")) == (8, 18), done
    scene.whole(topic, 18, **where)


@pytest.mark.soak
def test_a_writer_who_stands_while_all_commits_expire_doubles_nothing(scene: Scene, tmp_path: Path) -> None:
    topic, where = "all-expired", {"place": str(tmp_path / "lake")}

    def sql(text: str) -> Any:
        return scene.other.ask(**scene.step("sql", topic, sql=text, **where))

    def merge() -> str:
        """Have merged files count, so that no archive's commit is the newest; returns since when."""
        found = scene.other.ask(**scene.step("archive", topic, later=True, **where))
        assert found["hours_compacted"] >= 1, found
        newest, *_ = sql(f"SELECT string(max(made_current_at)) AS at FROM rocketspark.{scene.table(topic)}.history")
        return str(newest["at"])

    def expire(older: str) -> None:
        arguments = f"table => '{scene.table(topic)}', older_than => TIMESTAMP '{older}', retain_last => 1"
        found = sql(f"CALL rocketspark.system.expire_snapshots({arguments})")
        assert isinstance(found, list), found
        assert found[0]["deleted_manifest_lists_count"] > 0

    for _ in range(2):
        scene.send(topic, 10)
        assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 10
    # What the first has staged is newer than all that expires; the other one begins from the rows.
    merged = merge()
    scene.send(topic, 5)
    scene.paused(topic, "_publish", **where)
    expire(merged)
    again = scene.other.ask(**scene.step("archive", topic, **where))
    assert (again.get("rows"), again.get("total_rows")) == (5, 25), again
    assert scene.go_on()["error"].startswith(TAKEN)
    scene.whole(topic, 25, **where)

    # Both began from the rows, before either staged.
    scene.send(topic, 10)
    assert scene.other.ask(**scene.step("archive", topic, **where)).get("rows") == 10
    expire(merge())
    scene.send(topic, 5)
    scene.paused(topic, "append", **where)
    scene.other.tell(json.dumps(scene.step("archive", topic, pause="_publish", **where)))
    scene.other.until("paused")
    error = scene.go_on()["error"]
    assert error.startswith("ConfigError: the table ")
    assert "has staged commits of another number: see that no other process writes it, then CALL" in error
    scene.other.tell("go on")
    done = scene.other.until("told")["told"]
    assert (done.get("rows"), done.get("total_rows")) == (5, 40), done
    scene.whole(topic, 40, **where)
    scene.send(topic, 3)
    assert scene.job.ask(**scene.step("archive", topic, **where)).get("total_rows") == 43
    scene.whole(topic, 43, **where)
