"""However often messages come, and whatever fails: the work of each is done once."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes.test_deduplication import message

from rocketspark import ReceivedMessage
from rocketspark.errors import ConfigError
from rocketspark.recipes import SeenStore, database_of, deduplicate

pytestmark = pytest.mark.shows("`deduplicate`: SQLite, PostgreSQL")

Outcome = Callable[[], Any]


def fails() -> Any:
    raise ValueError("the work failed")


def is_killed() -> Any:
    raise KeyboardInterrupt


# Each delivery: numbers of messages, and how its listener ends.
DELIVERIES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.sampled_from([lambda: None, lambda: True, lambda: False, fails, is_killed]),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(deliveries=DELIVERIES, batches=st.booleans())
def test_the_work_of_each_message_is_done_once(deliveries: list[tuple[list[int], Outcome]], batches: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.db"
        seen = SeenStore(f"sqlite:///{path}")
        seen.create_tables()
        work = sqlite3.connect(path, isolation_level=None)
        work.execute("CREATE TABLE done (number INTEGER NOT NULL)")
        expected: set[int] = set()
        for numbers, ending in deliveries:

            def listener(given: Any, connection: Any, ending: Outcome = ending) -> Any:
                for one in given if isinstance(given, list) else [given]:
                    connection.execute("INSERT INTO done VALUES (?)", (int(one.body),))
                return ending()

            call = deduplicate(store=seen)(listener)
            given_: list[Any] = [message(n) for n in numbers]
            for one in [given_] if batches else given_:
                among = {int(m.body) for m in (one if isinstance(one, list) else [one])}
                if outcome_of(call, one) is not False or among <= expected:
                    expected |= among
            assert work.execute("SELECT number FROM done ORDER BY number").fetchall() == [
                (n,) for n in sorted(expected)
            ]
        work.close()
        seen.close()


def outcome_of(call: Callable[[Any], Any], given: ReceivedMessage | list[ReceivedMessage]) -> Any:
    try:
        return call(given)
    except (ValueError, KeyboardInterrupt):
        return False


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/db", "is no database"),
        ("shop.db", "is no database"),
        ("sqlite://shop.db", "is no database"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("oracle://me:secret@host/db", r"'oracle://me:\*\*\*@host/db'|'oracle://me@host/db'"),
    ],
)
def test_what_is_no_database_is_said_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        database_of(url)
    assert "secret" not in str(error.value)


def test_a_file_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        database_of(f"sqlite:///{tmp_path / 'none.db'}", must_exist=True)
    assert list(tmp_path.iterdir()) == []
