"""The database of a URL: SQLite or PostgreSQL, each imported when it is asked for."""

from __future__ import annotations

from rocketspark.errors import ConfigError
from rocketspark.recipes.database import Database, shown


def database_of(
    url: str | Database, *, wait_ms: float = 5000, must_exist: bool = False, read_only: bool = False
) -> Database:
    """Return the database of a URL: `sqlite:///file.db`, `sqlite:////absolute/file.db` or
    `postgresql://user@host/name`.

    `wait_ms`: how long a transaction waits for a lock; `must_exist`: an SQLite file that is not there is an error;
    `read_only`: nothing can be changed. Raises ConfigError.
    """
    if isinstance(url, Database):
        return url
    scheme, colon, _ = url.partition("://")
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        from rocketspark.recipes.sqlite import Sqlite

        return Sqlite(url.removeprefix("sqlite:///"), wait_ms=wait_ms, must_exist=must_exist, read_only=read_only)
    if colon and scheme in ("postgresql", "postgres"):
        from rocketspark.recipes.postgres import Postgres

        return Postgres(url, wait_ms=wait_ms, read_only=read_only)
    raise ConfigError(f"{shown(url)!r} is no database: give sqlite:///file.db or postgresql://user@host/name")
