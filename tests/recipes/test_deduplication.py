"""Idempotent consuming, on both databases: what a listener does is done once, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.recipes.conftest import Tables

from rocketspark import MessageBatch, ReceivedMessage
from rocketspark.errors import ConfigError, DatabaseFailed, StateError, UsageError
from rocketspark.recipes import SeenStore, deduplicate, outbox_key

pytestmark = pytest.mark.shows("`deduplicate`: SQLite, PostgreSQL")


def message(number: int = 1, *, topic: str = "T", keys: tuple[str, ...] = (), **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic,
        body=b"%d" % number,
        tag=None,
        keys=keys,
        properties={"UNIQ_KEY": f"{number:032X}", **properties},
        broker_name="b",
        queue_id=0,
        queue_offset=number,
        physical_offset=0,
        stored_bytes=1,
        message_id=f"{number:032X}",
        offset_message_id=f"{number + 1000:032X}",
        born_time_ms=0,
        born_host="",
        store_time_ms=0,
        store_host="",
    )


@pytest.fixture
def seen(database: Tables) -> Iterator[SeenStore]:
    store = SeenStore(database.url)
    store.create_tables()
    store.create_tables()
    database.run("CREATE TABLE done (body TEXT NOT NULL)")
    yield store
    store.close()


def done(database: Tables) -> list[str]:
    return [row[0] for row in database.run("SELECT body FROM done ORDER BY body")]


def worker(database: Tables, then: Callable[[], Any] = lambda: None) -> Callable[[Any, Any], Any]:
    """A listener that writes down what it gets, and then does something."""

    def work(given: Any, connection: Any) -> Any:
        for one in given if isinstance(given, list) else [given]:
            connection.execute(f"INSERT INTO done VALUES ({database.mark})", (one.body.decode(),))
        return then()

    return work


def test_a_message_that_comes_again_is_not_processed_again(database: Tables, seen: SeenStore) -> None:
    listener = deduplicate(store=seen)(worker(database, lambda: "mine"))
    assert [listener(message(1)), listener(message(1)), listener(message(2))] == ["mine", None, "mine"]
    assert done(database) == ["1", "2"]


@pytest.mark.parametrize(
    "fails", [lambda: False, lambda: np.False_, lambda: 1 / 0], ids=["false", "false of numpy", "raises"]
)
def test_a_failure_rolls_back_the_work_and_the_id(database: Tables, seen: SeenStore, fails: Callable[[], Any]) -> None:
    outcomes = iter([fails, lambda: None])
    listener = deduplicate(store=seen)(worker(database, lambda: next(outcomes)()))
    try:
        assert listener(message()) is False
    except ZeroDivisionError:
        pass
    assert done(database) == []
    assert listener(message()) is None
    assert done(database) == ["1"]


def test_a_batch_is_handed_over_without_what_was_seen(database: Tables, seen: SeenStore) -> None:
    listener = deduplicate(store=seen)(worker(database))
    listener([message(3), message(1), message(3)])
    assert done(database) == ["1", "3"]
    got: list[list[int]] = []
    deduplicate(store=seen)(lambda batch, _: got.append([int(m.body) for m in batch]))(
        [message(4), message(3), message(2), message(4)]
    )
    listener([message(1), message(2)])
    assert (got, done(database)) == ([[4, 2]], ["1", "3"])


def test_columns_are_handed_over_as_columns_without_what_was_seen(database: Tables, seen: SeenStore) -> None:
    got: list[Any] = []

    def work(batch: MessageBatch, connection: Any) -> np.bool_:
        got.append((type(batch), batch.bodies))
        return np.bool_(len(got) > 1)

    async def work_in_loop(batch: MessageBatch, connection: Any) -> np.bool_:
        return work(batch, connection)

    listener = deduplicate(store=seen)(work)
    assert listener(MessageBatch([message(3)])) is False
    listener(MessageBatch([message(3), message(1), message(3)]))
    asyncio.run(deduplicate(store=seen)(work_in_loop)(MessageBatch([message(4), message(3), message(2), message(4)])))
    listener(MessageBatch([message(1), message(2)]))
    assert got == [(MessageBatch, [b"3"]), (MessageBatch, [b"3", b"1"]), (MessageBatch, [b"4", b"2"])]


@pytest.mark.parametrize("first_fails", [False, True])
def test_of_two_at_once_one_works_and_the_other_waits(database: Tables, seen: SeenStore, first_fails: bool) -> None:
    inside, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def then() -> bool:
        calls.append(1)
        if len(calls) == 1:
            inside.set()
            assert go.wait(120)
            return not first_fails
        return True

    listener = deduplicate(store=seen)(worker(database, then))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(listener, message())
        assert inside.wait(120)
        second = threads.submit(listener, message())
        assert not second.done()
        go.set()
        assert first.result(120) is (not first_fails)
        assert second.result(120) is (True if first_fails else None)
    assert len(calls) == 1 + first_fails
    assert done(database) == ["1"]


def test_who_waits_too_long_tries_again_later(database: Tables, seen: SeenStore) -> None:
    inside, go = threading.Event(), threading.Event()

    def then() -> None:
        inside.set()
        assert go.wait(120)

    impatient = deduplicate(store=SeenStore(database.url, wait_ms=50))(worker(database))
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(deduplicate(store=seen)(worker(database, then)), message())
        assert inside.wait(120)
        with pytest.raises(DatabaseFailed) as error:
            impatient(message())
        assert error.value.retriable
        go.set()
        first.result(120)
    impatient(message())
    assert done(database) == ["1"]


def test_coroutines_work_once_and_in_one_transaction(database: Tables, seen: SeenStore) -> None:
    calls: list[str] = []

    async def work(given: Any, connection: Any) -> Any:
        calls.append(given.message_id)
        is_first = len(calls) == 1
        executed = connection.execute(f"INSERT INTO done VALUES ({database.mark})", (given.body.decode(),))
        if database.mark == "%s":
            await executed
        await asyncio.sleep(0)
        return False if is_first else None

    listener = deduplicate(store=seen)(work)

    async def run() -> None:
        assert asyncio.iscoroutinefunction(listener)
        results = await asyncio.gather(*(listener(message(1)) for _ in range(4)), listener(message(2)))
        assert sorted(map(str, results)) == ["False", "None", "None", "None", "None"]
        if calls[0] == message(2).message_id:
            await listener(message(2))
        await listener(message(1))

    asyncio.run(run())
    assert done(database) == ["1", "2"]
    assert len(calls) == 3


def test_ids_are_apart_by_scope_key_and_topic(database: Tables, seen: SeenStore) -> None:
    work = worker(database)
    deduplicate(store=seen, scope="a")(work)(message(1))
    deduplicate(store=seen, scope="b")(work)(message(1))
    by_key = deduplicate(store=seen, by="key")(work)
    by_key(message(2, keys=("k",)))
    by_key(message(3, keys=("k",)))
    by_key(message(4, keys=("k",), topic="U"))
    by_key(message(5, keys=("k\0" + "x" * 4000,)))
    by_outbox = deduplicate(store=seen, by=outbox_key)(work)
    by_outbox(message(6, outbox_key="o"))
    by_outbox(message(7, outbox_key="o"))
    assert done(database) == ["1", "1", "2", "4", "5", "6"]
    with pytest.raises(UsageError, match="has 0 keys"):
        by_key(message(8))
    with pytest.raises(UsageError, match='by="key" needs exactly one'):
        by_key(message(8, keys=("a", "b")))
    with pytest.raises(UsageError, match="does not identify a message"):
        deduplicate(store=seen, by=lambda m: "")(work)(message(8))
    with pytest.raises(UsageError, match="by='name'"):
        deduplicate(store=seen, by="name")  # type: ignore[arg-type]


def test_a_listener_that_ends_the_transaction_itself_is_told(database: Tables, seen: SeenStore) -> None:
    # psycopg refuses it on the spot.
    with pytest.raises(Exception, match=r"inside the block|within a Transaction"):
        deduplicate(store=seen)(lambda m, connection: connection.rollback())(message())


def test_an_error_that_the_listener_swallows_is_no_commit(database: Tables, seen: SeenStore) -> None:
    def work(given: Any, connection: Any) -> None:
        connection.execute(f"INSERT INTO done VALUES ({database.mark})", ("1",))
        try:
            connection.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            pass

    if database.mark == "?":
        # SQLite undoes the one statement, and goes on.
        deduplicate(store=seen)(work)(message())
        assert done(database) == ["1"]
        return
    with pytest.raises(StateError, match="let errors pass"):
        deduplicate(store=seen)(work)(message())
    assert done(database) == []
    deduplicate(store=seen)(worker(database))(message())
    assert done(database) == ["1"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.xdist_group("postgres")
def test_connections_that_the_server_has_ended_are_made_anew(database: Tables, seen: SeenStore) -> None:
    work = worker(database)

    async def coroutine(given: Any, connection: Any) -> None:
        await connection.execute("INSERT INTO done VALUES (%s)", (given.body.decode(),))

    async def main() -> None:
        for i in range(2):
            deduplicate(store=seen)(work)(message(i))
            await deduplicate(store=seen)(coroutine)(message(i + 10))
            database.run(
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    asyncio.run(main())
    assert done(database) == ["0", "1", "10", "11"]


def test_ids_are_forgotten_by_age(database: Tables, seen: SeenStore) -> None:
    listener = deduplicate(store=seen)(worker(database))
    listener([message(1), message(2)])
    database.run("UPDATE rocketspark_seen SET seen_ms = seen_ms - 604800001 WHERE id = ?", message(1).message_id)
    assert seen.purge() == 1
    assert seen.purge() == 0
    listener([message(1), message(2)])
    assert done(database) == ["1", "1", "2"]
    # Consumers do it themselves, now and then.
    database.run("UPDATE rocketspark_seen SET seen_ms = 0")
    deduplicate(store=SeenStore(database.url))(worker(database))(message(3))
    assert database.run("SELECT count(*) FROM rocketspark_seen") == [(1,)]


def test_without_tables_one_is_told_how_to_make_them(database: Tables) -> None:
    database.run("CREATE TABLE other (n INTEGER)")
    with pytest.raises(ConfigError, match=r"rocketspark_seen.*create_tables\(\)"):
        deduplicate(store=database.url)(worker(database))(message())


def test_a_plain_function_that_returns_a_coroutine_does_and_records_nothing(database: Tables, seen: SeenStore) -> None:
    async def work(given: Any, connection: Any) -> None:
        raise AssertionError("outside of the transaction")

    def wrapped(given: Any, connection: Any) -> Any:
        return work(given, connection)

    with pytest.raises(UsageError, match="make it an async def"):
        deduplicate(store=seen)(wrapped)(message())
    deduplicate(store=seen)(worker(database))(message())
    assert done(database) == ["1"]


def test_a_generator_runs_nothing_and_records_nothing(database: Tables, seen: SeenStore) -> None:
    def plain(given: Any, connection: Any) -> Any:
        yield worker(database)(given, connection)

    async def coroutine(given: Any, connection: Any) -> Any:
        yield worker(database)(given, connection)

    for wrong in (plain, coroutine):
        with pytest.raises(UsageError, match="holds a `yield`"):
            deduplicate(store=seen)(wrong)(message())
    deduplicate(store=seen)(worker(database))(message())
    assert done(database) == ["1"]


def test_an_id_that_no_database_takes_is_one_all_the_same(database: Tables, seen: SeenStore) -> None:
    for odd in ("a\0b", "a\ud800", "x" * 501, "a\ud801"):
        listener = deduplicate(store=seen, by=lambda given, odd=odd: odd)(worker(database))  # type: ignore[misc]
        listener(message())
        listener(message())
    assert done(database) == ["1"] * 4
