"""The outbox on both databases, its producer a fake: what is kept, in which order it goes out, what is parked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from tests.recipes.conftest import Tables
from tests.recipes.fake_producer import FakeProducer, anything, no_reply, refused

from rocketspark import Message, SendResult
from rocketspark.errors import (
    ConfigError,
    DatabaseFailed,
    MessageIllegal,
    SendFailed,
    ServerError,
    StateError,
    UsageError,
)
from rocketspark.recipes import AsyncOutbox, Kept, OutboxStore, State
from rocketspark.recipes.outbox_store import RowOutcome

pytestmark = pytest.mark.shows("`Outbox` and its command")


@pytest.fixture
def store(database: Tables) -> Iterator[OutboxStore]:
    store = OutboxStore(database.url)
    store.create_tables()
    store.create_tables()
    yield store
    store.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(limited())


def outbox(producer: FakeProducer, store: OutboxStore, **options: Any) -> AsyncOutbox:
    """One that relays only when it is told to, unless options say otherwise."""
    return AsyncOutbox(anything(producer), store, **{"relay": False, "backoff_ms": 1, "poll_ms": 10} | options)


def test_what_is_sent_is_not_kept(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        async with outbox(producer, store) as box:
            result = await box.send_or_keep("T", b"1", tag="t")
            assert isinstance(result, SendResult)
            assert producer.sent == [("1", result.message_id)]
            assert isinstance(await box.send_or_keep("T", b"2", sharding_key="k", key="o"), SendResult)
            assert await box.relay_once() == type(box.relayed())()
        assert store.count() == {State.WAITING: 0, State.PARKED: 0, State.SENT: 0}

    run(main())


def test_what_fails_is_kept_and_goes_out_under_its_first_id(store: OutboxStore) -> None:
    tried: list[tuple[bytes, int]] = []
    fields: dict[str, Any] = {
        "tag": "t",
        "keys": ["k1", "k2"],
        "properties": {"a": "ä\0\"'"},
        "sharding_key": "s'é",
        "delay_level": 3,
        "flag": 7,
        "wait_store_ok": False,
    }
    body = bytes(range(256))

    def fails(message: Message) -> BaseException | None:
        tried.append((message.body, message.flag))
        return no_reply() if len(tried) == 1 else None

    async def main() -> None:
        producer = FakeProducer(fails)
        message = Message(topic="T", body=body, **fields)
        async with outbox(producer, store) as box:
            kept = await box.send_or_keep(message, key="order-7")
            assert isinstance(kept, Kept)
            assert (kept.key, kept.is_new) == ("order-7", True)
            assert isinstance(kept.error, SendFailed)
            (entry,) = store.entries()
            assert (entry.state, entry.attempts) == (State.WAITING, 1)
            assert entry.error is not None
            assert entry.error.startswith("SendFailed: send to topic 'T' failed")
            got: list[tuple[Message, str]] = []

            async def resend(message: Message, message_id: str, **others: Any) -> None:
                got.append((message, message_id))

            producer.resend = resend  # type: ignore[assignment]
            assert (await relayed_in_time(box)) == 1
        assert message == Message(topic="T", body=body, **fields)
        fields["properties"] = {"a": "ä\0\"'", "outbox_key": "order-7"}
        assert got == [(Message(topic="T", body=body, **fields), entry.message_id)]
        assert len(entry.message_id) == 32

    run(main())


async def relayed_in_time(box: AsyncOutbox, count: int = 1) -> int:
    """Relay until so many were sent: their back-off may not be over at the first look."""
    sent = 0
    while sent < count:
        sent += (await box.relay_once()).sent
        await asyncio.sleep(0.002)
    return sent


def test_a_key_is_kept_and_sent_once(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer(lambda message: no_reply() if not producer.arrived.is_set() else None)
        async with outbox(producer, store) as box:
            kept = [await box.send_or_keep("T", b"%d" % i, key="same") for i in range(2)]
            assert [isinstance(k, Kept) and k.is_new for k in kept] == [True, False]
            producer.arrived.set()
            await relayed_in_time(box)
            # Remembered while it is young, though it is gone.
            again = await box.send_or_keep("T", b"3", key="same")
            assert again == Kept("same", False)
            assert store.purge(3_600_000) == 0
            assert store.purge(-1000) == 1
            assert isinstance(await box.send_or_keep("T", b"4", key="same"), SendResult)
        assert producer.bodies == ["0", "4"]

    run(main())


def test_nothing_is_overtaken_by_its_own_key(store: OutboxStore) -> None:
    down = {"a"}

    async def main() -> None:
        producer = FakeProducer(lambda message: no_reply() if message.sharding_key in down else None)
        async with outbox(producer, store) as box:
            results = await asyncio.gather(
                *(box.send_or_keep("T", b"%s%d" % (k.encode(), i), sharding_key=k) for i in range(3) for k in "ab"),
                box.send_or_keep("U", b"other topic", sharding_key="c"),
            )
            assert [isinstance(r, Kept) for r in results] == [True, False] * 3 + [False]
            down.clear()
            # "a" is up again, but what waits goes first.
            assert isinstance(await box.send_or_keep("T", b"a3", sharding_key="a"), Kept)
            assert await relayed_in_time(box, 4) == 4
            assert isinstance(await box.send_or_keep("T", b"a4", sharding_key="a"), SendResult)
        assert [b for b in producer.bodies if b.startswith("a")] == ["a0", "a1", "a2", "a3", "a4"]
        assert [b for b in producer.bodies if b.startswith("b")] == ["b0", "b1", "b2"]

    run(main())


def test_a_failed_one_holds_back_its_own_key_alone(store: OutboxStore) -> None:
    bad = {"a1"}

    async def main() -> None:
        producer = FakeProducer(lambda message: no_reply() if message.body.decode() in bad else None)
        async with outbox(producer, store, backoff_ms=60_000) as box:
            with store.database.transaction() as connection:
                for i in range(3):
                    for k in ("a", "b", ""):
                        store.add(connection, box.prepare("T", f"{k}{i}".encode(), f"{k}{i}", {"sharding_key": k}))
            first = await box.relay_once()
            assert (first.sent, first.failed, first.parked) == (7, 1, 0)
            assert [e.key for e in store.entries()] == ["a1", "a2"]
            assert (await box.relay_once()).sent == 0  # Its back-off lasts.
            bad.clear()
            assert store.resend(["a1"]) == 1
            assert (await box.relay_once()).sent == 2
        assert [b for b in producer.bodies if b[0] == "a"] == ["a0", "a1", "a2"]
        assert [b for b in producer.bodies if b[0] == "b"] == ["b0", "b1", "b2"]
        assert store.count() == {State.WAITING: 0, State.PARKED: 0, State.SENT: 9}

    run(main())


@pytest.mark.shows("mended: `outbox relay --once`, run again and again, keeps every message that was sent for ever")
def test_one_run_forgets_what_was_sent_long_ago(store: OutboxStore) -> None:
    async def main() -> None:
        for key in ("old", "new"):
            async with outbox(FakeProducer(), store, keep_sent_ms=3_600_000) as box:
                with store.database.transaction() as connection:
                    store.add(connection, box.prepare("T", b"1", key, {}))
                assert (await box.relay_once()).sent == 1
            if key == "old":
                store.database.create(["UPDATE rocketspark_outbox SET sent_ms = sent_ms - 3600001"])
        assert store.count()[State.SENT] == 1
        assert store.get("new").state is State.SENT

    run(main())


def test_back_off_doubles_up_to_its_bound(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer(lambda message: no_reply())
        async with outbox(producer, store, backoff_ms=1_000_000, backoff_max_ms=3_000_000) as box:
            pauses = []
            await box.send_or_keep("T", b"1", key="k")
            for _ in range(4):
                entry = store.get("k")
                pauses.append(round((entry.due_ms - store.now_ms()) / 1_000_000))
                store.database.create(["UPDATE rocketspark_outbox SET due_ms = 0"])
                await box.relay_once()
            assert pauses == [1, 2, 3, 3]
            assert store.get("k").attempts == 5

    run(main())


def test_what_is_refused_for_good_is_parked_and_its_key_goes_on(store: OutboxStore) -> None:
    illegal = {"1"}

    async def main() -> None:
        producer = FakeProducer(lambda message: refused() if message.body.decode() in illegal else None)
        async with outbox(producer, store) as box:
            with pytest.raises(SendFailed):
                await box.send_or_keep("T", b"1", key="told")
            with pytest.raises(MessageIllegal):
                await box.send_or_keep("T", b"", key="empty")
            with pytest.raises(MessageIllegal):
                await box.send_or_keep("T", b"x", key="k" * 501)
            with store.database.transaction() as connection:
                for i in range(3):
                    store.add(connection, box.prepare("T", b"%d" % i, f"k{i}", {"sharding_key": "s"}))
            done = await box.relay_once()
            assert (done.sent, done.failed, done.parked) == (2, 0, 1)
            (entry,) = store.entries(State.PARKED)
            assert entry.key == "k1"
            assert "code 13" in (entry.error or "")
            assert (await box.relay_once()).parked == 0
            illegal.clear()
            assert store.resend() == 1
            assert (await box.relay_once()).sent == 1
        assert producer.bodies == ["0", "2", "1"]

    run(main())


def test_flow_control_is_no_refusal(store: OutboxStore) -> None:
    async def main() -> None:
        async with outbox(FakeProducer(lambda message: refused(code=215)), store) as box:
            assert isinstance(await box.send_or_keep("T", b"1"), Kept)

    run(main())


def test_a_message_of_the_application_s_transaction_shares_its_fate(database: Tables, store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        async with outbox(producer, store, relay=True) as box:
            connection = database.connect()
            connection.execute("BEGIN")
            assert await box.add(connection, "T", b"undone", key="k") == Kept("k", True)
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            cursor = connection.cursor()
            assert await box.add(cursor, "T", b"done", key="k") == Kept("k", True)
            assert await box.add(cursor, Message(topic="T", body=b"again"), key="k") == Kept("k", False)
            connection.execute("COMMIT")
            connection.close()
            box.wake()
            await producer.until_sent(1)
        assert producer.bodies == ["done"]
        assert producer.messages[0].properties == {"outbox_key": "k"}
        assert store.count()[State.SENT] == 1  # Closing has written it down.

    run(main())


def test_an_asynchronous_connection_will_do(database: Tables, store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        async with outbox(producer, store) as box:
            async with store.database.transaction_async() as connection:
                kept = await box.add(connection, "T", b"1", delay_ms=5000)
            assert kept.is_new
            entry = store.get(kept.key)
            assert (entry.key, entry.message.delay_ms) == (entry.message_id, 0)
            assert 0 < entry.message.deliver_at_ms - entry.added_ms <= 5000
            assert (await box.relay_once()).sent == 1
        assert producer.messages[0].properties == {}

    run(main())


def test_several_relays_send_each_message_once(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        boxes = [outbox(producer, OutboxStore(store.database), relay=True, in_flight_max=7) for _ in range(3)]
        with store.database.transaction() as connection:
            for i in range(120):
                fields: Any = {"sharding_key": f"s{i % 5}" if i % 6 else None}
                store.add(connection, boxes[0].prepare("T", b"%d" % i, None, fields))
        for box in boxes:
            await box.start()
        await producer.until_sent(120)
        await asyncio.gather(*(box.close() for box in boxes))
        assert sorted(map(int, producer.bodies)) == list(range(120))
        for s in range(5):
            order = [i for i in map(int, producer.bodies) if i % 6 and i % 5 == s]
            assert order == sorted(order)
        assert producer.collisions == []
        assert store.count()[State.SENT] == 120

    run(main())


def test_what_a_killed_relay_had_is_taken_over_when_its_lease_ends(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        async with outbox(producer, store) as box:
            with store.database.transaction() as connection:
                for i in range(3):
                    store.add(connection, box.prepare("T", b"%d" % i, f"k{i}", {"sharding_key": "s"}))
            ((taken,),) = store.claim("killed", 1, 3_600_000)
            assert (taken.key, store.get("k0").owner) == ("k0", "killed")
            assert (await box.relay_once()).sent == 0
            assert store.renew("killed", [taken], 3_600_000)
            assert not store.renew("somebody else", [taken], 1)
            assert store.renew("killed", [taken], -1)
            assert not store.renew("killed", [taken], 3_600_000)
            assert (await box.relay_once()).sent == 3
        assert producer.bodies == ["0", "1", "2"]

    run(main())


def test_a_lane_that_outlasts_the_lease_is_renewed(store: OutboxStore) -> None:
    renewed: list[int] = []

    async def main() -> None:
        producer = FakeProducer(lambda message: time.sleep(0.002))
        # Each send leaves too little of the lease for the next.
        async with outbox(producer, store, lease_ms=30_001, send_timeout_ms=30_000) as box:
            renew = store.renew

            def counted(owner: str, entries: Any, lease_ms: int) -> bool:
                renewed.append(len(entries))
                return renew(owner, entries, lease_ms)

            store.renew = counted  # type: ignore[method-assign]
            with store.database.transaction() as connection:
                for i in range(3):
                    store.add(connection, box.prepare("T", b"%d" % i, None, {"sharding_key": "s"}))
            await box.relay_once()
        assert producer.bodies == ["0", "1", "2"]

    run(main())
    assert renewed
    assert renewed == sorted(renewed, reverse=True)


def test_an_operator_looks_resends_and_drops(store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer(lambda message: refused() if message.body == b"bad" else None)
        async with outbox(producer, store) as box:
            with store.database.transaction() as connection:
                for key, body in (("a", b"good"), ("b", b"bad"), ("c", b"bad")):
                    store.add(connection, box.prepare("T", body, key, {}))
            await box.relay_once()
        assert [(e.key, e.state.value) for e in store.entries()] == [("b", "parked"), ("c", "parked")]
        assert [e.key for e in store.entries(State.SENT)] == ["a"]
        assert [e.key for e in store.entries(count_max=1)] == ["b"]
        for act in (store.resend, store.drop):
            with pytest.raises(UsageError, match="'nobody' is not in rocketspark_outbox; nothing was changed"):
                act(["b", "nobody"])
            with pytest.raises(UsageError, match="'a' was sent already"):
                act(["a"])
        assert store.count() == {State.WAITING: 0, State.PARKED: 2, State.SENT: 1}
        assert store.drop(["b"]) == 1
        assert store.drop() == 1
        with pytest.raises(UsageError, match="nothing with the key 'b'"):
            store.get("b")

    run(main())


def test_states_and_options_are_checked(database: Tables, store: OutboxStore) -> None:
    async def main() -> None:
        box = outbox(FakeProducer(), store)
        with pytest.raises(StateError, match="not started"):
            await box.send_or_keep("T", b"1")
        async with box:
            pass
        await box.close()
        with pytest.raises(StateError, match="closed"):
            await box.send_or_keep("T", b"1")
        with pytest.raises(ConfigError, match="lease_ms"):
            outbox(FakeProducer(), store, lease_ms=10, send_timeout_ms=10)
        with pytest.raises(ConfigError, match=r"rocketspark_other.*create_tables\(\)"):
            await outbox(FakeProducer(), OutboxStore(database.url, table="rocketspark_other")).start()
        with pytest.raises(ConfigError, match="a letter"):
            OutboxStore(database.url, table="no; drop")

    run(main())


def test_what_can_be_neither_sent_nor_kept_is_an_error_with_both(database: Tables, store: OutboxStore) -> None:
    async def main() -> None:
        async with outbox(FakeProducer(lambda message: no_reply()), store) as box:
            database.run("ALTER TABLE rocketspark_outbox RENAME COLUMN fields TO lost")
            with pytest.raises(DatabaseFailed) as error:
                await box.send_or_keep("T", b"1")
            assert isinstance(error.value.__context__, SendFailed)

    run(main())


@pytest.mark.shows("mended: Outbox order on PostgreSQL is not that of side-by-side transactions")
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.xdist_group("postgres")
def test_of_transactions_side_by_side_what_was_written_first_goes_first(database: Tables, store: OutboxStore) -> None:
    import psycopg

    producer = FakeProducer()
    box = outbox(producer, store)
    first, second, third = (psycopg.connect(database.url) for _ in range(3))

    def add(connection: Any, text: str, lane: str | None = "k") -> None:
        store.add(connection, box.prepare("T", text.encode(), None, {"sharding_key": lane}))

    def claimed() -> list[list[str]]:
        runs = store.claim("relay", 10, 3_600_000)
        store.settle("relay", [RowOutcome(entry.number, State.SENT) for run in runs for entry in run])
        return [[entry.message.body.decode() for entry in run] for run in runs]

    add(first, "1")
    add(second, "2")
    add(second, "alone", None)
    second.commit()
    # What has no order waits for nobody.
    assert claimed() == [["alone"]]
    add(third, "3")
    assert claimed() == []
    first.commit()
    # The third is open still; what it wrote comes later.
    assert claimed() == [["1", "2"]]
    assert claimed() == []
    add(first, "4")
    first.rollback()
    third.commit()
    assert claimed() == [["3"]]
    # One after the other there is nothing to wait for.
    add(first, "5")
    first.commit()
    assert claimed() == [["5"]]
    for connection in (first, second, third):
        connection.close()


@pytest.mark.shows("mended: Outbox order on PostgreSQL is not that of side-by-side transactions")
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.xdist_group("postgres")
def test_transactions_that_never_stop_overlapping_hold_nothing_back_for_ever(
    database: Tables, store: OutboxStore
) -> None:
    import psycopg

    box = outbox(FakeProducer(), store)
    links = [psycopg.connect(database.url) for _ in range(2)]
    got: list[str] = []
    for i in range(20):
        link = links[i % 2]
        store.add(link, box.prepare("T", b"%d" % i, None, {"sharding_key": "k"}))
        # There is always one open.
        links[(i + 1) % 2].commit()
        runs = store.claim("relay", 10, 3_600_000)
        store.settle("relay", [RowOutcome(entry.number, State.SENT) for run in runs for entry in run])
        got += [entry.message.body.decode() for run in runs for entry in run]
    assert got == [str(i) for i in range(len(got))]
    assert len(got) >= 17
    for link in links:
        link.close()


def test_a_row_that_is_no_message_is_parked_and_holds_nothing_back(database: Tables, store: OutboxStore) -> None:
    async def main() -> None:
        producer = FakeProducer()
        async with outbox(producer, store) as box:
            with store.database.transaction() as connection:
                for i in range(4):
                    store.add(connection, box.prepare("T", b"%d" % i, f"k{i}", {"sharding_key": "s"}))
                store.add(connection, box.prepare("T", b"4", "k4", {}))
            for key, fields in (("k0", "{"), ("k2", '{"flag":"x"}'), ("k4", "[" * 5000)):
                database.run("UPDATE rocketspark_outbox SET fields = ? WHERE outbox_key = ?", fields, key)
            assert (await box.relay_once()).sent == 2
        assert producer.bodies == ["1", "3"]
        assert [(e.key, e.state) for e in store.entries()] == [(f"k{i}", State.PARKED) for i in (0, 2, 4)]
        assert "cannot be read" in (store.get("k2").error or "")
        assert store.get("k2").message.body == b"2"
        assert store.drop(["k0", "k2", "k4"]) == 3

    run(main())


def test_an_error_that_no_database_takes_is_kept_all_the_same(store: OutboxStore) -> None:
    async def main() -> None:
        def fails(message: Message) -> BaseException | None:
            if message.body == b"bad":
                cause = ServerError(13, "a\0b\ud800" + "x" * 100_000, retriable=False)
                return SendFailed("T", cause, attempts=1, brokers=("b",), cost_ms=1)
            return None

        producer = FakeProducer(fails)
        async with outbox(producer, store) as box:
            with store.database.transaction() as connection:
                for text in (b"bad", b"good"):
                    store.add(connection, box.prepare("T", text, text.decode(), {}))
            done = await box.relay_once()
            assert (done.sent, done.parked) == (1, 1)
        assert len(store.get("bad").error or "") < 1100
        assert store.get("bad").state is State.PARKED

    run(main())


@pytest.mark.shows("mended: AsyncOutbox.close in a claim keeps rows")
def test_a_close_in_the_midst_of_a_claim_leaves_nothing_owned(store: OutboxStore) -> None:
    claims, go_on = threading.Event(), threading.Event()
    claim = store.claim

    def slow(*arguments: Any) -> Any:
        found = claim(*arguments)
        claims.set()
        assert go_on.wait(60)
        return found

    store.claim = slow  # type: ignore[method-assign]

    async def main(once: bool) -> None:
        producer = FakeProducer()
        box = outbox(producer, OutboxStore(store.database), relay=not once)
        box.store.claim = slow  # type: ignore[method-assign]
        with store.database.transaction() as connection:
            for i in range(3):
                store.add(connection, box.prepare("T", b"%d" % i, None, {"sharding_key": "s"}))
        await box.start()
        relaying = asyncio.ensure_future(box.relay_once()) if once else None
        await asyncio.to_thread(claims.wait, 60)
        if relaying is not None:
            relaying.cancel()
        closing = asyncio.ensure_future(box.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        assert producer.sent == []
        assert [entry.owner for entry in store.entries()] == [None] * 3
        store.drop([entry.key for entry in store.entries()])

    for once in (False, True):
        claims.clear()
        go_on.clear()
        run(main(once))
