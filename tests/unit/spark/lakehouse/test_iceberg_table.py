"""What the snapshots of an Iceberg archive say of how far it is written, and what a rollback changes: without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import Row

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.lakehouse.iceberg_table import IcebergTable
from rocketspark.spark.lakehouse.table import PROPERTY, ArchiveState, decode_state, table_place
from rocketspark.spark.pipelines.parts.archive_batches import may_pass
from rocketspark.tables.offset_ranges import tells_namespace


class IcebergHistory(IcebergTable):
    """A table of which only snapshots are known. `current`: the ids of those that were current, the newest first, of
    which those of `rows` count.
    """

    def __init__(self, current: list[int], *rows: Row) -> None:
        self.place, self.catalog, self.spark = table_place("iceberg", "/x"), "c", self  # type: ignore[assignment]
        self.current, self.rows, self.asked = current, rows, list[str]()

    def _snapshots(self) -> list[Any]:
        return list(self.rows)

    def sql(self, asked: str) -> Any:
        self.asked.append(asked)
        return self

    def collect(self) -> list[Any]:
        return [Row(snapshot_id=one) for one in self.current]


def snapshot(number: int, said: ArchiveState | None, parent: int = 0, **summary: str) -> Row:
    words = {PROPERTY: said.encoded(), "wap.id": f"rocketspark-archive-{said.sequence}"} if said else {}
    return Row(
        snapshot_id=number, parent_id=parent, summary=words | {k.replace("_", "-"): v for k, v in summary.items()}
    )


def test_a_published_commit_whose_words_expired_does_not_hand_over_to_an_older_one() -> None:
    older = snapshot(5, ArchiveState(3, {"t": {"b": {"0": 3}}}, "c3"))
    published = snapshot(8, None, source_snapshot_id="7", published_wap_id="rocketspark-archive-4")
    assert IcebergHistory([8, 5], published, older)._committed() is None


FIRST = ArchiveState(1, {"t": {"b": {"0": 1}}}, "c1")
SECOND = FIRST.next({"t": {"b": {"0": 2}}})
THIRD = SECOND.next({"t": {"b": {"0": 3}}})


@pytest.mark.shows("mended: an Iceberg archive passes rows over that a rollback took back as its commit was published")
def test_what_a_rollback_took_back_is_not_said_to_be_there() -> None:
    rows = [snapshot(1, FIRST), snapshot(2, SECOND, 1), snapshot(3, THIRD, 2)]
    again = snapshot(4, SECOND.next({"t": {"b": {"0": 4}}}), 2)
    for current, wanted in (
        ([3, 2, 1], THIRD),
        ([2, 1], SECOND),
        # Back to the first one, and that taken back too.
        ([3, 1, 3, 2, 1], THIRD),
        ([4, 2, 2, 1], decode_state(again.summary[PROPERTY], table_place("iceberg", "/x"))),
    ):
        table = IcebergHistory(current, *rows, again)
        assert table._committed() == wanted
        assert not any("rollback" in asked for asked in table.asked)


@pytest.mark.parametrize("staged", [False, True])
def test_a_commit_whose_forerunner_was_rolled_back_is_taken_back(staged: bool) -> None:
    rows = [snapshot(1, FIRST), snapshot(2, SECOND, 1), snapshot(3, THIRD, 2)]
    rows += [snapshot(5, None, 1, source_snapshot_id="3", published_wap_id="rocketspark-archive-3")]
    if not staged:
        rows[2:] = [snapshot(5, THIRD, 1)]
    table = IcebergHistory([5, 1, 1], *rows)
    assert table._committed() == FIRST
    assert table.asked[-1] == "CALL c.system.rollback_to_snapshot('c.rocketspark.archive', 1)"
    # Nobody else's changes are taken back with it.
    others = IcebergHistory([6, 5, 1], *rows, snapshot(6, None, 5))
    with pytest.raises(ConfigError, match="taken back while commit 3 was written, and others have changed it since"):
        others._committed()
    assert not any("rollback" in asked for asked in others.asked)


@pytest.mark.parametrize(
    "kind", ["INCOMPATIBLE_DATA_FOR_TABLE.EXTRA_COLUMNS", "INSERT_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_COLUMNS"]
)
def test_a_column_that_goes_while_it_is_written_is_told_in_one_line(kind: str) -> None:
    class Changed(IcebergHistory):
        conf = writeTo = option = set = unset = property(lambda self: self)

        def __call__(self, *_: Any) -> Any:
            return self

        def append(self) -> None:  # type: ignore[override]
            raise AnalysisException(f"[{kind}] Cannot write to `rocketspark`, the reason is\nTable columns: `topic`")

    table = Changed([])
    rows: Any = table
    with pytest.raises(ConfigError, match="were changed while it was written: archive again"):
        table._append(rows, THIRD, SECOND)


def test_a_writer_sees_that_the_table_was_rolled_back_after_it_looked() -> None:
    class Raced(IcebergHistory):
        """A rollback comes between the writer's look and the publication."""

        conf = writeTo = option = append = set = unset = property(lambda self: self)

        def __call__(self, *_: Any) -> Any:
            return self

        def _check_follows(self, state: ArchiveState, after: ArchiveState | None) -> None:
            self.current = [5, 1, 1]

        def _publish(self, snapshot_id: int) -> None:
            self.rows = (*self.rows[:2], snapshot(5, THIRD, 1))

    table = Raced([2, 1], snapshot(1, FIRST), snapshot(2, SECOND, 1), snapshot(3, THIRD, 2))
    rows: Any = table
    with pytest.raises(RocketSparkError, match="was set back to an older version") as raised:
        table._append(rows, THIRD, SECOND)
    assert may_pass(raised.value)


def test_rows_that_are_gone_since_they_were_looked_at_are_archived_again() -> None:
    class Rows(IcebergHistory):
        def offsets_of_rows(self, topics: Any = ()) -> dict[str, Any]:
            return {"t": {"b": {"0": 2}}, "@made": {"t": {"b": 99}}}

    known: dict[str, Any] = {"t": {"b": {"0": 2}}}
    for commit in ("", "c1"):
        Rows([])._check_follows(ArchiveState(9, {}), ArchiveState(8, known, commit))
    with pytest.raises(ConfigError, match="another process writes"):
        Rows([])._check_follows(ArchiveState(9, {}), ArchiveState(8, {"t": {"b": {"0": 1}}}))
    with pytest.raises(RocketSparkError, match="was set back to an older version"):
        Rows([])._check_follows(ArchiveState(9, {}), ArchiveState(8, {"t": {"b": {"0": 3}}}))


def test_rows_do_not_tell_of_a_namespace_and_no_rows_are_no_state() -> None:
    class Rows(IcebergHistory):
        found: dict[str, Any] = {}
        namespace: str | None = None

        def _namespace(self) -> str | None:
            return self.namespace

        def offsets_of_rows(self, topics: Any = ()) -> dict[str, Any]:
            return self.found

    table = Rows([])
    assert table._state_of_rows() is None
    table.found = {"t": {"b": {"0": 2}}, "@made": {"t": {"b": 99}}}
    state = table._state_of_rows()
    assert state is not None
    assert state.offsets == {**table.found, "@namespace": None}
    assert not tells_namespace(state.offsets, "one", fail=True)
    # But the table does.
    table.namespace = "two"
    state = table._state_of_rows()
    assert state is not None
    with pytest.raises(ConfigError, match="topics of namespace 'two' were read up to here, and the options name 'one'"):
        tells_namespace(state.offsets, "one", fail=True)


def test_a_table_is_told_its_namespace_once(caplog: pytest.LogCaptureFixture) -> None:
    class Properties(IcebergHistory):
        there: dict[str, str] = {}
        error: Exception = AnalysisException("may not be changed\nby you")

        def sql(self, asked: str) -> Any:
            super().sql(asked)
            if not asked.startswith("SHOW TBLPROPERTIES"):
                raise self.error
            return self

        def collect(self) -> list[Any]:
            return [Row(key=key, value=value) for key, value in self.there.items()]

    table = Properties([])
    table.note_namespace({"@namespace": "it's"})
    noted = {"rocketspark.namespace": "69742773"}
    assert table.asked[-1] == "ALTER TABLE c.rocketspark.archive SET TBLPROPERTIES ('rocketspark.namespace'='69742773')"
    assert "does not tell of which namespace its topics are: may not be changed" in caplog.text
    # What others commit at the same time is an error of Java alone.
    table.error = Py4JError("CommitFailedException")
    table.note_namespace({"@namespace": "it's"})
    assert "its topics are: CommitFailedException" in caplog.text
    # Nothing in which Spark would find a word that it hides, and what a person wrote counts too.
    for there in (noted["rocketspark.namespace"], "it's"):
        table.there, table.asked = {"rocketspark.namespace": there}, []
        table.note_namespace({"@namespace": "it's"})
        assert table.asked == ["SHOW TBLPROPERTIES c.rocketspark.archive"]
    table.there, table.asked = {"rocketspark.namespace": ""}, []
    table.note_namespace({"t": {}})
    assert table.asked == ["SHOW TBLPROPERTIES c.rocketspark.archive"]
