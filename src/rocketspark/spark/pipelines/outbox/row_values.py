"""Values of a database's rows. Rule: one that Python has no like of is the database's text of it; none fails a read."""

from __future__ import annotations

from typing import Any

# Types of PostgreSQL with values that psycopg has no object for: infinity, years before 1 and after 9999, 24:00.
# Arrays of them are read by the same loaders.
_BEYOND = ("date", "time", "timetz", "timestamp", "timestamptz")
# Those whose objects are not the same: a month of an interval is 30 days there, a range has no quotes.
_BOUNDS = ("int4", "int8", "num", "ts", "tstz", "date")
_AS_TEXT = ("interval", *(f"{name}{kind}" for name in _BOUNDS for kind in ("range", "multirange")))


class JsonText(str):
    """JSON as the database writes it: Python's floats would round its numbers."""


def reading(connection: Any, kind: str) -> Any:
    """Return a cursor that reads any row of a database of this kind."""
    if kind == "sqlite":
        connection.text_factory = _text
        return connection.cursor()
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    cursor = connection.cursor()
    for name in _BEYOND:
        oid = cursor.adapters.types[name].oid
        exact = cursor.adapters.get_loader(oid, Format.TEXT)
        cursor.adapters.register_loader(oid, _lenient(Loader, exact))
    for names, load in ((_AS_TEXT, _written), (("json", "jsonb"), _json)):
        loader = type("AsWritten", (Loader,), {"load": staticmethod(load)})
        for name in names:
            cursor.adapters.register_loader(cursor.adapters.types[name].oid, loader)
    return cursor


def _written(data: Any) -> str:
    return bytes(data).decode("utf-8", "replace")


def _json(data: Any) -> JsonText | None:
    text = JsonText(_written(data))
    return None if text.strip() == "null" else text


def _lenient(base: Any, exact: Any) -> Any:
    class Lenient(base):  # type: ignore[misc]
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._exact = exact(oid, context)

        def load(self, data: Any) -> Any:
            from psycopg import DataError

            try:
                return self._exact.load(data)
            except (DataError, ValueError, OverflowError, RecursionError):
                return _written(data)

    return Lenient


def _text(stored: bytes) -> str | bytes:
    """SQLite checks no text: what is not UTF-8 stays bytes."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored
