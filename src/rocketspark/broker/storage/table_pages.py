"""Pages of a large table for slaves, with rows in the order of their names. A page and its version are of one moment.

Which rows (rule: TopicConfigManager.subTopicConfigTable, 5.5.0): from the asked number on, but from the first if the
version that the request names is not the table's any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.storage.table_saving import SMALL_ROWS
from rocketspark.protocol.json import metadata
from rocketspark.protocol.json.bodies import DataVersion
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer
from rocketspark.transport.request_frames import Parts

T = TypeVar("T")


class PageHeader(Protocol):
    """The fields of a request for a page of a table."""

    start: int | None
    version: str | None
    count_max: int | None


class PageWanted(NamedTuple):
    """A page that is asked for: `count_max` rows at most, from number `start` on; `version`: of the first page."""

    start: int
    version: DataVersion | None
    count_max: int


def page_wanted(asked: PageHeader, rows_max: int | None) -> PageWanted | None:
    """Return the page that a request asks for; None for the whole table, as older brokers ask for it.

    `rows_max`: how many rows a page may have, None if this broker sends tables as a whole.
    """
    if rows_max is None or (asked.start is None and asked.version is None and asked.count_max is None):
        return None
    count = rows_max if asked.count_max is None else max(1, min(rows_max, asked.count_max))
    return PageWanted(max(asked.start or 0, 0), metadata.decode_version(asked.version), count)


class TablePages(Generic[T]):
    """The pages of one table. `version`: returns another value after each change; `rows`: returns the present table."""

    def __init__(
        self, version: Callable[[], DataVersion], rows: Callable[[], Mapping[str, T]], beside: BackgroundThread
    ) -> None:
        self._version = version
        self._rows = rows
        self._beside = beside
        self._sorted: tuple[DataVersion | None, list[str]] = (None, [])

    def answer(self, peer: Peer, wanted: PageWanted, encode: Callable[[dict[str, T], int], bytes]) -> Answer:
        """Return the reply with a page. `encode`: makes its body, of the page's rows and the number of all rows."""
        if self._sorted[0] == self._version() or len(self._rows()) <= SMALL_ROWS:
            return self._page(wanted, encode)
        peer.rest()
        return self._page_later(wanted, encode)

    async def _page_later(
        self, wanted: PageWanted, encode: Callable[[dict[str, T], int], bytes]
    ) -> bytes | Parts | None:
        version, names = self._version(), list(self._rows())
        self._sorted = version, await self._beside.run(lambda: sorted(names))
        return self._page(wanted, encode)

    def _page(self, wanted: PageWanted, encode: Callable[[dict[str, T], int], bytes]) -> bytes:
        version, rows = self._version(), self._rows()
        if self._sorted[0] != version or len(self._sorted[1]) != len(rows):
            self._sorted = version, sorted(rows)
        names = self._sorted[1]
        start = wanted.start if wanted.version == version else 0
        end = start + wanted.count_max
        if end == len(names) - 1 and wanted.count_max > 1:
            # A Java slave does not ask for a last row that is alone.
            end -= 1
        return encode({name: rows[name] for name in names[start:end] if name in rows}, len(rows))
