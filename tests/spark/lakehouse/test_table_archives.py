"""archive, restore and audit of Delta and Iceberg tables, on Spark 4.0: each message once, whatever ends a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.spark.decode.framed_bodies import join
from tests.spark.decode.orders import V1, V2, avro
from tests.spark.decode.registry_server import registry_server
from tests.spark.lakehouse.drivers import JobDriver, driver, local_settings, settings
from tests.spark.lakehouse.fault_plan import sometimes
from tests.spark.lakehouse.kills_on_s3a import KEYS
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, Store, s3_store

from rocketspark import Message, Producer
from rocketspark.admin.operations import Admin
from rocketspark.spark.lakehouse.table import TablePlace, archive_at
from rocketspark.testing import Cluster, run_cluster

pytestmark = [
    pytest.mark.official,
    pytest.mark.shows(
        "lakehouse: `archive --format delta` and `iceberg`, one commit per micro-batch, a writer that dies "
        "after its commit, does not hear of it, or comes second; `restore` and `audit` give what they give "
        "with Parquet",
        "hours merged by OPTIMIZE and rewrite_data_files, the archive goes on after it",
        "Iceberg's catalog in SQLite; in PostgreSQL: archive, restore, audit, and a server that restarts "
        "between commits and in the midst of one",
    ),
]

FORMATS = ("delta", "iceberg")
# Each takes minutes: the other format runs in `make soak`.
ONE_NOW = (pytest.param("delta", marks=pytest.mark.soak), "iceberg")


class Scene:
    """A cluster, an object store and a driver on Spark 4.0."""

    def __init__(self, cluster: Cluster, store: Store, job: JobDriver) -> None:
        self.cluster, self.store, self.job = cluster, store, job

    def send(self, topic: str, first: int, end: int) -> None:
        with Admin(self.cluster.namesrv) as operations:
            operations.create_topic(topic, queue_count=3)
        with Producer(self.cluster.namesrv, group="tables") as producer:
            for n in range(first, end):
                body = f"body {n} ü".encode() * (n % 5)
                message = Message(
                    topic=topic, body=body or b"x", tag="AB"[n % 2], keys=f"k{n}", properties={"n": str(n)}
                )
                producer.send(message)

    def send_bodies(self, topic: str, first: int, bodies: Sequence[bytes]) -> None:
        """Send bodies, numbered in the property n."""
        with Admin(self.cluster.namesrv) as operations:
            operations.create_topic(topic, queue_count=3)
        with Producer(self.cluster.namesrv, group="tables") as producer:
            for n, body in enumerate(bodies, first):
                producer.send(Message(topic=topic, body=body, properties={"n": str(n)}))

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


@pytest.mark.shows(
    "`--metrics-port` of pipelines; `archive` in both forms with durations of micro-batches and the lag by "
    "topic; `restore`, `replay`, `dlq --resend` with durations of chunks",
    "mended: `restore` from a table that is set back meanwhile leaves rows out for good, untold",
)
@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.soak)])
def test_a_topic_through_archive_restore_and_audit(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, to = f"whole-{table_format}", f"whole-{table_format}-again"
    where = {"place": str(tmp_path / "table")}
    scene.send(topic, 0, 120)
    first = scene.ask("archive", table_format, topic, batch_rows=60, metrics=True, **where)
    assert (first.get("rows"), first.get("batches"), first.get("total_rows")) == (120, 2, 120), first
    assert first["metrics"] == {"batch_duration_seconds_count": 2, "rows_total": 120, "running": 1}
    assert first["lag"] == [{"query": "archive", "topic": topic}]

    # The writer dies after its commit and hears of none; then another one whose reply is lost goes on by itself.
    scene.send(topic, 120, 150)
    assert scene.ask("archive", table_format, topic, fault="killed", **where) == {"error": "RocketSparkError: killed"}
    again = scene.ask("archive", table_format, topic, **where)
    assert (again["rows"], again["total_rows"]) == (0, 150)
    scene.send(topic, 150, 180)
    lost = scene.ask("archive", table_format, topic, fault="reply lost", **where)
    assert (lost.get("total_rows"), lost.get("stopped")) == (180, False), lost

    figures = scene.ask("figures", table_format, topic, **where)
    assert (figures["rows"], figures["places"], figures["wrong_hours"]) == (180, 180, 0)
    scene.ask("archive", "parquet", topic, place=str(tmp_path / "parquet"))
    assert scene.ask("figures", "parquet", topic, place=str(tmp_path / "parquet")) == figures

    # The tables' own commands merge the hours that are over: the rows stay, and the archive goes on.
    merged = scene.ask("archive", table_format, topic, later=True, **where)
    assert merged["rows"] == 0
    assert merged["hours_compacted"] >= 1
    assert merged["files"] < lost["files"]
    assert scene.ask("figures", table_format, topic, **where) == figures
    # Another writer commits the same batch before: this one ends, and nothing is doubled.
    scene.send(topic, 180, 190)
    beaten = scene.ask("archive", table_format, topic, fault="beaten", **where)
    assert beaten["error"].startswith("ConfigError: another process writes the archive")
    again = scene.ask("archive", table_format, topic, **where)
    assert (again["rows"], again["total_rows"]) == (0, 190)

    state = {"state": str(tmp_path / "state")}
    assert scene.ask("restore", table_format, topic, to=to, dry_run=True, **state, **where)["rows"] == 190
    # The table is set back after the first chunk: what it held is sent, and archived again later.
    if table_format == "delta":
        back_to = f"RESTORE TABLE delta.`{where['place']}` TO VERSION AS OF 1"
    else:
        lake = archive_at(where["place"])
        assert isinstance(lake, TablePlace)
        name = f"rocketspark.{lake.name}"
        oldest = f"SELECT snapshot_id FROM {name}.history ORDER BY made_current_at LIMIT 2"
        _, second = scene.ask("sql", table_format, topic, sql=oldest, catalog=lake.catalog, **where)
        back_to = f"CALL rocketspark.system.rollback_to_snapshot('{name}', {second['snapshot_id']})"
    sent = scene.ask("restore", table_format, topic, to=to, meanwhile=back_to, **state, **where)
    assert (sent.get("rows"), sent.get("refused")) == (190, 0), sent
    assert sent["chunks"] > 1
    assert scene.ask("archive", table_format, topic, **where)["total_rows"] == 190
    assert scene.ask("restore", table_format, topic, to=to, **state, **where)["rows"] == 0
    back = scene.ask("compare", table_format, to, of=topic, **where)
    assert (back["ok"], back["one_messages"]) == (True, 190), back


@pytest.mark.shows(
    "mended: `restore` from an archive that was removed and begun anew in its place went on by the progress of the one "
    "before"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_a_table_in_the_place_of_another_is_told(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, to = f"anew-{table_format}", f"anew-{table_format}-again"
    where, state = {"place": str(tmp_path / "table")}, {"state": str(tmp_path / "state")}
    scene.send(topic, 0, 30)
    scene.ask("archive", table_format, topic, **where)
    assert scene.ask("restore", table_format, topic, to=to, **state, **where)["rows"] == 30
    shutil.rmtree(where["place"])
    assert scene.ask("archive", table_format, topic, **where)["total_rows"] == 30
    refused = scene.ask("restore", table_format, topic, to=to, **state, **where)["error"]
    assert "is another archive than the one from which 30 messages were sent" in refused
    assert scene.ask("restore", table_format, topic, to=to, again=True, **state, **where)["rows"] == 30
    assert scene.ask("restore", table_format, topic, to=to, **state, **where)["rows"] == 0


@pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them",
    "Delta and Iceberg on s3a:// behind a store that refuses, cuts and errs by plan, driver killed in the "
    "middle of a request",
)
@pytest.mark.soak
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_topic_through_a_table_on_s3a_that_fails_by_plan(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, to = f"s3a-{table_format}", f"s3a-{table_format}-again"
    where = {"place": f"s3a://lake/{table_format}"}
    if table_format == "iceberg":
        where["catalog"] = f"jdbc:sqlite:{tmp_path}/catalog.db"
    scene.store.proxy.plan = sometimes
    scene.send(topic, 0, 120)
    first = scene.ask("archive", table_format, topic, batch_rows=60, options=by_json("n INT"), **where)
    assert (first.get("rows"), first.get("batches"), first.get("total_rows")) == (120, 2, 120), first
    # A column is added there too; none of the bodies is JSON.
    merged = scene.ask("archive", table_format, topic, later=True, options=by_json("n INT, m DATE"), **where)
    assert (merged.get("rows"), merged.get("total_rows")) == (0, 120), merged
    assert merged["hours_compacted"] >= 1
    sent = scene.ask("restore", table_format, topic, to=to, state=str(tmp_path / "state"), **where)
    assert (sent.get("rows"), sent.get("refused")) == (120, 0), sent
    same = scene.ask("compare", table_format, to, of=topic, **where)
    assert (same.get("ok"), same.get("other_messages")) == (True, 120), same
    found = scene.ask("rows", table_format, topic, select=["count(*)", "count(_decode_error)"], **where)
    assert found == {"types": {"value": "struct<n:int,m:date>", "_decode_error": "string"}, "rows": [[120, 120]]}
    assert sum(scene.store.proxy.faults.values()) > 0


@pytest.mark.shows(
    "a Spark without a release, another format or foreign columns at the target, a file catalog, commits of "
    "another version: one line"
)
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


# Which file, the n-th of a pattern, and what becomes of its bytes: None, and it is gone.
Damage = tuple[str, int, Callable[[bytes], bytes | None]]
DAMAGES: dict[str, list[Damage]] = {
    "delta": [
        ("_delta_log/*.json", -1, lambda whole: b"{damaged"),
        ("_delta_log/*.json", -1, lambda whole: b""),
        ("_delta_log/*.json", -1, lambda whole: whole[: whole.rindex(b'{"add"')]),
        ("_delta_log/*.json", 1, lambda whole: b""),
        ("_delta_log/*.json", 1, lambda whole: None),
    ],
    "iceberg": [
        ("rocketspark/archive/metadata/*.metadata.json", -1, lambda whole: None),
        ("rocketspark/archive/metadata/snap-*.avro", -1, lambda whole: None),
        ("rocketspark/archive/metadata/snap-*.avro", -1, lambda whole: b""),
        ("rocketspark/archive/metadata/*-m0.avro", -1, lambda whole: None),
        ("rocketspark/archive/metadata/*-m0.avro", 0, lambda whole: whole[:-50]),
    ],
}


@pytest.mark.shows(
    "files of a table that are gone or damaged: one line with what to do, nothing written: a commit of "
    "Delta's log that is unreadable, empty, cut off at a line (the last 20) or gone between others; Iceberg's "
    "metadata, manifest lists and manifests that are gone, empty or cut off; a catalog that is gone"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_a_damaged_table_is_told_in_a_line_and_left_alone(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic = f"damaged-{table_format}"
    where = {"place": str(tmp_path / "table")}
    for first, end in ((0, 3), (3, 5)):
        scene.send(topic, first, end)
        assert scene.ask("archive", table_format, topic, **where).get("rows") == end - first
    scene.send(topic, 5, 8)
    for pattern, which, spoil in DAMAGES[table_format]:
        files = sorted((tmp_path / "table").glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        file = files[which]
        kept, sums = tmp_path / "kept", file.with_name(f".{file.name}.crc")
        shutil.copy2(file, kept)
        spoiled = spoil(kept.read_bytes())
        sums.unlink(missing_ok=True)
        if spoiled is None:
            file.unlink()
        else:
            file.write_bytes(spoiled)
        before = written(tmp_path / "table")
        for do in ("archive", "figures"):
            told = scene.ask(do, table_format, topic, **where)["error"].partition(": ")[2]
            says = "of the table is gone or damaged: bring it back from a copy, or archive to another place"
            # Of a commit between others that is gone, and a manifest that is cut off, no file is named.
            unnamed = (which == 1 and spoiled is None) or which == 0
            assert told == f"{'a file' if unnamed else file.name} {says}", (pattern, which, do)
            assert written(tmp_path / "table") == before
        shutil.copy2(kept, file)
    if table_format == "iceberg":
        # Without its catalog the table is not begun anew beside the files that are there.
        catalog = (tmp_path / "table/catalog.db").rename(tmp_path / "aside.db")
        unknown = scene.ask("archive", table_format, topic, **where)["error"]
        assert "holds the files of a table that the catalog" in unknown
        catalog.replace(tmp_path / "table/catalog.db")
    done = scene.ask("archive", table_format, topic, **where)
    assert (done.get("rows"), done.get("total_rows")) == (3, 8), done


# ------------------------------------------------------------------ decoded bodies

NUMBER, BODY = "int(properties['n']) AS n", "string(body) AS body"
FIRST = "id SMALLINT, `x.y` STRING, l ARRAY<STRUCT<k STRING>>, m MAP<STRING, STRUCT<q INT>>, at TIMESTAMP"
SECOND = (
    "id SMALLINT, `x.y` STRING, l ARRAY<STRUCT<`k` STRING, `a``b` INT>>, m MAP<STRING, STRUCT<`q` INT, r DATE>>,"
    " at TIMESTAMP, local TIMESTAMP_NTZ, more STRUCT<id BIGINT>"
)
BODIES = [
    '{"id": 7, "x.y": "ü", "l": [{"k": "a"}, null], "m": {"k": {"q": 1}}, "at": "2026-11-21T06:00:00Z"}',
    "{broken",
    '{"id": 99999}',
    '{"l": []}',
]


def by_json(schema: str, **more: str) -> dict[str, str]:
    return {"decode": "json", "decodeSchema": schema, **more}


def refuses_without_writing(scene: Scene, table_format: str, topic: str, place: Path, small: str) -> None:
    """What cannot be is refused in a line, and nothing is written."""
    before = written(place)
    for options, says in (
        (by_json("id BIGINT, other INT"), f"column value.id is {small} in the table and bigint by the schema"),
        ({}, f"{place} has decoded columns (value, _decode_error), which would stay empty: give the options"),
        (
            by_json(FIRST, decodeMode="dropmalformed"),
            "option decodeMode is DROPMALFORMED: an archive leaves",
        ),
        (by_json(FIRST, columnNameOfDecodeError="Hour"), "option columnNameOfDecodeError is 'Hour', which is a column"),
        (by_json("id SMALLINT, no STRUCT<>"), "column value.no is a struct without fields"),
    ):
        refused = scene.ask("archive", table_format, topic, options=options, place=str(place))["error"]
        assert says in refused, refused
        assert "\n" not in refused
    assert written(place) == before


def reads_as_without_decoding(
    scene: Scene, table_format: str, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    """Merging, restore and audit are what they are without decoded columns."""
    to, where = f"{topic}-again", {"place": str(tmp_path / "table")}
    select = [NUMBER, BODY, "value", "_decode_error"]
    rows = scene.ask("rows", table_format, topic, select=select, **where)["rows"]
    merged = scene.ask("archive", table_format, topic, later=True, options=options, **where)
    assert (merged.get("rows"), merged.get("total_rows"), merged.get("hours_compacted", 0) >= 1) == (0, 8, True), merged
    assert scene.ask("rows", table_format, topic, select=select, **where)["rows"] == rows
    sent = scene.ask("restore", table_format, topic, to=to, state=str(tmp_path / "state"), **where)
    assert (sent.get("rows"), sent.get("refused")) == (8, 0), sent
    for one in (topic, to):
        same = scene.ask("compare", table_format, one, of=topic, **where)
        assert (same.get("ok"), same.get("other_messages")) == (True, 8), same
    scene.ask("archive", "parquet", to, place=str(tmp_path / "back"))
    back = scene.ask("rows", "parquet", to, select=[NUMBER, BODY], place=str(tmp_path / "back"))["rows"]
    assert back == [row[:2] for row in rows]


@pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_decoded_bodies_are_columns(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, where = f"decoded-{table_format}", {"place": str(tmp_path / "table")}
    small = "smallint" if table_format == "delta" else "int"
    scene.send_bodies(topic, 0, [body.encode() for body in BODIES])
    first = scene.ask("archive", table_format, topic, options=by_json(FIRST), **where)
    assert (first.get("rows"), first.get("total_rows")) == (4, 4), first
    found = scene.ask("rows", table_format, topic, select=[NUMBER, BODY, "value", "_decode_error"], **where)
    assert found["types"] == {
        "value": f"struct<id:{small},x.y:string,l:array<struct<k:string>>,m:map<string,struct<q:int>>,at:timestamp>",
        "_decode_error": "string",
    }
    assert [row[1] for row in found["rows"]] == BODIES
    # The driver's own zone is India's.
    empty = {"id": None, "x.y": None, "l": None, "m": None, "at": None}
    whole = {"id": 7, "x.y": "ü", "l": [{"k": "a"}, None], "m": {"k": {"q": 1}}, "at": "2026-11-21 11:30:00"}
    assert [row[2] for row in found["rows"]] == [whole, None, None, empty | {"l": []}]
    assert [row[3] is None for row in found["rows"]] == [True, False, False, True]
    assert found["rows"][1][3].startswith("the body is no JSON")
    assert found["rows"][2][3].startswith("the JSON does not fit the schema")

    # New fields at any depth are added, and the old rows have none of them. What a schema lacks stays null.
    later = [
        '{"id": 1, "l": [{"k": "b", "a`b": 2}], "m": {"k": {"q": 3, "r": "2026-11-21"}}, "more": {"id": 5}, '
        '"local": "2026-11-21T06:00:00"}',
        '{"ID": 8, "x.y": "left out"}',
    ]
    scene.send_bodies(topic, 4, [later[0].encode()])
    assert scene.ask("archive", table_format, topic, options=by_json(SECOND), **where).get("rows") == 1
    scene.send_bodies(topic, 5, [later[1].encode()])
    assert (
        scene.ask("archive", table_format, topic, options=by_json("ID SMALLINT", decodeInto="VALUE"), **where).get(
            "rows"
        )
        == 1
    )
    # Without a schema it is the table's.
    scene.send_bodies(topic, 6, [b'{"id": 9, "new": 1}'])
    kept = {"decode": "json", "decodeErrorTopic": f"{topic}-bad"}
    assert scene.ask("archive", table_format, topic, options=kept, **where).get("rows") == 1
    select = [NUMBER, "value", "_decode_error IS NULL"]
    found = scene.ask("rows", table_format, topic, select=select, **where)
    assert found["types"] == {
        "value": f"struct<id:{small},x.y:string,l:array<struct<k:string,a`b:int>>,m:map<string,struct<q:int,r:date>>,"
        "at:timestamp,local:timestamp_ntz,more:struct<id:bigint>>",
        "_decode_error": "string",
    }
    empty |= {"local": None, "more": None}
    whole |= {"l": [{"k": "a", "a`b": None}, None], "m": {"k": {"q": 1, "r": None}}} | {"local": None, "more": None}
    newer = {"id": 1, "l": [{"k": "b", "a`b": 2}], "m": {"k": {"q": 3, "r": "2026-11-21"}}, "more": {"id": 5}}
    assert found["rows"] == [
        *([0, whole, True], [1, None, False], [2, None, False], [3, empty | {"l": []}, True]),
        *([4, empty | newer | {"local": "2026-11-21 06:00:00"}, True], [5, empty | {"id": 8}, True]),
        [6, empty | {"id": 9}, True],
    ]

    scene.send_bodies(topic, 7, [b"bad"])
    refuses_without_writing(scene, table_format, topic, tmp_path / "table", small)
    # One ends between new columns and the next rows.
    ends = by_json("id SMALLINT, last INT", decodeMode="failfast")
    assert (
        "a body cannot be decoded (topic " in scene.ask("archive", table_format, topic, options=ends, **where)["error"]
    )
    same = scene.ask("rows", table_format, topic, select=select, **where)
    assert same["types"]["value"] == found["types"]["value"].removesuffix(">") + ",last:int>"
    assert [row[1] for row in same["rows"]] == [row[1] and row[1] | {"last": None} for row in found["rows"]]
    assert scene.ask("archive", table_format, topic, options=kept, **where).get("rows") == 1
    # Bad rows are sent there too, of the run that asks for it.
    scene.ask("archive", "parquet", f"{topic}-bad", place=str(tmp_path / "bad"))
    origin = "properties['originQueueOffset'] IS NOT NULL"
    assert scene.ask("rows", "parquet", topic, select=[BODY, origin], place=str(tmp_path / "bad"))["rows"] == [
        ["bad", True]
    ]

    reads_as_without_decoding(scene, table_format, topic, kept, tmp_path)


@pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_columns_that_another_adds_meanwhile_lose_no_row(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic = f"altered-{table_format}"
    where, options = {"place": str(tmp_path / "table")}, {"decode": "json"}
    scene.send_bodies(topic, 0, [])
    unknown = scene.ask("archive", table_format, topic, options=options, **where)["error"]
    assert unknown == (
        "ConfigError: option decodeSchema is missing, and no body of the sample is a JSON object with a field: give it"
        " as DDL"
    )
    # The schema is inferred when there are some, and kept.
    scene.send_bodies(topic, 0, [b'{"Id": 1, "x.y": {"z": true}}'])
    assert scene.ask("archive", table_format, topic, options=options, **where).get("rows") == 1
    scene.send_bodies(topic, 1, [b'{"Id": 2, "more": 3}'])
    altered = scene.ask("archive", table_format, topic, options=options, fault="none", column="value.more INT", **where)
    if table_format == "iceberg":
        assert altered["error"].endswith("were changed while it was written: archive again"), altered
    again = scene.ask("archive", table_format, topic, options=options, **where)
    assert again.get("total_rows") == 2, again
    found = scene.ask("rows", table_format, topic, select=[NUMBER, "value"], **where)
    assert found["types"]["value"] == "struct<Id:bigint,x.y:struct<z:boolean>,more:int>"
    more = 3 if table_format == "iceberg" else None
    assert found["rows"] == [
        [0, {"Id": 1, "x.y": {"z": True}, "more": None}],
        [1, {"Id": 2, "x.y": None, "more": more}],
    ]


@pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_avro_of_two_versions_in_one_topic(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic = f"avro-{table_format}"
    where = {"place": str(tmp_path / "table")}
    old, new = {"id": 1, "fruit": "pear", "price": 0.5}, {"id": 2, "fruit": "apple", "price": 1.0, "note": "ripe"}
    with registry_server() as registry:
        options = {"decode": "avro", "schemaRegistry": registry.url, "decodeInto": "order"}
        one = registry.add(f"{topic}-value", V1)
        scene.send_bodies(topic, 0, [join(one, avro(old)), b"none"])
        assert scene.ask("archive", table_format, topic, options=options, **where).get("rows") == 2
        two = registry.add(f"{topic}-value", V2)
        scene.send_bodies(topic, 2, [join(two, avro(new, V2)), join(one, avro(old | {"id": 3}))])
        assert scene.ask("archive", table_format, topic, options=options, **where).get("rows") == 2
    found = scene.ask("rows", table_format, topic, select=[NUMBER, "order", "_decode_error IS NULL"], **where)
    assert found["types"] == {
        "order": "struct<id:int,fruit:string,price:double,note:string>",
        "_decode_error": "string",
    }
    rows = [old | {"note": None}, None, new, old | {"id": 3, "note": None}]
    assert found["rows"] == [[n, row, n != 1] for n, row in enumerate(rows)]


@pytest.mark.shows(
    "mended: a table whose commits had all expired did not tell of which namespace its topics are, nor one of Iceberg "
    "its id with compressed metadata"
)
@pytest.mark.parametrize("table_format", ONE_NOW)
def test_a_table_without_its_commits_tells_its_namespace(scene: Scene, table_format: str, tmp_path: Path) -> None:
    topic, place = f"spaces-{table_format}", tmp_path / "table"
    catalog = {"catalog": f"jdbc:sqlite:{place}/catalog.db"} if table_format == "iceberg" else {}
    where = {"place": str(place), **catalog}
    name = "rocketspark.rocketspark.archive" if catalog else f"delta.`{place}`"

    def sql(text: str) -> Any:
        return scene.ask("sql", table_format, topic, sql=text, **where)

    def archived(namespace: str, **more: Any) -> Any:
        return scene.ask("archive", table_format, topic, options={"namespace": namespace}, **more, **where)

    for namespace in ("one", "two"):
        scene.send(f"{namespace}%{topic}", 0, 5)
    assert archived("one").get("rows") == 5
    noted = scene.ask("identity", table_format, topic, **where)["id"]
    setting = "write.metadata.compression-codec'='gzip" if catalog else "delta.checkpointInterval'='1"
    sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{setting}')")
    scene.send(f"one%{topic}", 5, 9)
    assert archived("one").get("rows") == 4
    # The newest commit is none of an archive's, and all of these go.
    assert archived("one", later=True)["hours_compacted"] >= 1
    if catalog:
        assert isinstance(
            sql(f"CALL rocketspark.system.expire_snapshots(table => '{name}', older_than => now())"), list
        )
    else:
        for commit in sorted((place / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()
    assert noted
    assert scene.ask("identity", table_format, topic, **where)["id"] == noted
    assert "topics of namespace 'one' were read up to here, and the options name 'two'" in archived("two")["error"]
    assert archived("one").get("rows") == 0
    scene.send(f"one%{topic}", 9, 12)
    assert archived("one").get("total_rows") == 12
