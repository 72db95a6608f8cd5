"""Pages of a table: whatever its size, a slave of ours and Java's get every row of one version."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.replication.master_api import TableFetch
from rocketspark.broker.storage.table_pages import PageWanted, TablePages, page_wanted
from rocketspark.protocol.headers.topics import TopicPageHeader
from rocketspark.protocol.json import metadata
from rocketspark.protocol.json.bodies import DataVersion

pytestmark = pytest.mark.shows(
    "what a broker asks its master for, answered as the Java broker does: topics and groups in pages, "
    "offsets, delay levels, timers, request modes, addresses"
)

V = DataVersion(counter=1)
PEER: Any = SimpleNamespace(rest=lambda: None)


def table_of(count: int) -> dict[str, int]:
    """Rows in another order than that of their names."""
    return {f"t{n:06}": n for n in reversed(range(count))}


def page(pages: TablePages[int], start: int, version: DataVersion | None, count: int) -> tuple[dict[str, int], int]:
    found: list[Any] = []

    def encode(rows: dict[str, int], total: int) -> bytes:
        found.append((rows, total))
        return b""

    pages.answer(PEER, PageWanted(start, version, count), encode)
    rows: tuple[dict[str, int], int] = found[0]
    return rows


def pages_of(table: dict[str, int]) -> TablePages[int]:
    return TablePages(lambda: V, lambda: table, None)  # type: ignore[arg-type]


def java_slave(pages: TablePages[int], count: int) -> dict[str, int]:
    """Fetch as BrokerOuterAPI.getAllTopicConfig of 5.5.0 does, with what it asks one row too few for."""
    rows: dict[str, int] = {}
    seq, version = 0, None
    while True:
        found, total = page(pages, seq, version, count)
        rows |= found
        seq += len(found)
        version = V
        if seq >= total - 1:
            return rows


@given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 20))
def test_every_slave_gets_every_row(count: int, rows_max: int, ours_max: int) -> None:
    table = table_of(count)
    pages = pages_of(table)
    assert java_slave(pages, rows_max) == table
    fetch = TableFetch[int]()
    for _ in range(count + 2):
        start, version, _ = fetch.ask()
        rows, total = page(pages, start, version, ours_max)
        assert len(rows) <= ours_max
        if fetch.take(rows, V, total):
            break
    assert fetch.rows == table


def test_another_version_begins_at_the_first_row() -> None:
    pages = pages_of(table_of(10))
    assert list(page(pages, 4, V, 3)[0]) == ["t000004", "t000005", "t000006"]
    for other in (None, DataVersion(counter=2), DataVersion(counter=1, timestamp=1)):
        assert list(page(pages, 4, other, 3)[0]) == ["t000000", "t000001", "t000002"]
    assert page(pages, 10, V, 3) == ({}, 10)
    assert page(pages, 1 << 62, V, 3) == ({}, 10)


def test_a_large_table_is_sorted_beside_the_loop_once_for_each_version() -> None:
    async def main() -> None:
        beside = BackgroundThread("tables")
        version, table = V, table_of(2500)
        pages = TablePages(lambda: version, lambda: table, beside)
        made = pages.answer(PEER, PageWanted(0, None, 2000), lambda rows, total: b"%d of %d" % (len(rows), total))
        assert asyncio.iscoroutine(made)
        table["a"] = 1
        version = DataVersion(counter=2)
        # It changed meanwhile: the page is of now.
        assert await made == b"2000 of 2501"
        at_once = pages.answer(PEER, PageWanted(2000, version, 2000), lambda rows, total: b"%d" % len(rows))
        assert at_once == b"501"
        await asyncio.get_running_loop().run_in_executor(None, beside.close)

    asyncio.run(main())


@pytest.mark.shows(
    "`consumerOffsetUpdateVersionStep`, `delayOffsetUpdateVersionStep`, `enableSplitMetadata`, `splitMetadataSize`"
)
@pytest.mark.parametrize(
    ("header", "rows_max", "wanted"),
    [
        (TopicPageHeader(), 2000, None),
        (TopicPageHeader(start=0, version="", count_max=7), None, None),
        (TopicPageHeader(start=0, version="", count_max=7), 2000, PageWanted(0, None, 7)),
        (TopicPageHeader(start=3), 2000, PageWanted(3, None, 2000)),
        (TopicPageHeader(start=-1, count_max=5000), 2000, PageWanted(0, None, 2000)),
        (TopicPageHeader(start=3, count_max=0), 2000, PageWanted(3, None, 1)),
        (TopicPageHeader(version=metadata.encode_version(V)), 9, PageWanted(0, V, 9)),
        (TopicPageHeader(start=2, version="{"), 9, PageWanted(2, None, 9)),
    ],
)
def test_what_a_request_asks_for(header: TopicPageHeader, rows_max: int | None, wanted: PageWanted | None) -> None:
    assert page_wanted(header, rows_max) == wanted
