"""The databases of applications that the console was started with. Rule: they are read, never changed; a database that
is slow or away keeps its own page waiting for some seconds, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from rocketspark import machine
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.recipes import Entry, OutboxStore, SeenStore, State
from rocketspark.recipes.database import shown as shown_url
from rocketspark.recipes.database_urls import database_of
from rocketspark.recipes.deduplication import ScopeFigures
from rocketspark.recipes.outbox_store import StateFigures
from rocketspark.transport.loose_threads import in_thread

T = TypeVar("T")
# A statement is given up after the first; the connection may have to be made before it.
STATEMENT_MS, LOOK_S = 5000, 8.0
LIFE_S = 3.0
ENTRIES_MAX = SCOPES_MAX = 100
TABLE = re.compile(r"(.*)#([A-Za-z_][A-Za-z0-9_]{0,40})", re.DOTALL)


class Place(NamedTuple):
    """Where a table is. `name`: the database without a password; `table`: "" for the table's usual name."""

    url: str
    name: str
    table: str


class OutboxSeen(NamedTuple):
    """An outbox as it was looked at; `now_ms`: by the database's clock."""

    figures: dict[State, StateFigures]
    entries: list[Entry]
    size_bytes: int
    now_ms: int


class IdsSeen(NamedTuple):
    """A table of ids as it was looked at."""

    scopes: list[ScopeFigures]
    size_bytes: int


def place_of(text: str) -> Place:
    """Return the place that an option names: a URL, "#table" behind it for another table, or "@file" with that in its
    first line. Raises ConfigError.
    """
    url = text
    if text.startswith("@"):
        try:
            url = Path(text[1:]).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, ValueError) as e:
            raise ConfigError(f"{text[1:]}: the file with the database's URL cannot be read: {e}") from None
    found = TABLE.fullmatch(url)
    place = Place(found[1], shown_url(found[1]), found[2]) if found else Place(url, shown_url(url), "")
    if not text.startswith("@") and _has_password(place.url):
        raise ConfigError(
            f"{place.name}: a password on the command line is seen in the list of processes: put the URL into a file"
            " and give @FILE, or the password into libpq's ~/.pgpass"
        )
    database_of(place.url, read_only=True)
    return place


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password=" in parts.query
    except ValueError:
        return True


class Watched(Generic[T]):
    """A table that is looked at in a thread, by one at a time; what was seen counts for some seconds."""

    def __init__(self, place: Place, look: Callable[[], T]) -> None:
        self.place, self._look = place, look
        self._running: asyncio.Future[T] | None = None
        self._ended_s = 0.0

    async def look(self) -> T:
        """Return what is there. Raises ConfigError and DatabaseFailed."""
        if self._running is None or (self._running.done() and machine.monotonic() - self._ended_s > LIFE_S):
            self._running = in_thread(self._look, "rocketspark-database")
            self._running.add_done_callback(self._ended)
        done, _ = await asyncio.wait({self._running}, timeout=LOOK_S)
        if not done:
            raise RocketSparkError(f"{self.place.name} did not answer within {LOOK_S:.0f} s")
        return self._running.result()

    def _ended(self, task: asyncio.Future[T]) -> None:
        self._ended_s = machine.monotonic()


def outboxes(texts: Iterable[str]) -> list[Watched[OutboxSeen]]:
    """Return the outboxes at some places. Raises ConfigError."""
    return [Watched(place, _outbox(place)) for place in map(place_of, texts)]


def tables_of_ids(texts: Iterable[str]) -> list[Watched[IdsSeen]]:
    """Return the tables of `deduplicate` at some places. Raises ConfigError."""
    return [Watched(place, _ids(place)) for place in map(place_of, texts)]


def _outbox(place: Place) -> Callable[[], OutboxSeen]:
    table = place.table or "rocketspark_outbox"

    def look() -> OutboxSeen:
        store = OutboxStore(place.url, table=table, wait_ms=STATEMENT_MS, must_exist=True, read_only=True)
        try:
            entries = store.entries(count_max=ENTRIES_MAX, bodies=False)
            return OutboxSeen(store.figures(), entries, store.size_bytes(), store.now_ms())
        finally:
            store.close()

    return look


def _ids(place: Place) -> Callable[[], IdsSeen]:
    table = place.table or "rocketspark_seen"

    def look() -> IdsSeen:
        store = SeenStore(place.url, table=table, wait_ms=STATEMENT_MS, must_exist=True, read_only=True)
        try:
            return IdsSeen(store.scopes(SCOPES_MAX), store.size_bytes())
        finally:
            store.close()

    return look
