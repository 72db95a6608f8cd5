"""A process that was forked uses connections of its own, and its parent notices nothing of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.recipes.conftest import Tables

from rocketspark.recipes import SeenStore

pytestmark = pytest.mark.shows("mended: forked processes share PostgreSQL connections")

ROUNDS = 30


def forked(work: Callable[[], None]) -> int:
    """A child that does the work; it ends with 0 if that raises nothing."""
    child = os.fork()
    if child:
        return child
    signal.alarm(120)
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_and_parent_each_get_their_own_answers(database: Tables) -> None:
    store = SeenStore(database.url)
    store.create_tables()

    def use(who: str) -> None:
        for i in range(ROUNDS):
            with store.database.work() as connection:
                assert store.record(connection, who, [str(i)]) == {str(i)}
                mine = f"SELECT scope FROM rocketspark_seen WHERE scope = {database.mark} AND id = {database.mark}"
                assert connection.execute(mine, (who, str(i))).fetchone() == (who,)

    # One connection is idle when they are forked, one in use; the lock is held too.
    with store.database.work() as connection, store.database._guard:  # type: ignore[attr-defined]
        assert connection.execute("SELECT 1").fetchone() == (1,)
        held = forked(lambda: None)
    children = [forked(lambda n=n: use(f"child {n}")) for n in range(2)]  # type: ignore[misc]
    use("parent")
    for child in (held, *children):
        assert os.waitpid(child, 0)[1] == 0
    use("parent again")
    assert database.run("SELECT count(*) FROM rocketspark_seen") == [(4 * ROUNDS,)]
    store.close()
