"""archive, restore and audit of Delta and Iceberg tables, on Spark 4.0: each message once, whatever ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lakehouse.drivers import JobDriver, driver, local_settings, settings
from tests.spark.lakehouse.fault_plan import sometimes
from tests.spark.lakehouse.kills_on_s3a import KEYS
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, Store, s3_store

from rocketspark import Message, Producer
from rocketspark.admin.operations import SyncOperations
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.official

FORMATS = ("delta", "iceberg")


class Scene:
    """A cluster, an object store and a driver on Spark 4.0."""

    def __init__(self, cluster: Cluster, store: Store, job: JobDriver) -> None:
        self.cluster, self.store, self.job = cluster, store, job

    def send(self, topic: str, first: int, end: int) -> None:
        with SyncOperations(self.cluster.namesrv) as operations:
            operations.create_topic(topic, queue_count=3)
        with Producer(self.cluster.namesrv, group="tables") as producer:
            for n in range(first, end):
                body = f"body {n} ü".encode() * (n % 5)
                message = Message(
                    topic=topic, body=body or b"x", tag="AB"[n % 2], keys=f"k{n}", properties={"n": str(n)}
                )
                producer.send(message)

    def ask(self, do: str, table_format: str, topic: str, **more: Any) -> Any:
        step = {"namesrv": self.cluster.namesrv, "format": table_format}
        step |= {"topics": [topic]} if do == "archive" else {"topic": topic}
        return self.job.ask(do=do, **{**step, **more})


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("tables")
    with run_cluster(store=folder / "store") as cluster, s3_store("lake") as store:
        spec = {"conf": settings(store, folder) | local_settings(), "places": ["s3a://lake"]}
        with driver(spec, folder / "log", KEYS | {"TZ": "Asia/Kolkata"}, "archive_job") as job:
            job.until("ready")
            yield Scene(cluster, store, job)
        printed = (folder / "log").read_text(errors="replace")
        assert ACCESS_KEY not in printed
        assert SECRET_KEY not in printed


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_topic_through_archive_restore_and_audit(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, to = f"whole-{table_format}", f"whole-{table_format}-again"
    where = {"place": str(tmp_path / "table")}
    scene.send(topic, 0, 250)
    first = scene.ask("archive", table_format, topic, batch_rows=100, metrics=True, **where)
    assert (first.get("rows"), first.get("batches"), first.get("total_rows")) == (250, 3, 250), first
    assert first["metrics"] == {"batch_duration_seconds_count": 3, "rows_total": 250, "running": 1}
    assert first["lag"] == [{"query": "archive", "topic": topic}]

    # The writer dies after its commit and hears of none; then another one whose reply is lost goes on by itself.
    scene.send(topic, 250, 300)
    assert scene.ask("archive", table_format, topic, fault="killed", **where) == {"error": "RocketSparkError: killed"}
    again = scene.ask("archive", table_format, topic, **where)
    assert (again["rows"], again["total_rows"]) == (0, 300)
    scene.send(topic, 300, 340)
    lost = scene.ask("archive", table_format, topic, fault="reply lost", **where)
    assert (lost.get("total_rows"), lost.get("stopped")) == (340, False), lost

    figures = scene.ask("figures", table_format, topic, **where)
    assert (figures["rows"], figures["places"], figures["wrong_hours"]) == (340, 340, 0)
    scene.ask("archive", "parquet", topic, place=str(tmp_path / "parquet"))
    assert scene.ask("figures", "parquet", topic, place=str(tmp_path / "parquet")) == figures

    # The tables' own commands merge the hours that are over: the rows stay, and the archive goes on.
    merged = scene.ask("archive", table_format, topic, later=True, **where)
    assert merged["rows"] == 0
    assert merged["hours_compacted"] >= 1
    assert merged["files"] < lost["files"]
    assert scene.ask("figures", table_format, topic, **where) == figures
    # Another writer commits the same batch before: this one ends, and nothing is doubled.
    scene.send(topic, 340, 350)
    beaten = scene.ask("archive", table_format, topic, fault="beaten", **where)
    assert beaten["error"].startswith("ConfigError: another process writes the archive")
    again = scene.ask("archive", table_format, topic, **where)
    assert (again["rows"], again["total_rows"]) == (0, 350)

    state = {"state": str(tmp_path / "state")}
    assert scene.ask("restore", table_format, topic, to=to, dry_run=True, **state, **where)["rows"] == 350
    sent = scene.ask("restore", table_format, topic, to=to, **state, **where)
    assert (sent.get("rows"), sent.get("refused")) == (350, 0), sent
    assert sent["chunks"] > 1
    assert scene.ask("restore", table_format, topic, to=to, **state, **where)["rows"] == 0
    back = scene.ask("compare", table_format, to, of=topic, **where)
    assert (back["ok"], back["one_messages"]) == (True, 350), back


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_topic_through_a_table_on_s3a_that_fails_by_plan(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, to = f"s3a-{table_format}", f"s3a-{table_format}-again"
    where = {"place": f"s3a://lake/{table_format}"}
    if table_format == "iceberg":
        where["catalog"] = f"jdbc:sqlite:{tmp_path}/catalog.db"
    scene.store.proxy.plan = sometimes
    scene.send(topic, 0, 120)
    first = scene.ask("archive", table_format, topic, batch_rows=60, **where)
    assert (first.get("rows"), first.get("batches"), first.get("total_rows")) == (120, 2, 120), first
    merged = scene.ask("archive", table_format, topic, later=True, **where)
    assert (merged.get("rows"), merged.get("total_rows")) == (0, 120), merged
    assert merged["hours_compacted"] >= 1
    sent = scene.ask("restore", table_format, topic, to=to, state=str(tmp_path / "state"), **where)
    assert (sent.get("rows"), sent.get("refused")) == (120, 0), sent
    same = scene.ask("compare", table_format, to, of=topic, **where)
    assert (same.get("ok"), same.get("other_messages")) == (True, 120), same
    assert sum(scene.store.proxy.faults.values()) > 0


def test_a_table_of_others_is_refused_and_left_alone(scene: Scene, tmp_path: Path) -> None:
    topic = "of-others"
    scene.send(topic, 0, 3)
    place = str(tmp_path / "delta")
    made = scene.job.ask(do="sql", sql=f"CREATE TABLE delta.`{place}` USING delta AS SELECT 1 AS price, 'x' AS topic")
    assert "error" not in made, made
    refused = scene.ask("archive", "delta", topic, place=place)["error"]
    assert refused.startswith(f"ConfigError: {place} is no archive's table, its columns differ (body, ")
    assert scene.job.ask(do="sql", sql=f"SELECT price FROM delta.`{place}`") == [{"price": 1}]
    for step in ("figures", "compare"):
        assert "is no archive's table" in scene.ask(step, "delta", topic, place=place)["error"]
    empty = tmp_path / "iceberg"
    empty.mkdir()
    (empty / "catalog.db").touch()
    missing = scene.ask("figures", "iceberg", topic, place=str(empty))["error"]
    assert missing.startswith("ConfigError: rocketspark.archive in ")
    assert missing.endswith("is no archive: there is no iceberg table")
    (empty / "catalog.db").write_text("no database" * 100)
    broken = scene.ask("archive", "iceberg", topic, place=str(empty), catalog=f"jdbc:sqlite:{empty}/catalog.db")[
        "error"
    ]
    assert "cannot be used" in broken
    assert "\n" not in broken


def written(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file in a folder and below."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_damaged_table_is_told_in_a_line_and_left_alone(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic = f"damaged-{table_format}"
    where = {"place": str(tmp_path)}
    scene.send(topic, 0, 5)
    assert scene.ask("archive", table_format, topic, **where).get("rows") == 5
    scene.send(topic, 5, 8)
    # The newest file of Delta's log becomes unreadable, that of Iceberg's metadata is gone.
    log = "_delta_log/*.json" if table_format == "delta" else "rocketspark/archive/metadata/*.metadata.json"
    newest = max(tmp_path.glob(log), key=lambda path: path.stat().st_mtime_ns)
    whole = newest.read_bytes()
    if table_format == "delta":
        newest.write_bytes(b"{damaged")
    else:
        newest.unlink()
    before = written(tmp_path)
    for do in ("archive", "figures"):
        told = scene.ask(do, table_format, topic, **where)["error"]
        says = "of the table is gone or damaged: bring it back from a copy, or archive to another place"
        assert told == f"RocketSparkError: {newest.name} {says}"
        assert written(tmp_path) == before
    newest.write_bytes(whole)
    if table_format == "iceberg":
        # Without its catalog the table is not begun anew beside the files that are there.
        catalog = (tmp_path / "catalog.db").rename(tmp_path / "aside.db")
        unknown = scene.ask("archive", table_format, topic, **where)["error"]
        assert "holds the files of a table that the catalog" in unknown
        catalog.replace(tmp_path / "catalog.db")
    done = scene.ask("archive", table_format, topic, **where)
    assert (done.get("rows"), done.get("total_rows")) == (3, 8), done
