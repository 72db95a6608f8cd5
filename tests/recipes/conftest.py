"""Each test on SQLite and on a real PostgreSQL. Rule: PostgreSQL's tests share one worker, so that one server runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import postgres

NUMBERS = itertools.count(1)
KINDS = ["sqlite", "postgresql"]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


class Tables:
    """A database of the test's own. `url`; `mark`: how it spells a value in a statement."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.mark = "?" if url.startswith("sqlite") else "%s"

    def connect(self) -> Any:
        """A connection of the driver's, that commits by itself."""
        if self.mark == "?":
            import sqlite3

            return sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            cursor = connection.execute(text.replace("?", self.mark), values)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    if request.param == "sqlite":
        yield Tables(f"sqlite:///{tmp_path / 'test.db'}")
        return
    server: str = request.getfixturevalue("server")
    # A schema is made in a moment, a database takes half a second.
    schema = f"test_{next(NUMBERS)}"
    Tables(server).run(f"CREATE SCHEMA {schema}")
    yield Tables(f"{server}&options=-csearch_path%3D{schema}")
