"""`pipeline outbox`: rows of a table reach the topic once each, however late they come, whatever is started again."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.spark.standalone import until
from tests.spark.topics import messages_of
from tests.support import postgres

from rocketspark.cli.main import run as cli
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.pipelines import outbox
from rocketspark.spark.pipelines.options import OutboxOptions
from rocketspark.spark.pipelines.outbox import Columns, TableReader, message_of
from rocketspark.spark.pipelines.parts.outbox_claims import RowClaims, reading
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`outbox`: rows of a table, SQLite and PostgreSQL, exactly once")

TABLE = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, kind VARCHAR(9), customer VARCHAR(9), payload VARCHAR(99),"
    " extra VARCHAR(99))"
)
COLUMNS = Columns(body="payload", tag="kind", keys="customer", sharding_key="customer", properties="extra")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL server."""
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with an empty table `orders`."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
        execute(url, TABLE)
        yield url
    else:
        url = request.getfixturevalue("server")
        execute(url, TABLE)
        yield url
        execute(url, "DROP TABLE orders")
        execute(url, "DROP TABLE IF EXISTS rocketspark_claims")
        execute(url, "DROP TABLE IF EXISTS rocketspark_refused")
        execute(url, "DROP TABLE IF EXISTS rocketspark_claimed_by")


def execute(url: str, text: str, *rows: tuple[Any, ...]) -> list[Any]:
    """Execute a statement, once for each row of values; what it selects."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for row in rows or ((),):
                cursor = connection.execute(text, row)
            return cursor.fetchall()
    with psycopg.connect(url) as connection:
        for row in rows or ((),):
            cursor = connection.execute(text.replace("?", "%s"), row)
        return cursor.fetchall() if cursor.description else []


def insert(url: str, *ids: int) -> None:
    rows = [(i, "ab"[i % 2], f"c{i % 3}", f"order {i}", json.dumps({"n": i}) if i % 2 else None) for i in ids]
    execute(url, "INSERT INTO orders VALUES (?, ?, ?, ?, ?)", *rows)


def sent(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        (m.body.decode(), m.tag, tuple(m.keys), m.properties.get("__SHARDINGKEY"), m.properties.get("n"))
        for m in messages_of(cluster.namesrv, topic)
    )


def wanted(*ids: int) -> list[tuple[Any, ...]]:
    return sorted((f"order {i}", "ab"[i % 2], (f"c{i % 3}",), f"c{i % 3}", str(i) if i % 2 else None) for i in ids)


def test_each_row_once_whatever_its_id(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path, database: str
) -> None:
    topic = make_topic()
    given: dict[str, Any] = {"database": database, "table": "orders", "checkpoint": tmp_path / "c", "columns": COLUMNS}
    options = OutboxOptions(topic=topic, name=topic)
    insert(database, 10, 11, 12, 13, 14)
    first = outbox.run(spark, cluster.namesrv, options=options._replace(batch_rows=2), **given)
    assert (first.rows, first.batches, first.waiting) == (5, 3, 0)
    # Rows with ids below those sent: of transactions that ended later.
    insert(database, 3, 12345)
    again = outbox.run(spark, cluster.namesrv, options=options, **given)
    assert (again.rows, again.waiting) == (2, 0)
    assert outbox.run(spark, cluster.namesrv, options=options, **given).rows == 0
    assert sent(cluster, topic) == wanted(10, 11, 12, 13, 14, 3, 12345)
    assert len(execute(database, "SELECT id FROM orders")) == 7


def test_rows_are_deleted_once_they_are_sent(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path, database: str
) -> None:
    topic = make_topic()
    given: dict[str, Any] = {"database": database, "table": "orders", "checkpoint": tmp_path / "c", "columns": COLUMNS}
    options = OutboxOptions(topic=topic, name=topic, delete=True)
    insert(database, 1, 2, 3)
    assert outbox.run(spark, cluster.namesrv, options=options._replace(batch_rows=2), **given).rows == 3
    assert execute(database, "SELECT id FROM orders") == []
    # Ids that come again after their rows were deleted are new rows.
    insert(database, 1, 2, 4)
    assert outbox.run(spark, cluster.namesrv, options=options, **given).rows == 3
    assert sent(cluster, topic) == wanted(1, 1, 2, 2, 3, 4)


def test_the_command_sends_whole_rows(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic()
    url = f"sqlite:///{tmp_path}/shop.db"
    execute(url, "CREATE TABLE things (name TEXT PRIMARY KEY, price REAL, picture BLOB)")
    execute(url, "INSERT INTO things VALUES (?, ?, ?)", ("Käse", 2.5, b"\x00\x01"), ("tea", None, None))
    common = ["pipeline", "outbox", "-d", url, "-t", topic, "-n", cluster.namesrv, "--checkpoint", f"{tmp_path}/c"]
    assert cli([*common, "--table", "things", "--key", "name", "--name", topic, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["table"], told["topic"], told["rows"], told["waiting"]) == ("things", topic, 2, 0)
    bodies = [json.loads(m.body) for m in messages_of(cluster.namesrv, topic)]
    assert sorted(bodies, key=lambda row: row["name"]) == [
        {"name": "Käse", "price": 2.5, "picture": "AAE="},
        {"name": "tea", "price": None, "picture": None},
    ]
    for arguments, error in (
        (["--table", "nowhere"], "there is no table 'nowhere' in sqlite:///"),
        (["--table", "things"], "table things has no column 'id'; it has: name, price, picture"),
        (["--table", "things", "--key", "name", "--tag-column", "colour"], "no column 'colour' for tag"),
        (["--table", "th;ngs"], "table 'th;ngs': a letter"),
    ):
        assert cli([*common, *arguments]) == 1
        assert error in capsys.readouterr().err


def test_claims_never_change(tmp_path: Path, database: str) -> None:
    claims, other = (RowClaims(database, "orders", "id", name) for name in ("one", "other"))
    claims.create()
    assert claims.claim(2) == 0
    insert(database, 5, 6, 7)
    assert [claims.claim(2), claims.claim(2), claims.claim(2)] == [1, 2, 2]
    insert(database, 1)
    assert (claims.waiting(), other.waiting()) == (1, 4)
    assert claims.claim(2) == 3
    assert [row.columns["id"] for row in claims.rows(0, 2)] == [5, 6, 7]
    assert [row.columns["id"] for row in claims.rows(1, 3)] == [7, 1]
    assert other.claim(10) == 1
    assert [row.columns["id"] for row in other.rows(0, 1)] == [1, 5, 6, 7]
    execute(database, "DELETE FROM orders WHERE id = 6")
    with pytest.raises(ConfigError, match="1 rows of table orders are gone that pipeline 'one'"):
        claims.rows(0, 1)
    assert claims.delete(2) == 2
    assert [row.columns["id"] for row in claims.rows(2, 3)] == [1]
    assert (claims.newest(), claims.delete(3), claims.newest()) == (3, 1, 3)
    # An id that comes again after its row was deleted is a new row.
    insert(database, 1)
    assert claims.claim(5) == 4
    assert [row.columns["id"] for row in claims.rows(3, 4)] == [1]
    claims.close()
    other.close()


@pytest.mark.shows("mended: two runs of `outbox` under one name: rows of one join a batch that the other sent")
def test_a_batch_gets_no_rows_of_another_who_claims_at_the_same_time(database: str) -> None:
    one, other = (RowClaims(database, "orders", "id", "twice") for _ in range(2))
    one.create()
    one.columns()
    one.hold()
    insert(database, 1, 2, 3)
    newest = other._newest

    def beaten(connection: Any) -> int:
        """The first one claims, and sends what it claimed, while the other one knows which batch is the newest."""
        found = newest(connection)
        first.start()
        until(lambda: not first.is_alive() or waits(database))
        return found

    first = threading.Thread(target=one.claim, args=(2,))
    other._newest = beaten  # type: ignore[method-assign]
    assert other.claim(1) == 1
    first.join()
    assert one.newest() == 2
    assert [[row.columns["id"] for row in one.rows(n, n + 1)] for n in (0, 1)] == [[1], [2, 3]]
    one.close()
    other.close()


def waits(url: str) -> bool:
    """Whether somebody waits for a lock; of SQLite all do who come second."""
    asked = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return url.startswith("sqlite") or bool(execute(url, asked)[0][0])


@pytest.mark.shows(
    "mended: `outbox` under the name of another table's, or by another key, passes rows over or repeats them"
)
def test_a_name_is_of_one_table_and_key(database: str) -> None:
    def claims(table: str, key: str, name: str = "shop") -> RowClaims:
        made = RowClaims(database, table, key, name)
        made.create()
        made.columns()
        return made

    execute(database, "CREATE TABLE bills (id INTEGER PRIMARY KEY, code VARCHAR(9))")
    try:
        for _ in range(2):
            claims("orders", "id").hold()
        claims("ORDERS", "ID").hold()
        claims("bills", "id", "bills").hold()
        schema = "main" if database.startswith("sqlite") else "public"
        claims(f"{schema}.orders", "id").hold()
        for table, key in (("bills", "id"), ("orders", "customer")):
            with pytest.raises(ConfigError, match=r"'shop' sends rows of table orders by their id.*another --name"):
                claims(table, key).hold()
    finally:
        execute(database, "DROP TABLE bills")


def test_a_row_that_was_changed_after_it_was_sent_stops_nothing(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The driver was killed before Spark noted the batch: it comes again, and a row of it says something else."""
    topic, url, where = make_topic(), f"sqlite:///{tmp_path}/shop.db", tmp_path / "c"
    execute(url, TABLE)
    insert(url, 1, 2)
    given: dict[str, Any] = {"database": url, "table": "orders", "checkpoint": where, "columns": COLUMNS}
    options = OutboxOptions(topic=topic, name=topic)
    assert outbox.run(spark, cluster.namesrv, options=options, **given).rows == 2
    for note in (where / "commits").iterdir():
        note.unlink()
    execute(url, "UPDATE orders SET payload = 'changed' WHERE id = 1")
    insert(url, 3)
    outbox.run(spark, cluster.namesrv, options=options, **given)
    assert sent(cluster, topic) == wanted(1, 2, 3)


@pytest.mark.shows("mended: a pipeline killed, or out of disk, in the midst of its checkpoint's first note never began")
def test_a_first_note_that_was_not_finished_stops_nothing(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, url, offsets = make_topic(), f"sqlite:///{tmp_path}/shop.db", tmp_path / "c" / "offsets"
    execute(url, TABLE)
    insert(url, 1, 2)
    offsets.mkdir(parents=True)
    unfinished = offsets / ".0.02570c16-8e11-4e4b-916d-e567c8dccd71.tmp"
    unfinished.write_bytes(b"")
    given: dict[str, Any] = {"database": url, "table": "orders", "checkpoint": tmp_path / "c", "columns": COLUMNS}
    outbox.run(spark, cluster.namesrv, options=OutboxOptions(topic=topic, name=topic), **given)
    assert sent(cluster, topic) == wanted(1, 2)


@pytest.mark.shows("mended: `outbox` passes rows over after its database was set back")
def test_a_database_that_is_older_than_the_checkpoint_is_refused(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, file = make_topic(), tmp_path / "shop.db"
    url = f"sqlite:///{file}"
    execute(url, TABLE)
    given: dict[str, Any] = {"database": url, "table": "orders", "checkpoint": tmp_path / "c", "columns": COLUMNS}
    options = OutboxOptions(topic=topic, name=topic)
    insert(url, 1)
    outbox.run(spark, cluster.namesrv, options=options, **given)
    copy = file.read_bytes()
    insert(url, 2)
    outbox.run(spark, cluster.namesrv, options=options, **given)
    file.write_bytes(copy)
    insert(url, 3)
    with pytest.raises(ConfigError, match=r"has sent 2 batches of rows, and the database knows of 1: it is an older"):
        outbox.run(spark, cluster.namesrv, options=options, **given)
    assert execute(url, "SELECT max(batch) FROM rocketspark_claims") == [(1,)]


@pytest.mark.shows("mended: `outbox --delete` deletes rows that another run of the same name claimed and did not send")
@pytest.mark.parametrize("planned", [False, True])
def test_rows_that_others_claimed_are_not_deleted(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planned: bool,
) -> None:
    """`planned`: the other run has noted the offsets of its micro-batch in the checkpoint too."""
    topic, url = make_topic(), f"sqlite:///{tmp_path}/shop.db"
    execute(url, TABLE)
    given: dict[str, Any] = {"database": url, "table": "orders", "checkpoint": tmp_path / "c", "columns": COLUMNS}
    options = OutboxOptions(topic=topic, name=topic, delete=True)
    insert(url, 1, 2)
    run_query = outbox.run_query

    def run(*arguments: Any, **named: Any) -> Any:
        outcome = run_query(*arguments, **named)
        insert(url, 3)
        other = RowClaims(url, "orders", "id", topic)
        assert other.claim(10) == 2
        other.close()
        if planned:
            offsets = tmp_path / "c" / "offsets"
            (offsets / "1").write_text((offsets / "0").read_text().replace('{"batch": 1}', '{"batch": 2}'))
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "run_query", run)
        assert outbox.run(spark, cluster.namesrv, options=options, **given).rows == 2
    assert execute(url, "SELECT id FROM orders") == [(3,)]
    assert outbox.run(spark, cluster.namesrv, options=options, **given).rows == 1
    assert sent(cluster, topic) == wanted(1, 2, 3)
    assert execute(url, "SELECT id FROM orders") == []


def test_a_batch_that_was_claimed_before_a_kill_is_the_next_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    execute(url, TABLE)
    claims = RowClaims(url, "orders", "id", "p")
    claims.create()
    insert(url, 1, 2, 3)
    assert claims.claim(2) == 1
    options = {"database": url, "table": "orders", "key": "id", "name": "p", "batchrows": "10", "columns": "{}"}
    reader = TableReader({**options, "delete": "false"})
    limit = reader.getDefaultReadLimit()
    assert reader.initialOffset() == {"batch": 0}
    assert reader.latestOffset({"batch": 0}, limit) == {"batch": 1}
    assert reader.latestOffset({"batch": 1}, limit) == {"batch": 2}
    assert reader.latestOffset({"batch": 2}, limit) == {"batch": 2}
    [part] = reader.partitions({"batch": 0}, {"batch": 2})
    bodies = [json.loads(body) for batch in reader.read(part) for body in batch["body"].to_pylist()]
    assert [row["id"] for row in bodies] == [1, 2, 3]
    claims.close()


@pytest.mark.shows("mended: `outbox` passes rows over if its database is set back while it runs")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_database_that_is_set_back_beneath_a_run_is_refused(tmp_path: Path, at_once: bool) -> None:
    file = tmp_path / "shop.db"
    url = f"sqlite:///{file}"
    execute(url, TABLE)
    claims = RowClaims(url, "orders", "id", "p")
    claims.create()
    insert(url, 1, 2)
    assert claims.claim(1) == 1
    claims.close()
    replica = file.read_bytes()
    options = {"database": url, "table": "orders", "key": "id", "name": "p", "batchrows": "1", "columns": "{}"}
    reader = TableReader({**options, "delete": "false"})
    limit = reader.getDefaultReadLimit()
    insert(url, 3)
    if at_once:
        reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"batch": 1}, limit) == {"batch": 2}
    assert reader.latestOffset({"batch": 2}, limit) == {"batch": 3}
    # A replica takes over that has not got the last two batches; and then rows come that never were anywhere.
    file.write_bytes(replica)
    insert(url, 4)
    with pytest.raises(ConfigError, match=r"'p' has sent 3 batches of rows, and the database knows of [12]: it is an"):
        reader.latestOffset({"batch": 3}, limit)


ODD_KEYS: list[tuple[str, str, list[Any]]] = [
    ("sqlite", "REAL", [1763690000.123456, 1763690000.123457, 0.3, 0.30000000000000004, float("inf"), -1.0]),
    (
        "sqlite",
        "TEXT",
        ["", "a", "A", "a\x00b", "a\x00c", "\x01", "\x01\x01", "1", "01", *("k" * 600 + c for c in "xyz")],
    ),
    ("sqlite", "", [1, "1", "01", "x", b"x", 1.5, "1.5", b"\xff\x00"]),
    ("sqlite", "BLOB", [b"a\x00b", b"a\x00c", b"", "", 7, "7"]),
    ("sqlite", "INTEGER", [1, -1, 0, 2**62]),
    (
        "postgresql",
        "TEXT",
        ["", "a", "A", "\x01", "\x01\x01", "1", *("k" * 600 + c for c in "xyz"), "k" * 499, "k" * 500],
    ),
    ("postgresql", "DOUBLE PRECISION", [1763690000.123456, 1763690000.123457, 0.3, 0.30000000000000004, float("inf")]),
    ("postgresql", "BYTEA", [b"a\x00b", b"a\x00c", b""]),
]


@pytest.mark.shows("mended: `outbox` compares keys as VARCHAR(500)")
@pytest.mark.parametrize(("database", "kind", "keys"), ODD_KEYS, indirect=["database"])
def test_each_key_is_its_own(database: str, kind: str, keys: list[Any]) -> None:
    execute(database, f"CREATE TABLE odd (k {kind} UNIQUE, v INTEGER)")
    try:
        claims = RowClaims(database, "odd", "k", "p", "v")
        claims.create()
        # One at a time, so that each is compared with all that were claimed before.
        for number, key in enumerate(keys, 1):
            execute(database, "INSERT INTO odd VALUES (?, ?)", (key, number))
            assert claims.claim(10) == number
            assert [row.columns["v"] for row in claims.rows(number - 1, number)] == [number]
        assert [row.columns["v"] for row in claims.rows(0, len(keys))] == list(range(1, len(keys) + 1))
        assert claims.claim(10) == len(keys)
        # What is deleted is what was claimed, and nothing that came since.
        execute(database, "DELETE FROM odd WHERE v > 2")
        execute(database, "DELETE FROM rocketspark_claims WHERE batch > 2")
        execute(database, "INSERT INTO odd VALUES (?, ?)", *((key, n) for n, key in enumerate(keys[2:], 3)))
        assert claims.delete(2) == 2
        assert sorted(execute(database, "SELECT v FROM odd")) == [(n,) for n in range(3, len(keys) + 1)]
        claims.close()
    finally:
        execute(database, "DROP TABLE odd")


@pytest.mark.shows("mended: `outbox` with a table or column whose name is a word of SQL")
def test_names_may_be_words_of_sql(database: str) -> None:
    execute(database, 'CREATE TABLE "order" ("group" INTEGER PRIMARY KEY, "select" INTEGER)')
    try:
        execute(database, 'INSERT INTO "order" VALUES (?, ?)', (1, 9), (2, 8))
        claims = RowClaims(database, "order", "group", "words", "select")
        claims.create()
        assert claims.columns() == ["group", "select"]
        assert claims.waiting() == 2
        assert claims.claim(10) == 1
        assert [row.columns["group"] for row in claims.rows(0, 1)] == [2, 1]
        assert claims.delete(1) == 2
        claims.close()
        mixed = RowClaims(database, "Words", "group", "words")
        with pytest.raises(ConfigError, match="no table 'Words'"):
            mixed.columns()
        mixed.close()
    finally:
        execute(database, 'DROP TABLE "order"')


def test_names_have_the_capitals_that_the_database_has(database: str) -> None:
    """ORMs make them; those who type them may leave them out."""
    execute(database, 'CREATE TABLE "Sales" ("Id" INTEGER PRIMARY KEY, "Order" INTEGER, "Note" VARCHAR(9))')
    try:
        execute(database, 'INSERT INTO "Sales" VALUES (?, ?, ?)', (1, 9, "a"), (2, 8, "b"))
        for number, (key, order) in enumerate((("Id", "Order"), ("id", "ORDER"))):
            claims = RowClaims(database, "Sales", key, f"p{number}", order)
            claims.create()
            assert claims.columns() == ["Id", "Order", "Note"]
            assert (claims.key, claims.order, claims.waiting(), claims.claim(10)) == ("Id", "Order", 2, 1)
            # As an executor has it, by the names that were found.
            again = RowClaims(database, claims.table, claims.key, f"p{number}", claims.order)
            assert [row.columns for row in again.rows(0, 1, ["Note"])] == [{"Note": "b"}, {"Note": "a"}]
            claims.close()
            again.close()
    finally:
        execute(database, 'DROP TABLE "Sales"')


BEYOND = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "294276-12-31"],
    "timestamp": ["infinity", "0044-03-15 00:00:00 BC"],
    "timestamptz": ["infinity", "-infinity", "294276-12-31 00:00:00+00"],
    "time": ["24:00:00"],
    "interval": ["178000000 years"],
    "numeric": ["NaN", "Infinity", "1e300"],
    "jsonb": ["[" * 3000 + "]" * 3000, "1" + "0" * 5000],
    "date[]": ["{infinity,2026-01-01}"],
    "daterange": ["[2026-01-01,infinity)"],
}


@pytest.mark.shows("PostgreSQL's types at their limits in `pipeline outbox`")
def test_no_value_of_a_table_stops_its_rows(server: str) -> None:
    """Each type of PostgreSQL at its limits: what Python has no value for is the database's own text."""
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(BEYOND))
    execute(server, f"CREATE TABLE beyond (id serial PRIMARY KEY, {columns})")
    try:
        for n, (kind, values) in enumerate(BEYOND.items()):
            execute(server, f"INSERT INTO beyond (c{n}) VALUES (CAST(? AS {kind}))", *((value,) for value in values))
        claims = RowClaims(server, "beyond", "id", "beyond")
        claims.create()
        assert claims.claim(100) == 1
        found = [message_of(row.columns, {})["body"] for row in claims.rows(0, 1)]
        assert len(found) == sum(map(len, BEYOND.values()))
        # JSON stands in the body as it is, too deep for Python's reader.
        assert [len(body) > 6000 for body in found if b"[[[" in body] == [True]
        told = [{} if b"[[[" in body else json.loads(body, parse_int=str) for body in found]
        assert [told[0]["c0"], told[2]["c0"]] == ["infinity", "0044-03-15 BC"]
        assert [row["c3"] for row in told if row.get("c3")] == ["24:00:00"]
        assert [row["c7"] for row in told if row.get("c7")] == [["infinity", "2026-01-01"]]
        claims.close()
    finally:
        for table in ("beyond", "rocketspark_claims", "rocketspark_refused"):
            execute(server, f"DROP TABLE IF EXISTS {table}")


# Of each type its limits; those whose values PostgreSQL would write otherwise are compared as it writes them.
KEPT = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["3.4028235e38", "-1e-45", "0.1", "16777217", "NaN", "Infinity", "-0"],
    "double precision": ["1.7976931348623157e308", "5e-324", "0.1", "9007199254740993", "NaN", "-Infinity"],
    "numeric": ["1.10", "1e300", "-1e-300", "12345678901234567890.12345678901234567890", "NaN", "-Infinity"],
    "money": ["-92233720368547758.08"],
    "text": ["", " ", 'é\u2028\U0001f600"\\/', "null"],
    "char(3)": ["a"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "date": ["0001-01-01", "9999-12-31", "4713-01-01 BC", "5874897-12-31", "-infinity"],
    "time": ["24:00:00", "23:59:59.999999", "00:00:00"],
    "timetz": ["24:00:00-15:59", "00:00:00.000001+15:59"],
    "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999", "infinity"],
    "timestamptz": ["0001-01-01 00:00:00+14", "9999-12-31 23:59:59.999999-12", "4713-01-01 00:00:00+00 BC", "infinity"],
    "interval": ["1 mon", "-1 day", "1 year 2 mons -3 days 04:05:06.000001", "178000000 years", "00:00:00"],
    "json": ['{"b": 1e400, "a": 1.10, "b": [12345678901234567890.123456789]}', '[1.0, null, "x"]'],
    "jsonb": ['{"a": 12345678901234567890.123456789, "b": {"c": 1.10}}', "1e5", "true"],
    "inet": ["::1/64", "10.0.0.1", "10.0.0.1/8"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit varying": ["", "101"],
    "point": ["(1.1,-1e300)"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "int4range": ["[1,10)", "empty", "(,5)"],
    "numrange": ["[1.10,)"],
    "daterange": ["[2026-01-01,infinity)"],
    "tstzrange": ["[2026-01-01 00:00:00+00,2026-01-02 00:00:00.000001+00)"],
    "int8multirange": ["{[1,3),[5,8)}"],
    "tsvector": ["'a':1 'b c':2"],
    "pg_lsn": ["16/B374D848"],
}


@pytest.mark.shows("`outbox`: values mean in the body what they were")
def test_values_of_postgresql_mean_in_a_body_what_they_were(server: str) -> None:
    """PostgreSQL reads each from the row's JSON, and finds the value that it had."""
    literals = [(kind, value) for kind, values in KEPT.items() for value in values]
    names = {f"c{n}": kind for n, (kind, _) in enumerate(literals)}
    with closing(psycopg.connect(server)) as connection:
        typed = ", ".join(f"CAST(%s AS {kind}) AS {name}" for name, kind in names.items())
        cursor = reading(connection, "postgresql")
        row = cursor.execute(f"SELECT {typed}", [value for _, value in literals]).fetchone()
        body = message_of(dict(zip(names, row, strict=True)), {})["body"].decode()
        again = ", ".join(
            f"CAST(j ->> '{name}' AS {kind})::text" for name, (kind, _) in zip(names, literals, strict=True)
        )
        before = ", ".join(f"CAST(%s AS {kind})::text" for kind, _ in literals)
        read = connection.execute(f"SELECT {again} FROM (SELECT CAST(%s AS json) AS j) AS one", [body]).fetchone()
        was = connection.execute(f"SELECT {before}", [value for _, value in literals]).fetchone()
    assert [(one, old, new) for one, old, new in zip(literals, was, read, strict=True) if old != new] == []


@pytest.mark.shows("`outbox`: values mean in the body what they were")
def test_json_of_postgresql_is_a_body_as_it_is_written(server: str) -> None:
    with closing(psycopg.connect(server)) as connection:
        cursor = reading(connection, "postgresql")
        texts = ['{"price": 1.10, "id": 12345678901234567890.5}', '"x"', "null", '{"n": 1.10, "in": {"m": 2.50}}']
        columns = ", ".join("CAST(%s AS jsonb)" for _ in texts)
        row = cursor.execute(f"SELECT {columns}, CAST(%s AS jsonb[])", [*texts, texts[:2]]).fetchone()
    price, text, nothing, pairs, both = row
    assert message_of({"v": price}, {"body": "v"})["body"].decode() == '{"id": 12345678901234567890.5, "price": 1.10}'
    assert message_of({"v": text}, {"body": "v"})["body"] == b"x"
    assert message_of({"v": nothing, "w": both}, {})["body"].decode() == f'{{"v": null, "w": [{price}, "x"]}}'
    assert message_of({"v": pairs, "b": "b"}, {"body": "b", "properties": "v"})["properties"] == [
        ("n", "1.10"),
        ("in", '{"m": 2.50}'),
    ]


def test_text_of_sqlite_that_is_no_utf8_is_bytes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    execute(url, TABLE)
    execute(url, "INSERT INTO orders (id, payload) VALUES (1, CAST(x'ff61' AS TEXT)), (2, 'é')")
    claims = RowClaims(url, "orders", "id", "p")
    claims.create()
    assert claims.claim(10) == 1
    assert [message_of(row.columns, {"body": "payload"})["body"] for row in claims.rows(0, 1)] == [
        b"\xffa",
        "é".encode(),
    ]
    claims.close()


def test_rows_that_are_no_messages_are_set_aside(database: str) -> None:
    columns = {"body": "payload", "tag": "kind", "properties": "extra"}
    rows = [
        (1, "a", "", "good", '{"n": 1}'),
        (2, "a", "", "", None),
        (3, "a", "", "bad properties", "["),
        (4, "a\x01", "", "bad tag", None),
        (5, "a", "", "good too", '{"n": NaN}'),
    ]
    execute(database, "INSERT INTO orders VALUES (?, ?, ?, ?, ?)", *rows)
    options = {"database": database, "table": "orders", "key": "id", "name": "p", "batchrows": "10", "topic": "T"}
    reader = TableReader({**options, "columns": json.dumps(columns), "delete": "true"})
    claims = RowClaims(database, "orders", "id", "p")
    claims.create()
    assert claims.claim(10) == 1
    for _ in range(2):  # The micro-batch runs again, with the same rows.
        [part] = reader.partitions({"batch": 0}, {"batch": 1})
        assert [body for batch in reader.read(part) for body in batch["body"].to_pylist()] == [b"good", b"good too"]
    assert claims.refused() == 3
    told = dict(execute(database, "SELECT id, reason FROM rocketspark_refused"))
    assert {key: why.split(" is ")[0].split(" holds ")[0] for key, why in told.items()} == {
        "2": "a row's payload",
        "3": "a row's extra",
        "4": "a row's tag",
    }
    reader.commit({"batch": 1})
    assert sorted(execute(database, "SELECT id FROM orders")) == [(2,), (3,), (4,)]
    # They are neither claimed again nor in the way of others.
    insert(database, 9)
    assert (claims.waiting(), claims.claim(10)) == (1, 2)
    assert [row.columns["id"] for row in claims.rows(1, 2)] == [9]
    claims.close()


def test_rows_without_a_key_are_left_and_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    execute(url, "CREATE TABLE odd (k TEXT PRIMARY KEY, v INTEGER)")
    execute(url, "INSERT INTO odd VALUES (?, ?)", (None, 1), ("a", 2))
    claims = RowClaims(url, "odd", "k", "p")
    claims.create()
    assert (claims.claim(10), claims.waiting(), claims.without_key()) == (1, 0, 1)
    assert [row.columns["v"] for row in claims.rows(0, 1)] == [2]
    claims.close()


@pytest.mark.shows(
    "mended: tracebacks (YAML 2026-02-30, 0b_, deep nesting, deep JSON, 5,000 digits; 120-character names; "
    "NaN in JSON; exit code)"
)
def test_numbers_that_json_has_no_word_for_are_texts() -> None:
    row = {"a": float("nan"), "b": float("inf"), "c": [-float("inf"), 1.5], "d": 2}
    body = message_of(row, {})["body"]
    assert json.loads(body, parse_constant=pytest.fail) == {
        "a": "NaN",
        "b": "Infinity",
        "c": ["-Infinity", 1.5],
        "d": 2,
    }


@pytest.mark.parametrize(
    ("row", "columns", "error"),
    [
        ({"payload": None}, {"body": "payload"}, "a row's payload is empty"),
        ({"payload": ""}, {"body": "payload"}, "a row's payload is empty"),
        ({"p": "x", "e": "[1]"}, {"body": "p", "properties": "e"}, "a row's e is no JSON object"),
        ({"p": "x", "e": "{"}, {"body": "p", "properties": "e"}, "a row's e is no JSON object"),
    ],
)
def test_rows_that_are_no_messages(row: dict[str, Any], columns: dict[str, str], error: str) -> None:
    with pytest.raises(RocketSparkError, match=error.replace("[", r"\[")):
        message_of(row, columns)
