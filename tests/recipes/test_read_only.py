"""What an operator's look at an outbox and at a table of ids shows, on both databases; it changes nothing."""

from __future__ import annotations

import pytest
from tests.recipes.conftest import Tables

from rocketspark import Message
from rocketspark.client.producer.prepared_message import PackingSettings
from rocketspark.errors import ConfigError, DatabaseFailed
from rocketspark.recipes import OutboxStore, SeenStore, State
from rocketspark.recipes.deduplication import ScopeFigures
from rocketspark.recipes.outbox_entries import prepare
from rocketspark.recipes.outbox_store import RowOutcome

pytestmark = pytest.mark.shows("outboxes and tables of ids are looked at by connections that can change nothing")


def test_a_look_tells_figures_and_changes_nothing(database: Tables) -> None:
    store, seen = OutboxStore(database.url), SeenStore(database.url)
    looking = OutboxStore(database.url, must_exist=database.mark == "%s", read_only=True)
    ids = SeenStore(database.url, read_only=True)
    if database.mark == "%s":
        with pytest.raises(ConfigError, match="create_tables"):
            looking.check()
    store.create_tables()
    seen.create_tables()
    assert looking.figures()[State.WAITING] == (0, None, None, 0, 0)
    with store.database.work() as connection:
        for key in ("first", "second", "third"):
            store.add(connection, prepare(Message("orders", b"body", keys=[key]), key, PackingSettings()))
        assert seen.record(connection, "pay", ["1", "2"]) == {"1", "2"}
        assert seen.record(connection, "ship", ["1"]) == {"1"}
    (first,), (second,), _ = store.claim("relay", 10, 60_000)
    outcomes = [
        RowOutcome(first.number, State.SENT),
        RowOutcome(second.number, State.WAITING, error="no room", pause_ms=60_000),
    ]
    store.settle("relay", outcomes)
    figures = looking.figures()
    assert {state: (each.messages, each.failed, each.attempts_max) for state, each in figures.items()} == {
        State.WAITING: (2, 1, 1),
        State.PARKED: (0, 0, 0),
        State.SENT: (1, 0, 1),
    }
    assert figures[State.WAITING].oldest_ms == second.added_ms
    assert figures[State.SENT].last_sent_ms is not None
    assert [(each.key, each.message.body, each.error) for each in looking.entries(bodies=False)] == [
        ("second", b"", "no room"),
        ("third", b"", None),
    ]
    assert looking.get("third").message.body == b"body"
    rows = database.run("SELECT scope, min(seen_ms), max(seen_ms) FROM rocketspark_seen GROUP BY scope ORDER BY scope")
    assert ids.scopes() == [ScopeFigures("pay", 2, *rows[0][1:]), ScopeFigures("ship", 1, *rows[1][1:])]
    assert ids.scopes(1) == [ScopeFigures("pay", 2, *rows[0][1:])]
    assert min(looking.size_bytes(), ids.size_bytes()) >= 4096
    for change in (looking.drop, looking.resend, ids.purge):
        with pytest.raises(DatabaseFailed, match=r"(?i)read.?only"):
            change()
    for each in (store, seen, looking, ids):
        each.close()


def test_a_look_that_takes_long_is_given_up(database: Tables) -> None:
    looking = OutboxStore(database.url, wait_ms=300, read_only=True)
    OutboxStore(database.url).create_tables()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(DatabaseFailed, match=r"interrupted|statement timeout"), looking.database.work() as connection:
        looking.database.run(connection, endless).fetchall()
    assert looking.count()[State.WAITING] == 0
    looking.close()
