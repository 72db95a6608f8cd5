"""A query that takes what is there, under a Spark that ends it early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import call

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import archive, dedupe, sql
from rocketspark.spark.pipelines.parts import streaming
from rocketspark.spark.pipelines.parts.sql_file import SqlPlan, SqlSource
from rocketspark.spark.pipelines.parts.streaming import (
    RUNS_IN_VAIN_MAX,
    SERVERS,
    WantedEnd,
    check_name,
    check_servers,
    default_folder,
    default_name,
    file_name,
)
from rocketspark.tables.options import TRANSACTIONAL_ID

pytestmark = pytest.mark.shows(
    "mended: default names that the writer refuses",
    "limits on 4.0 and 4.1, exact, over restarts; `availableNow` with a limit ends after one micro-batch, "
    "warned once; pipelines repeat until the end noted at their start; what cannot work says so with version "
    "and option",
)


class Query:
    """A query that ended; `ends`: the offset of each source, None without a report."""

    def __init__(self, *ends: dict[str, Any] | None) -> None:
        # Text of Python values, as Spark 4.0 reports it.
        self.lastProgress = {"sources": [{"endOffset": str(end)} for end in ends]} if ends else None


def at(offset: int, topic: str = "orders") -> dict[str, Any]:
    return {topic: {"broker-a": {"0": offset}}, "@start": {topic: {"broker-a": {"0": 0}}}}


@pytest.fixture(autouse=True)
def _old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "ADMISSION_CONTROL", False)


def test_it_is_started_again_until_the_end_noted_at_its_start() -> None:
    wanted = WantedEnd(lambda: at(100), None)
    assert [wanted.is_ahead(Query(at(n))) for n in (40, 80, 100)] == [True, True, False]
    assert not WantedEnd(lambda: at(100), None).is_ahead(Query(at(120)))


def test_a_micro_batch_that_ran_again_is_no_end() -> None:
    wanted = WantedEnd(lambda: at(100), None)
    assert [wanted.is_ahead(query) for query in (Query(), Query(at(40)), Query(at(100)))] == [True, True, False]


def test_what_comes_no_nearer_is_given_up() -> None:
    wanted = WantedEnd(lambda: at(100), None)
    rounds = 0
    while wanted.is_ahead(Query(at(40) | at(rounds, "other"))):
        rounds += 1
    assert rounds == RUNS_IN_VAIN_MAX


def test_topics_of_other_queries_do_not_count() -> None:
    wanted = WantedEnd(lambda: at(100) | at(7, "other"), None)
    assert wanted.is_ahead(Query(at(40)))
    assert not wanted.is_ahead(Query(at(100)))


def test_of_two_sources_of_one_topic_the_later_one_counts() -> None:
    wanted = WantedEnd(lambda: at(100), None)
    assert wanted.is_ahead(Query(at(100), at(60)))
    assert not wanted.is_ahead(Query(at(100), at(100)))


def test_sources_of_other_formats_do_not_count() -> None:
    for other in (12, {"logOffset": 3}, [1, 2], None, -1, "2026-11-21T10:00"):
        wanted = WantedEnd(lambda: at(100), None)
        assert wanted.is_ahead(Query(other, at(40)))  # type: ignore[arg-type]
        assert not wanted.is_ahead(Query(other, at(100)))  # type: ignore[arg-type]


def test_the_batches_of_an_outbox() -> None:
    wanted = WantedEnd(lambda: {"batch": 3}, None)
    assert [wanted.is_ahead(Query({"batch": n})) for n in (1, 2, 3)] == [True, True, False]


def test_nothing_is_asked_where_spark_sees_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, Any]:
        raise AssertionError("the end was asked for")

    assert not WantedEnd(fail, 5.0).is_ahead(Query(at(40)))
    monkeypatch.setattr(streaming, "ADMISSION_CONTROL", True)
    assert not WantedEnd(fail, None).is_ahead(Query(at(40)))


LONG = "t" * 120


def test_a_name_that_is_taken_stays_as_it_is() -> None:
    assert default_name("dedupe-orders-orders_once") == "dedupe-orders-orders_once"
    assert default_folder("dedupe-a,b-c") == "dedupe-a,b-c"
    assert file_name("orders", "%RETRY%g") == "orders-_RETRY_g"


@pytest.mark.parametrize("text", ["dedupe-a,b-c", "outbox-public.orders", f"dedupe-{LONG}-x", "dedupe-%DLQ%g-ü", ""])
def test_other_names_are_made_ones_that_the_writer_takes(text: str) -> None:
    made = default_name(text)
    assert TRANSACTIONAL_ID.fullmatch(made)
    assert made != default_name(text + "y")


def test_folders_and_files_of_long_names_can_be_made() -> None:
    assert len(default_folder(f"dedupe-{LONG}-{LONG}").encode()) <= 200
    assert len(file_name(LONG, LONG).encode()) <= 120
    assert file_name(LONG, LONG) != file_name(LONG, LONG + "x")


def test_a_name_that_the_writer_refuses_is_told_as_an_option_of_the_command() -> None:
    assert check_name("a,b", "at-least-once") == "a,b"
    with pytest.raises(ConfigError, match="--name is 'a,b'"):
        check_name("a,b", "exactly-once")


@pytest.mark.shows(
    "mended: the places of `dedupe`, `sql` and `archive` did not tell one cluster's topics from another's"
)
def test_a_place_tells_of_which_servers_its_streams_are(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    check_servers(place, {"orders": "a:1;b:1"})
    read_into(place)
    check_servers(place, {"orders": "B:1;C:1", "bills": "x:1"})
    with pytest.raises(ConfigError, match=r"a read of orders at b:1;c:1, and this is one at a:1: .* remove .*servers"):
        check_servers(place, {"orders": "a:1"})
    # Nothing was noted of it, and a stream that is left out keeps its note.
    check_servers(place, {"bills": "x:1;a:1"})
    with pytest.raises(ConfigError, match="orders at b:1;c:1"):
        check_servers(place, {"orders": "a:1"})
    (tmp_path / "place" / SERVERS).unlink()
    check_servers(place, {"orders": "a:1"})


def read_into(place: str) -> None:
    """Have a place look as if a stream had been read into it."""
    offsets = Path(place) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("{}")


@pytest.mark.shows(
    "mended: a wrong NameServer at the first start of a pipeline had the next start, with the right one, refused"
)
def test_a_place_that_nothing_was_read_into_is_of_no_cluster_yet(tmp_path: Path) -> None:
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for name in ("metadata", ".metadata.crc", "lock", "catalog.db"):
        (tmp_path / name).write_text("1")
    for servers in ("mistyped:1", "a:1"):
        check_servers(tmp_path, {"orders": servers})
    (tmp_path / "offsets" / "0").write_text("{}")
    with pytest.raises(ConfigError, match="orders at a:1, and this is one at mistyped:1"):
        check_servers(tmp_path, {"orders": "mistyped:1"})


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (("dedupe", "one", "two"), "dedupe-one-two.checkpoint"),
        (("dedupe", "one", "two", "--checkpoint", "given"), "given"),
        (("sql", "totals.yaml"), "totals.yaml.checkpoints"),
        (("sql", "totals.yaml", "--checkpoint", "given"), "given"),
    ],
)
def test_a_command_refuses_the_place_of_another_cluster(
    command: tuple[str, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("totals.yaml").write_text(
        "sources: [{name: one, topic: one, stream: true}]\nsinks: [{name: two, from: one, topic: two}]\n"
    )
    check_servers(place, {"one": "127.0.0.1:1"})
    read_into(place)
    told = call("pipeline", *command, "--namesrv", "127.0.0.1:2")
    assert told.exit_code == 1
    assert f"{place} is the place of a read of one at 127.0.0.1:1, and this is one at 127.0.0.1:2" in told.told


NO_SPARK: Any = None


def test_a_program_is_refused_as_a_command_is(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "_archive"):
        check_servers(f"file://{place}", {"one": "127.0.0.1:1"})
        read_into(str(place))
    plan = SqlPlan("p", [SqlSource(name="one", topic="one", stream=True)], [], [])
    with pytest.raises(ConfigError, match="give another --checkpoint"):
        sql.run(NO_SPARK, plan, "127.0.0.1:2", checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="give another --checkpoint"):
        dedupe.run(NO_SPARK, "127.0.0.1:2", "one", "two", checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="give another --to"):
        archive.run(NO_SPARK, "127.0.0.1:2", ["zero", "one"], tmp_path)


@pytest.mark.shows("mended: a checkpoint on the disk of a Spark Connect server was made on the client's, or refused")
def test_nothing_is_noted_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "place"):
        check_servers(place, {"one": "127.0.0.1:1"})
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_nothing_is_noted_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_servers("s3a://lake/place", {"one": "127.0.0.1:1"})
    assert not list(tmp_path.iterdir())
