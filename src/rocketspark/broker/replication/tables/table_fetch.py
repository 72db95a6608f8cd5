"""A large table that comes in pages, put together. Rule: all pages are of one version, or the fetch begins anew.

No input or output: `ask` says what to ask for next, `take` has what came. Java's broker asks for one row too few where
the last page would hold one alone; this does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from rocketspark.errors import ProtocolError
from rocketspark.protocol.json.bodies import DataVersion

T = TypeVar("T")

PAGE_ROWS = 2000
ROWS_MAX = 200_000
# A table that changes with every page is left for the next time.
RESTARTS_MAX = 10


class PageAsked(NamedTuple):
    """What to ask for: rows from a number on, of a version (None for the first page)."""

    start: int
    version: DataVersion | None
    count_max: int


class TableFetch(Generic[T]):
    """One fetch. `known`: the version that is here already: a table of that version is not fetched at all."""

    def __init__(self, known: DataVersion | None = None) -> None:
        self._known = known
        self._restarts = 0
        self.rows: dict[str, T] = {}
        self.version: DataVersion | None = None
        # True at the end if the table has the known version; `rows` holds some of it at most.
        self.unchanged = False

    def ask(self) -> PageAsked:
        """Return what to ask for next."""
        # One row tells the version.
        probe = self._known is not None and self.version is None
        return PageAsked(len(self.rows), self.version, 1 if probe else PAGE_ROWS)

    def take(self, rows: Mapping[str, T], version: DataVersion | None, total: int | None) -> bool:
        """Take a page; True if that was the last. Raises ProtocolError for pages that no table has."""
        if version is None:
            raise ProtocolError("the table came without a version")
        if max(total or 0, len(rows)) > ROWS_MAX:
            raise ProtocolError(f"the table has {max(total or 0, len(rows))} rows, at most {ROWS_MAX} are taken")
        if self.version is None:
            self.unchanged = version == self._known
            if self.unchanged:
                return True
        elif version != self.version:
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise ProtocolError(f"the table changed {self._restarts} times while it was fetched")
            # Of the new version the answer may be the first page, or not: it is not told.
            self.rows.clear()
            self.version = version
            return False
        before = len(self.rows)
        self.version = version
        self.rows.update(rows)
        if not self.rows:
            raise ProtocolError("the table came empty, which no broker's is")
        if total is None or len(self.rows) >= total:
            # A broker without pages sends all rows and no number of them.
            return True
        if len(self.rows) == before:
            raise ProtocolError(f"the table is told to have {total} rows, after {before} no other comes")
        return False
