"""SQL over topics, by DuckDB. Rule: a query reads only the columns that its plan asks for; a topic that it reads once
streams by, one that it reads more often is held in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rocketspark.errors import ConfigError, RocketSparkError, UsageError
from rocketspark.model.text import shown
from rocketspark.tables.read_columns import columns_of
from rocketspark.tables.read_table import Prepared, opened, prepared

if TYPE_CHECKING:
    import duckdb

# What stands in FROM and is none of these is a file, or a function's.
_NO_TOPIC = frozenset("./\\:*? ")
_ROWS = 16_384
_DESCRIBES = re.compile(r"\b(describe|show)\b", re.IGNORECASE)


def query(sql: str, given: Mapping[str, Any]) -> pa.RecordBatchReader:
    """Return the rows of a query, whose tables are topics by their names. `given`: the options of every read, without
    the topic.

    Raises UsageError with DuckDB's words for a query that it does not take, ConfigError without DuckDB, and what
    `read_batches` raises.
    """
    try:
        import duckdb
    except ImportError:
        raise ConfigError("a query needs DuckDB: pip install 'rocketspark[duckdb]'") from None
    database = duckdb.connect()
    # A name that is no topic is a mistake, and none of this program's variables.
    database.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
    with _in_one_line(duckdb):
        statements = database.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError("the query: one statement is needed, such as SELECT count(*) FROM topic")
        if statements[0].type == duckdb.StatementType.EXPLAIN:
            raise UsageError("the query: EXPLAIN is not taken, as no plan tells what brokers send: leave it out")
        topics, plan = _planned(database, sql, given)
    wanted, scans = _scanned(plan, sql, topics)
    once = _each_once(sql, topics, scans)
    only_described = not scans and _DESCRIBES.search(sql) is not None
    failed: list[RocketSparkError] = []
    for name, (options, columns) in topics.items():
        if only_described:
            continue  # What stands for it in the plan has all its columns.
        columns = columns_of([one for one in columns.schema.names if one in wanted] or ["queueOffset"], options)
        reader = opened(options, columns)
        # A reader gives its rows once.
        database.register(name, _telling(reader, failed) if once else reader.read_all())
    with _in_one_line(duckdb, failed):
        found = database.sql(sql)
        if found is None:  # It has no rows: COPY … TO 'file'.
            return pa.RecordBatchReader.from_batches(pa.schema([]), iter(()))
        reader = found.to_arrow_reader(_ROWS)
    schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, _apart(reader), strict=True)])
    return pa.RecordBatchReader.from_batches(schema, _rows(reader, schema, _in_one_line(duckdb, failed), database))


def _apart(reader: pa.RecordBatchReader) -> list[str]:
    """Return a name of its own for each column: those of a join are alike, and lines of JSON would lose one."""
    names: list[str] = []
    for number, name in enumerate(reader.schema.names):
        free = name
        while free in names or (free != name and free in reader.schema.names):
            free = f"{free}_{number}"
        names.append(free)
    return names


def _telling(reader: pa.RecordBatchReader, failed: list[RocketSparkError]) -> pa.RecordBatchReader:
    """Return a reader that keeps its error: DuckDB makes a text of it, with a traceback."""

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except RocketSparkError as e:
            failed.append(e)
            raise

    return pa.RecordBatchReader.from_batches(reader.schema, rows())


def _rows(
    reader: pa.RecordBatchReader, schema: pa.Schema, telling: _in_one_line, database: Any
) -> Iterator[pa.RecordBatch]:
    with telling:
        for rows in reader:
            yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    database.close()


def _planned(
    database: duckdb.DuckDBPyConnection, sql: str, given: Mapping[str, Any]
) -> tuple[dict[str, Prepared], list[dict[str, Any]]]:
    """Return the topics that a query names, and its plan. DuckDB tells of one name at a time that it does not know."""
    import duckdb

    topics: dict[str, Prepared] = {}
    while True:
        try:
            found = database.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchall()
        except duckdb.CatalogException as e:
            missing = re.search(r"Table with name (.+?) does not exist", str(e), re.DOTALL)
            if missing is None or missing[1] in topics or not _NO_TOPIC.isdisjoint(missing[1]):
                raise
            _check_spelling(missing[1], sql)
            topics[missing[1]] = made = prepared({**given, "topic": missing[1]})
            database.register(missing[1], pa.RecordBatchReader.from_batches(made.columns.schema, iter(())))
            continue
        return topics, [node for _, text in found for node in json.loads(text)]


def _check_spelling(topic: str, sql: str) -> None:
    """Raise UsageError if a query names two topics that differ by capitals alone, which DuckDB takes for one table."""
    spelled = re.findall(rf'(?:\b(?:from|join)|,)\s*"?({re.escape(topic)})(?![\w%|-])', sql, re.IGNORECASE)
    if other := next((name for name in spelled if name != topic), None):
        raise UsageError(f"the query names {topic!r} and {other!r}, which are one table in SQL: query one of them")


def _scanned(plan: list[dict[str, Any]], sql: str, topics: Mapping[str, Prepared]) -> tuple[set[str], int]:
    """Return the columns that a plan takes from its tables, and how often it reads tables."""
    names = {name for made in topics.values() for name in made.columns.schema.names}
    # A column by which the reading itself filters may stand in no list, but it does in the query.
    # A pivot groups by all columns that it does not name; over no rows its plan does without.
    wanted = {name for name in names if name.lower() in sql.lower() or "pivot" in sql.lower()}
    scans = 0
    while plan:
        node = plan.pop()
        plan += node.get("children", [])
        if "ARROW_SCAN" in node["name"]:
            scans += 1
            columns = node["extra_info"].get("Projections", list(names))
            wanted.update([columns] if isinstance(columns, str) else columns)
    return wanted, scans


def _each_once(sql: str, topics: Mapping[str, Prepared], scans: int) -> bool:
    """Tell whether a query reads each of its topics once. A plan does not say which of them it reads twice, where it
    leaves out another one, nor how often a step is run again.
    """
    if scans != len(topics) or re.search(r"\b(recursive|pivot)", sql, re.IGNORECASE):
        return False
    return scans == 1 or all(sql.lower().count(name.lower()) == 1 for name in topics)


class _in_one_line:
    """Turns DuckDB's errors into UsageError with one line, or into what a read `failed` with."""

    def __init__(self, duckdb: Any, failed: Sequence[RocketSparkError] = ()) -> None:
        self._kind, self._failed = duckdb.Error, failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._failed:
            raise self._failed[0] from None
        if isinstance(error, self._kind):
            raise UsageError(f"the query: {shown(' '.join(str(error).split()))}") from None
