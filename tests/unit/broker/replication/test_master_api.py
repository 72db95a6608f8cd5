"""Tables put together from pages: of an honest master every row comes, of a lying one an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.replication import master_api
from rocketspark.broker.replication.master_api import PAGE_ROWS, TableFetch
from rocketspark.errors import ProtocolError
from rocketspark.protocol.json.bodies import DataVersion

pytestmark = pytest.mark.shows(
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing"
)

V1, V2 = DataVersion(counter=1), DataVersion(counter=2)


class Master:
    """Serves pages as TopicConfigManager.subTopicConfigTable of 5.5.0 does. `rows_max`: splitMetadataSize."""

    def __init__(self, count: int, version: DataVersion = V1, rows_max: int = PAGE_ROWS) -> None:
        self.table = {f"t{n:06}": n for n in range(count)}
        self.version = version
        self.rows_max = rows_max
        self.asked = 0

    def page(self, start: int, version: DataVersion | None, count_max: int) -> dict[str, int]:
        self.asked += 1
        start = start if version == self.version else 0
        names = sorted(self.table)[start : start + min(count_max, self.rows_max)]
        return {name: self.table[name] for name in names}


def fetched(master: Master, known: DataVersion | None = None, change: Any = None) -> TableFetch[int]:
    fetch = TableFetch[int](known)
    while True:
        if change is not None:
            change(master)
        rows = master.page(*fetch.ask())
        if fetch.take(rows, master.version, len(master.table)):
            return fetch


@pytest.mark.parametrize("count", [1, 2, 1999, 2000, 2001, 2002, 4000, 4001, 6001])
def test_every_row_comes_also_one_that_is_alone_on_its_page(count: int) -> None:
    master = Master(count)
    assert fetched(master).rows == master.table
    assert master.asked == -(-count // PAGE_ROWS)
    # By way of a version that is not the known one.
    assert fetched(master, V2).rows == master.table


def test_a_known_version_costs_one_row() -> None:
    master = Master(4001)
    fetch = fetched(master, V1)
    assert (fetch.unchanged, fetch.version, fetch.rows, master.asked) == (True, None, {}, 1)


def test_a_change_between_pages_begins_anew_with_all_rows_of_the_new_version() -> None:
    def change(master: Master) -> None:
        if master.asked == 1:
            del master.table["t000000"]
            master.table["new"] = 1
            master.version = V2

    master = Master(4001)
    fetch = fetched(master, change=change)
    assert (fetch.rows, fetch.version) == (master.table, V2)
    assert len(fetch.rows) == 4001


def test_a_table_that_changes_with_each_page_is_left_for_later() -> None:
    def change(master: Master) -> None:
        master.version = DataVersion(counter=master.version.counter + 1)

    with pytest.raises(ProtocolError, match="the table changed 11 times while it was fetched"):
        fetched(Master(4001), change=change)


def test_a_broker_without_pages_sends_all_and_no_number() -> None:
    fetch = TableFetch[int]()
    assert fetch.take({"a": 1, "b": 2}, V1, None)
    assert fetch.rows == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        ([({"a": 1}, None, 1)], "without a version"),
        ([({}, V1, 0)], "empty"),
        ([({}, V1, None)], "empty"),
        ([({}, V1, 5)], "empty"),
        ([({"a": 1}, V1, 5), ({}, V1, 5)], "told to have 5 rows, after 1 no other comes"),
        ([({"a": 1}, V1, 5), ({"a": 1}, V1, 5)], "told to have 5 rows, after 1 no other comes"),
        ([({"a": 1}, V1, 1 << 40)], "at most 200000 are taken"),
    ],
)
def test_a_master_that_lies_is_named(pages: list[Any], error: str) -> None:
    fetch = TableFetch[int]()
    assert not any(fetch.take(*page) for page in pages[:-1])
    with pytest.raises(ProtocolError, match=error):
        fetch.take(*pages[-1])


_PAGES = st.tuples(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(), max_size=5),
    st.sampled_from([None, V1, V2]),
    st.sampled_from([None, -1, 0, 1, 3, 8, 1 << 40]),
)


@given(st.sampled_from([None, V1]), st.lists(_PAGES, min_size=1, max_size=60))
def test_any_pages_end_in_a_table_of_one_version_or_an_error(known: DataVersion | None, pages: list[Any]) -> None:
    fetch = TableFetch[int](known)
    of_version: dict[str, int] = {}
    version = None
    for number, (rows, its, total) in enumerate(pages):
        asked = fetch.ask()
        assert 0 <= asked.start <= 8
        assert asked.version == version
        assert asked.count_max in (1, PAGE_ROWS)
        try:
            done = fetch.take(rows, its, total)
        except ProtocolError:
            return
        if version is not None and its != version:
            of_version = {}
            assert not done
        else:
            of_version |= rows
        version = its
        if done:
            assert fetch.unchanged == (number == 0 and its == known)
            if not fetch.unchanged:
                assert fetch.rows == of_version
                assert fetch.version == its
            return
    # Bounded: each page brings a row or counts as a restart.
    assert len(pages) <= 8 * (master_api.RESTARTS_MAX + 1) + master_api.RESTARTS_MAX
