"""Where an archive is and of which format, what its commits say, and which number is next. No Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from rocketspark.errors import ConfigError, NoReply, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.lakehouse.delta_table import COMMITS_AT_ONCE, DeltaTable
from rocketspark.spark.lakehouse.iceberg_table import IcebergTable, catalog_fails, check_location, set_catalog
from rocketspark.spark.lakehouse.table import (
    COLUMNS,
    PARTITIONS,
    ArchiveState,
    ArchiveTable,
    TablePlace,
    archive_at,
    archive_for,
    check_columns,
    damage_in,
    decode_state,
    table_place,
)
from rocketspark.spark.pipelines.parts.archive_batches import may_pass
from rocketspark.spark.pipelines.parts.archive_manifest import open_archive
from rocketspark.spark.pipelines.parts.archive_table import Merges, TableTarget, with_hour
from rocketspark.spark.pipelines.parts.restore_tasks import SHARE, hour_bounds, parts_by_share
from rocketspark.tables.offset_ranges import to_json

pytestmark = pytest.mark.shows(
    "files of a table that are gone or damaged: one line with what to do, nothing written: a commit of "
    "Delta's log that is unreadable, empty, cut off at a line (the last 20) or gone between others; Iceberg's "
    "metadata, manifest lists and manifests that are gone, empty or cut off; a catalog that is gone"
)

HERE = table_place("delta", "/data/t")
HOUR_MS = 3_600_000


def marked(folder: Path, table_format: str) -> Path:
    """A folder that looks like an archive of a format."""
    if table_format == "iceberg":
        folder.mkdir()
        (folder / "catalog.db").touch()
    else:
        (folder / {"parquet": "_archive", "delta": "_delta_log"}[table_format]).mkdir(parents=True)
    if table_format == "parquet":
        (folder / "_archive/manifest.json").touch()
    return folder


@pytest.mark.parametrize("place", ["", " ", "--once"])
def test_what_names_no_place_is_refused(place: str) -> None:
    for find in (archive_at, lambda place: archive_for("delta", place), lambda place: archive_for("parquet", place)):
        with pytest.raises(ConfigError, match="a folder or s3a://… is needed"):
            find(place)


@pytest.mark.shows(
    "mended: an empty `--to`, ARCHIVE, `--against` or `--against-archive` meant the working folder, or "
    "nothing; a first run that failed forbade another `--format`; `restore` of no archive was told after "
    "Spark had started"
)
def test_a_first_run_that_failed_forbids_no_other_format(tmp_path: Path) -> None:
    with open_archive(tmp_path):
        pass
    assert archive_for("delta", tmp_path) == TablePlace("delta", str(tmp_path))
    with open_archive(tmp_path) as archive:
        archive.commit([], offsets={})
    with pytest.raises(ConfigError, match="holds an archive of format parquet"):
        archive_for("delta", tmp_path)
    lost = tmp_path / "_files/topic=t/hour=2026-11-21T06/part.parquet"
    lost.parent.mkdir(parents=True)
    lost.touch()
    (tmp_path / "_archive/manifest.json").unlink()
    with pytest.raises(ConfigError, match="holds an archive of format parquet"):
        archive_for("delta", tmp_path)


def test_what_lies_at_a_place_tells_its_format(tmp_path: Path) -> None:
    assert archive_at(tmp_path / "none") == tmp_path / "none"
    assert archive_at(marked(tmp_path / "p", "parquet")) == tmp_path / "p"
    assert archive_at(marked(tmp_path / "d", "delta")) == TablePlace("delta", str(tmp_path / "d"))
    found = archive_at(str(marked(tmp_path / "i", "iceberg")))
    catalog = f"jdbc:sqlite:{tmp_path}/i/catalog.db"
    assert found == TablePlace("iceberg", f"{tmp_path}/i", catalog, "rocketspark.archive")
    assert archive_at("s3a://b/x") == TablePlace("delta", "s3a://b/x")
    assert archive_at("s3://b/x", "jdbc:sqlite:/c.db", "a.b") == TablePlace(
        *("iceberg", "s3a://b/x", "jdbc:sqlite:/c.db", "a.b")
    )


def test_a_place_is_the_same_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    marked(tmp_path / "p", "parquet")
    for spelled in (f"file://{tmp_path}/p", f"file:{tmp_path}/p", "p"):
        assert archive_at(spelled) in (tmp_path / "p", Path("p"))
        with pytest.raises(ConfigError, match="holds an archive of format parquet"):
            archive_for("delta", spelled)
    found = {
        archive_for("iceberg", *given) for given in [("x", "jdbc:sqlite:c.db"), ("y/../x", "jdbc:sqlite:./y/../c.db")]
    }
    assert found == {table_place("iceberg", tmp_path / "x", f"jdbc:sqlite:{tmp_path}/c.db")}


@pytest.mark.parametrize("asked", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("there", ["parquet", "delta", "iceberg"])
def test_an_archive_of_another_format_is_refused(asked: str, there: str, tmp_path: Path) -> None:
    folder = marked(tmp_path / "archive", there)
    if asked == there:
        archive_for(asked, folder)
        return
    with pytest.raises(ConfigError) as raised:
        archive_for(asked, folder)
    assert f"{folder} holds an archive of format {there}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("orc", "/x"), "parquet, delta or iceberg is needed"),
        (("parquet", "s3a://b/x"), "needs hard links and renames"),
        (("parquet", "/x", "jdbc:sqlite:/c"), "give --format iceberg"),
        (("delta", "/x", "jdbc:sqlite:/c"), "a Delta table is its folder"),
        (("iceberg", "s3a://b/x"), "needs a database as its catalog"),
        (("iceberg", "/x", "hadoop"), "a file .'hadoop'. catalog is not atomic"),
        (("iceberg", "/x", "jdbc:sqlite:"), "name a file after jdbc:sqlite:"),
        (("iceberg", "/x", "jdbc:sqlite::memory:"), "name a file after jdbc:sqlite:"),
        (("iceberg", "/x", "jdbc:mysql://h/d"), "jdbc:sqlite:/data/catalog.db or jdbc:postgresql"),
        (("iceberg", "/x", "jdbc:postgresql://h/d?user=a&password=verysecret"), "give it as PGPASSWORD"),
        (("iceberg", "/x", "jdbc:sqlite:/c", "archive"), "NAMESPACE.TABLE is needed"),
        (("iceberg", "/x", "jdbc:sqlite:/c", "a.b; DROP"), "NAMESPACE.TABLE is needed"),
    ],
)
def test_places_that_cannot_be(given: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        archive_for(*given)
    assert "\n" not in str(raised.value)
    assert "verysecret" not in str(raised.value)


def test_a_commit_says_what_was_given_and_no_other_one_does() -> None:
    state = ArchiveState(3, {"t": {"b": {"0": 7}}}).next({"t": {"b": {"0": 9}}})
    assert state.sequence == 4
    assert decode_state(state.encoded(), HERE) == state
    for text in (None, "", "{}", "compacted by hand", '{"rocketspark.archive": 1}', "rocketspark.archive {"):
        assert decode_state(text, HERE) is None
    newer = ArchiveState(1, {}, "c", version=2).encoded()
    with pytest.raises(ConfigError, match="archives have version 2, known is 1: use a newer RocketSpark"):
        decode_state(newer, HERE)


def test_forgotten_commits_are_made_good_by_the_rows() -> None:
    found = to_json({MessageQueue("t", "b", 1): 7, MessageQueue("t", "b", 0): 3, MessageQueue("u", "c", 0): 1})
    assert found == {"t": {"b": {"0": 3, "1": 7}}, "u": {"c": {"0": 1}}}


LOG = "Encountered error while reading file file:///t/_delta_log/00000000000000000003.json.  SQLSTATE: KD001"
METADATA = "Failed to open input stream for file: /t/metadata/00006-8af3.metadata.json"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (f"[FAILED_READ_FILE.NO_HINT] {LOG}", "00000000000000000003.json"),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] read file file:///t/topic=a/part-1.c000.snappy.parquet. File does",
         "part-1.c000.snappy.parquet"),
        ("java.lang.IllegalStateException: Could not find any delta files for version 10", "a file"),
        ("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 2) are not contiguous.", "a file"),
        (f"o1.table : org.apache.iceberg.exceptions.NotFoundException: {METADATA}", "00006-8af3.metadata.json"),
        ("Caused by: org.apache.iceberg.exceptions.NotFoundException: File does not exist: s3a://b/t/data/x.parquet",
         "x.parquet"),
        ("Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: file:/t/_delta_log/03.json at 0 exp: 1",
         "03.json"),
        (": org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: /t/metadata/snap-17-1-a.avro",
         "snap-17-1-a.avro"),
    ],
)  # fmt: skip
def test_damage_of_a_table_names_the_file_and_what_to_do(text: str, file: str) -> None:
    says = "of the table is gone or damaged: bring it back from a copy, or archive to another place"
    assert damage_in(text) == f"{file} {says}"


@pytest.mark.parametrize(
    "text",
    [
        "[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/x.parquet. Connection reset",
        "[PATH_NOT_FOUND] Path does not exist: file:/t/x.json",
        "",
    ],
)
def test_what_is_no_damage_is_not_called_so(text: str) -> None:
    assert damage_in(text) == ""


def test_a_table_of_others_is_refused() -> None:
    types = dict(part.split(" ", 1) for part in COLUMNS.split(", "))
    # As the table is made; what it is read as calls this type by another name.
    types = {name: kind.replace("timestamp_ltz", "timestamp") for name, kind in types.items()}
    check_columns(types, PARTITIONS, HERE)
    check_columns(types | {"value": "struct<id:int>"}, PARTITIONS, HERE)
    with pytest.raises(ConfigError, match=r"its columns differ \(body\)"):
        check_columns({n: t for n, t in types.items() if n != "body"} | {"price": "int"}, PARTITIONS, HERE)
    with pytest.raises(ConfigError, match=r"its columns differ \(queueId\)"):
        check_columns(types | {"queueId": "bigint"}, PARTITIONS, HERE)
    with pytest.raises(ConfigError, match="not partitioned by topic and hour"):
        check_columns(types, ("topic",), HERE)


class RecordedTable:
    """A table in memory, whose next commits may fail before or after they are made."""

    def __init__(self) -> None:
        self.commits: list[ArchiveState] = []
        self.fail = ""
        self.merged: list[str] = []
        self.noted: list[Any] = []

    def note_namespace(self, offsets: Any) -> None:
        self.noted.append(offsets)

    def state(self) -> ArchiveState | None:
        return self.commits[-1] if self.commits else None

    def append(self, rows: Any, state: ArchiveState, after: ArchiveState | None = None) -> int:
        if self.fail == "before":
            raise NoReply("no reply")
        assert all(state.sequence > one.sequence for one in self.commits)
        self.commits.append(state)
        if self.fail == "after":
            raise NoReply("no reply")
        return 5

    def compact(self, last_hour: str, file_bytes: int) -> int:
        self.merged.append(last_hour)
        return 1


class EmptyRows:
    """A session that makes rows without Spark."""

    def createDataFrame(self, rows: Any, columns: str) -> list[Any]:
        return []


@pytest.mark.parametrize("fail", ["before", "after"])
def test_after_a_failure_the_table_s_commit_says_where_to_go_on(fail: str) -> None:
    table = RecordedTable()
    target = TableTarget(EmptyRows(), table)  # type: ignore[arg-type]
    assert target.offsets is None
    target.begin({"t": 0})
    assert target.offsets == {"t": 0}
    table.fail = fail
    with pytest.raises(NoReply):
        target.begin({"t": 5})
    table.fail = ""
    # Another run, and the same one, see the same.
    for again in (target, TableTarget(EmptyRows(), table)):  # type: ignore[arg-type]
        assert again.offsets == ({"t": 0} if fail == "before" else {"t": 5})
    target.begin({"t": 9})
    assert [one.sequence for one in table.commits] == ([1, 2] if fail == "before" else [1, 2, 3])
    # By each run once.
    assert table.noted == [{"t": 0}]


def test_hours_are_merged_at_first_then_when_one_more_is_over_or_many_batches_came() -> None:
    table = RecordedTable()
    merges = Merges(table, 300, 1 << 20)  # type: ignore[arg-type]
    noon_ms = 1_795_435_200_000  # 2026-11-23T12 UTC
    assert merges.due(noon_ms, 0) == 1
    assert table.merged == ["2026-11-23T10"]
    assert merges.due(noon_ms + 60_000, 0) == merges.due(noon_ms + 60_000, 3) == 0
    assert merges.due(noon_ms + 300_000, 3) == 1
    assert table.merged[-1] == "2026-11-23T11"
    assert merges.due(noon_ms + 300_000, 60) == 1
    assert merges.due(noon_ms + 300_000, 60) == 0


def test_an_hour_is_that_of_utc_as_a_parquet_archive_has_it() -> None:
    times = pa.array([0, HOUR_MS * 1000 - 1, HOUR_MS * 1000, 1_795_435_199_999_999], pa.timestamp("us", "Asia/Tokyo"))
    found = with_hour(pa.record_batch({"storeTime": times}))
    assert found.column("hour").to_pylist() == ["1970-01-01T00", "1970-01-01T00", "1970-01-01T01", "2026-11-23T11"]
    assert found.schema.field("hour").type == pa.string()


def test_a_time_range_leaves_hours_out() -> None:
    assert hour_bounds(None, None) == (None, None)
    assert hour_bounds(HOUR_MS, 2 * HOUR_MS) == ("1970-01-01T01", "1970-01-01T01")
    assert hour_bounds(HOUR_MS - 1, 2 * HOUR_MS + 1) == ("1970-01-01T00", "1970-01-01T02")


def test_rows_are_parted_by_share_in_their_order() -> None:
    batches = [
        pa.record_batch({SHARE: pa.array(shares, pa.int32()), "n": pa.array(numbers)})
        for shares, numbers in (([0, 0, 1], [1, 2, 3]), ([1, 4], [4, 5]), ([4], [6]))
    ]
    found = [(number, part.column("n").to_pylist()) for number, part in parts_by_share(iter(batches))]
    assert found == [(0, [1, 2]), (1, [3]), (1, [4]), (4, [5]), (4, [6])]


def test_a_catalog_s_password_is_hidden() -> None:
    object_store.remember_secrets({"jdbc.password": "verysecret"}, {})
    assert "verysecret" not in object_store.hidden("FATAL: password verysecret is wrong")


class GoneTable:
    """What an append looks at of a table that was deleted; rows that are written fail."""

    def _detail(self) -> None:
        return None

    def exists(self) -> bool:
        return False


def test_a_log_without_a_commit_is_no_table_yet() -> None:
    class Begun(DeltaTable):
        def __init__(self) -> None:
            self.place = HERE

        def _detail(self) -> Any:
            return Row(format="delta", partitionColumns=[], numFiles=0)

        def read_all(self) -> Any:
            return Row(schema=Row(fields=[]))

    assert not Begun().exists()
    with pytest.raises(ConfigError, match="the table /data/t is gone"):
        Begun().append(None, ArchiveState(1, {}).next({"t": {}}))  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [DeltaTable, IcebergTable])
def test_a_table_deleted_while_it_is_written_is_not_made_anew(table: Any) -> None:
    class Gone(GoneTable, table):
        def __init__(self) -> None:
            self.place = HERE

    # Its rows would be missing, and the new one would say that they are there.
    with pytest.raises(ConfigError, match="the table /data/t is gone"):
        Gone().append(None, ArchiveState(1, {}).next({"t": {}}))


def test_a_catalog_that_is_locked_just_now_is_tried_again() -> None:
    said = "JdbcCatalog.java: org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked"
    assert not catalog_fails(said)
    assert may_pass(RuntimeError(said))
    assert catalog_fails("org.sqlite.SQLiteException: [SQLITE_NOTADB] File opened that is not a database file")


class DeltaHistory(DeltaTable):
    """A table of which only what commits say and were is known, the newest first."""

    def __init__(self, *commits: tuple[str, ArchiveState | None]) -> None:
        self.place = HERE
        self.commits = commits

    def _commits(self, limit: int | None) -> list[tuple[ArchiveState | None, Any]]:
        newest = len(self.commits) - 1
        found = [(said, Row(version=newest - at, operation=kind)) for at, (kind, said) in enumerate(self.commits)]
        return found[:limit]

    def _namespace(self) -> None:
        return None


def test_what_a_restore_took_back_is_not_said_to_be_there() -> None:
    older = ArchiveState(3, {"t": {"b": {"0": 3}}}, "c3")
    assert DeltaHistory(("OPTIMIZE", None), ("WRITE", older))._committed() == older
    assert DeltaHistory(("OPTIMIZE", None), ("RESTORE", None), ("WRITE", older))._committed() is None
    assert DeltaHistory(("WRITE", older), ("RESTORE", None))._committed() == older
    # Others' commits, as many as are not read at once.
    others = [("OPTIMIZE", None)] * COMMITS_AT_ONCE
    assert DeltaHistory(*others, ("WRITE", older))._committed() == older
    assert DeltaHistory(*others, ("RESTORE", None), ("WRITE", older))._committed() is None
    assert DeltaHistory(*others, ("WRITE", older))._stands(older)
    assert not DeltaHistory(*others, ("RESTORE", None), ("WRITE", older))._stands(older)


def test_a_namespace_is_that_of_commits_that_a_restore_took_back() -> None:
    class Rows(DeltaHistory):
        def offsets_of_rows(self, topics: Any = ()) -> dict[str, Any]:
            return {"t": {"b": {"0": 2}}}

    for said, noted in (({"@namespace": "one"}, "one"), ({}, ""), (None, None)):
        commit = None if said is None else ArchiveState(3, said, "c3")
        state = Rows(("OPTIMIZE", None), ("RESTORE", None), ("WRITE", commit))._state_of_rows()
        assert state is not None
        assert state.offsets == {"t": {"b": {"0": 2}}, "@namespace": noted}


@pytest.mark.shows("mended: an archive passes rows over that Delta's RESTORE took back while it was written")
def test_rows_that_were_taken_back_while_it_is_written_are_not_passed_over() -> None:
    first = ArchiveState(1, {"t": {"b": {"0": 1}}}, "c1")
    second = first.next({"t": {"b": {"0": 2}}})
    table = DeltaHistory(("RESTORE", None), ("WRITE", second), ("WRITE", first))
    rows: Any = None
    with pytest.raises(RocketSparkError, match="was set back to an older version while it was written") as raised:
        table.append(rows, second.next({}), second)
    # It looks at the table anew, whose rows tell where to go on.
    assert may_pass(raised.value)
    for standing in (
        DeltaHistory(("OPTIMIZE", None), ("WRITE", second), ("RESTORE", None), ("WRITE", first)),
        DeltaHistory(("WRITE", None)),
    ):
        assert standing._stands(second)
    # Of rows alone, no commit is known.
    assert table._stands(ArchiveState(1_000, {}))


@pytest.mark.shows("mended: Delta's RESTORE in the midst of a micro-batch: what it takes back is never archived again")
def test_a_commit_that_lost_what_it_follows_does_not_count() -> None:
    class History(DeltaHistory):
        removed: list[tuple[ArchiveState, ArchiveState]] = []

        def _remove(self, before: ArchiveState, state: ArchiveState) -> None:
            self.removed.append((before, state))

    first = ArchiveState(1, {"t": {"b": {"0": 1}}}, "c1")
    second = first.next({"t": {"b": {"0": 2}}})
    third = second.next({"t": {"b": {"0": 3}}})
    table = History(("OPTIMIZE", None), ("WRITE", third), ("RESTORE", None), ("WRITE", second), ("WRITE", first))
    assert table._committed() is None
    assert table.removed == [(second, third)]
    # Written by whoever looked after the RESTORE, its number is not the next one.
    fourth = ArchiveState(1_763_690_000_000, {"t": {"b": {"0": 1}}}).next({"t": {"b": {"0": 3}}})
    for standing in (
        History(("WRITE", fourth), ("MERGE", None), ("WRITE", third), ("RESTORE", None), ("WRITE", second)),
        History(("WRITE", fourth), ("RESTORE", None), ("WRITE", second)),
    ):
        assert standing._committed() == fourth
    assert table.removed == [(second, third)]


class Raced(DeltaHistory):
    """A table that is restored between the writer's look and its commit, `said`; `more`: what comes after that."""

    write = format = mode = partitionBy = options = spark = property(lambda self: self)
    partitionColumns = ["topic", "hour"]

    def __init__(self, said: ArchiveState, *commits: tuple[str, ArchiveState | None], more: int = 0) -> None:
        super().__init__(*commits)
        self.said, self.more, self.asked = said, more, list[str]()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def _detail(self) -> Any:
        return self

    def save(self, _: str) -> None:
        self.commits = (*[("OPTIMIZE", None)] * self.more, ("WRITE", self.said), ("RESTORE", None), *self.commits)

    def sql(self, asked: str) -> Any:
        self.asked.append(asked)
        return self

    collect = offsets_of_rows = dict


@pytest.mark.shows("mended: Delta's RESTORE in the midst of a micro-batch: what it takes back is never archived again")
def test_a_writer_sees_that_the_table_was_set_back_after_it_looked() -> None:
    first = ArchiveState(1, {"t": {"b": {"0": 1}}}, "c1")
    second = first.next({"t": {"b": {"0": 2}}})
    third = second.next({"t": {"b": {"0": 3}}})
    table: Any = Raced(third, ("WRITE", second), ("WRITE", first))
    with pytest.raises(RocketSparkError, match="was set back to an older version while it was written"):
        table.append(table, third, second)
    assert table.asked == []


@pytest.mark.shows("mended: two RESTOREs of Delta, the second while rows alone tell where to go on: as above")
def test_a_writer_who_went_by_rows_sees_it_too() -> None:
    older = ArchiveState(1, {"t": {"b": {"0": 1}}}, "c1")

    def tried(more: int = 0) -> Any:
        table: Any = Raced(older, ("RESTORE", None), ("WRITE", older), more=more)
        after = table._state_of_rows()
        table.said = after.next({"t": {"b": {"0": 2}}})
        return table, after

    table, after = tried()
    with pytest.raises(RocketSparkError, match="was set back to an older version") as raised:
        table.append(table, table.said, after)
    assert may_pass(raised.value)
    assert table.asked == ["RESTORE TABLE delta.`/data/t` TO VERSION AS OF 2"]
    table, after = tried(more=1)
    with pytest.raises(ConfigError, match="others have changed it since: restore it to version 2, and archive again"):
        table.append(table, table.said, after)
    assert table.asked == []
    # One that came before its look is no matter.
    table, after = tried()
    assert table._stands(after)
    table.commits = (("RESTORE", None), *table.commits)
    assert not table._stands(after)


def test_a_table_that_goes_after_a_failed_append_is_not_begun_anew() -> None:
    class Failing(ArchiveTable):
        def __init__(self, *found: ArchiveState | None) -> None:
            self.place, self.found = HERE, list(found)

        def state(self) -> ArchiveState | None:
            return self.found.pop(0)

        def append(self, rows: Any, state: ArchiveState, after: ArchiveState | None = None) -> int:
            raise OSError("no answer")

        exists = read = read_version = compact = check = None  # type: ignore[assignment]
        identity = file_count = _committed = _name = _namespace = None  # type: ignore[assignment]

    target = TableTarget(None, Failing(ArchiveState(4, {"t": {}}), None))  # type: ignore[abstract,arg-type]
    assert target.offsets == {"t": {}}
    with pytest.raises(OSError, match="no answer"):
        target._add(None, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the table /data/t is gone"):
        assert target.offsets
    new = TableTarget(None, Failing(None, None))  # type: ignore[abstract,arg-type]
    assert new.offsets is None
    with pytest.raises(OSError, match="no answer"):
        new._add(None, {})  # type: ignore[arg-type]
    assert new.offsets is None


@pytest.mark.parametrize(
    "at", ["/data/lake/rocketspark/archive", "file:/data/lake/rocketspark/archive", "file:///data/lake/t"]
)
def test_a_table_lies_in_its_warehouse(at: str) -> None:
    place = table_place("iceberg", "/data/lake")
    check_location([("body", "binary"), ("Location", at)], place)
    with pytest.raises(ConfigError, match=r"lies at .*, not in /data/la: give that place"):
        check_location([("Location", at)], table_place("iceberg", "/data/la"))


def test_a_session_knows_one_catalog() -> None:
    class Session:
        def __init__(self) -> None:
            self.conf, self.settings = self, dict[str, str]()

        def get(self, name: str, default: str) -> str:
            return self.settings.get(name, default)

        def set(self, name: str, value: str) -> None:
            self.settings[name] = value

    session: Any = Session()
    assert set_catalog(session, table_place("iceberg", "/a")) == set_catalog(session, table_place("iceberg", "/a"))
    assert session.settings["spark.sql.catalog.rocketspark.uri"] == "jdbc:sqlite:/a/catalog.db"
    with pytest.raises(ConfigError, match=r"has the catalog rocketspark at .*catalog\.db: take a session"):
        set_catalog(session, table_place("iceberg", "/b"))
    with pytest.raises(ConfigError, match=r"at /a: take a session of its own .* for /b"):
        set_catalog(session, table_place("iceberg", "/b", "jdbc:sqlite:/a/catalog.db"))
