"""The operations on messages: searched, sent again, traced, given by hand; dead letters, delayed and half ones."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_static_topic_clients import LOGICAL, make_static, move_to_b
from tests.live.test_static_topics import pair
from tests.support.patience import LIMIT_S

from rocketspark import (
    AsyncProducer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from rocketspark.admin import Admin, AsyncAdmin
from rocketspark.admin.messages import dead_letters, stored
from rocketspark.admin.messages import search as messages_search
from rocketspark.admin.messages.search import Search, SearchProgress
from rocketspark.admin.messages.stored import DirectResult
from rocketspark.admin.messages.waiting import DelayedLevel
from rocketspark.client.producer import in_flight_send
from rocketspark.errors import ConnectionLost, RouteNotFound, SendFailed, ServerError, UsageError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "messages searched, traced, sent again and given by hand; dead, delayed, half ones shown"
)


def until(true: Callable[[], Any]) -> Any:
    """Wait until it holds; returns what it gave."""
    end_s = time.monotonic() + LIMIT_S
    while not (found := true()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.namesrv, "senders") as producer:
        yield producer


def test_a_message_is_found_by_each_of_its_ids_and_by_its_place(admin: Admin, producer: Producer) -> None:
    admin.create_topic("found", queue_count=2)
    sent = producer.send("found", b"one", keys=["k"], tag="T", properties={"p": "v"})
    for name in (sent.message_id, sent.offset_message_id, sent.offset_message_id.lower()):
        for topic in ("found", None):
            got = admin.get_message(name, topic=topic)
            assert (got.body, got.queue, got.queue_offset) == (b"one", sent.queue, sent.queue_offset)
            assert got.message_id == sent.message_id
    assert admin.get_message_at(sent.queue, sent.queue_offset).message_id == sent.message_id
    for wrong in ("AC1100010000000000000000000000AB", sent.offset_message_id[:16] + "00000000FFFFFFFF", "no id"):
        with pytest.raises(ServerError, match=f"no message {wrong} is found") as raised:
            admin.get_message(wrong)
        assert raised.value.code == 22
    with pytest.raises(ServerError, match="has no message at offset 7; it holds offsets 0 to"):
        admin.get_message_at(sent.queue, 7)
    with pytest.raises(RouteNotFound):
        admin.get_message(sent.message_id, topic="nowhere")


def test_an_id_of_another_address_is_not_followed(admin: Admin, producer: Producer) -> None:
    """Whoever gives an id must not have requests, which are signed, sent where he likes."""
    admin.create_topic("followed", queue_count=1)
    with pytest.raises(ServerError, match="is found"):
        admin.get_message("7F000001" + "00000001" + "0000000000000000", topic="followed")


@pytest.fixture(scope="module")
def numbers(admin: Admin, producer: Producer) -> list[MessageQueue]:
    """A topic with 600 messages on four queues of two brokers; every tenth has a tag, a key and JSON."""
    admin.create_topic("numbers", queue_count=2)
    queues = admin.show_topic("numbers").route.read_queues()
    for n in range(600):
        body = json.dumps({"n": n, "who": {"name": f"w{n % 7}"}, "ten": True}).encode() if n % 10 == 0 else b"n=%d" % n
        more = {"tag": "ten", "keys": ["tens", f"k{n}"]} if n % 10 == 0 else {}
        producer.send("numbers", body, queue=queues[n % len(queues)], **more)  # type: ignore[arg-type]
    return list(queues)


def test_everything_is_found_in_the_order_of_times(admin: Admin, numbers: list[MessageQueue]) -> None:
    every = admin.find_messages("numbers", limit=1000)
    assert (len(every.messages), every.looked_at, every.stopped) == (600, 600, "")
    times = [m.store_time_ms for m in every.messages]
    assert times == sorted(times)
    newest = admin.find_messages("numbers", limit=1000, newest_first=True)
    assert sorted(map(place, newest.messages)) == sorted(map(place, every.messages))
    times = [m.store_time_ms for m in newest.messages]
    assert times == sorted(times, reverse=True)
    assert every.next_offsets == dict.fromkeys(numbers, 150)
    assert newest.next_offsets == dict.fromkeys(numbers, 0)


def place(m: ReceivedMessage) -> tuple[str, int, int]:
    return m.broker_name, m.queue_id, m.queue_offset


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_search_goes_on_where_it_stopped(admin: Admin, numbers: list[MessageQueue], newest_first: bool) -> None:
    found: list[ReceivedMessage] = []
    starts: dict[MessageQueue, int] | None = None
    stops = []
    for limit, scan_max in ((100, 1000), (1000, 130), (1000, 1000)):
        part = admin.find_messages("numbers", limit=limit, scan_max=scan_max, starts=starts, newest_first=newest_first)
        found += part.messages
        starts = part.next_offsets
        stops.append((len(part.messages), part.looked_at, part.stopped))
    assert stops == [(100, 100, "limit"), (130, 130, "scan_max"), (370, 370, "")]
    assert len({place(m) for m in found}) == 600


@pytest.mark.parametrize(
    ("search", "count"),
    [
        (Search(tag="ten"), 60),
        (Search(contains="n=1"), 100),
        (Search(contains="w3"), 9),
        (Search(json_path="$.n"), 60),
        (Search(json_path="$.who.name", json_value="w3"), 9),
        (Search(json_path="$.n", json_value="30"), 1),
        (Search(json_path="$.ten", json_value="true"), 60),
        (Search(json_path="$.ten", json_value="1"), 0),
        (Search(tag="ten", json_path="$['who'].*", json_value='"w0"'), 9),
        (Search(key="k30"), 1),
        (Search(key="tens", contains='"n": 10,'), 1),
        (Search(until_ms=1), 0),
        (Search(since_ms=1, tag="none"), 0),
    ],
)
def test_messages_are_searched(admin: Admin, numbers: list[MessageQueue], search: Search, count: int) -> None:
    for newest_first in (False, True):
        found = admin.find_messages("numbers", search, limit=1000, newest_first=newest_first)
        assert (len(found.messages), found.stopped) == (count, "")
        assert len({place(m) for m in found.messages}) == count


def test_a_key_is_asked_of_the_index_unless_that_may_have_more(admin: Admin, numbers: list[MessageQueue]) -> None:
    by_index = admin.find_messages("numbers", Search(key="tens"), limit=50)
    assert (len(by_index.messages), by_index.looked_at, by_index.stopped) == (50, 60, "limit")
    by_scan = admin.find_messages("numbers", Search(key="tens"), limit=100)
    assert (len(by_scan.messages), by_scan.looked_at) == (60, 600)
    assert list(map(place, by_scan.messages))[:50] == list(map(place, by_index.messages))


def test_a_search_by_time_reads_only_that_time(admin: Admin, numbers: list[MessageQueue]) -> None:
    every = admin.find_messages("numbers", limit=1000).messages
    since_ms, until_ms = every[200].store_time_ms, every[400].store_time_ms
    found = admin.find_messages("numbers", Search(since_ms=since_ms, until_ms=until_ms), limit=1000)
    wanted = [m for m in every if since_ms <= m.store_time_ms < until_ms]
    assert sorted(map(place, found.messages)) == sorted(map(place, wanted))
    assert found.looked_at == len(wanted)


def test_a_search_tells_its_progress_and_refuses_what_cannot_be(admin: Admin, numbers: list[MessageQueue]) -> None:
    told: list[SearchProgress] = []
    admin.find_messages("numbers", Search(contains="n=1"), limit=1000, on_progress=told.append)
    assert told[-1] == SearchProgress(600, 600, 100)
    with pytest.raises(UsageError, match="is no path into JSON"):
        admin.find_messages("numbers", Search(json_path="n"))
    with pytest.raises(UsageError, match="needs the json_path"):
        admin.find_messages("numbers", Search(json_value="n"))
    with pytest.raises(UsageError, match="limit 0"):
        admin.find_messages("numbers", limit=0)
    with pytest.raises(UsageError, match="has no queue broker-a/9 to read"):
        admin.find_messages("numbers", queues=[MessageQueue("numbers", "broker-a", 9)])
    with pytest.raises(RouteNotFound):
        admin.find_messages("nowhere")


def test_large_bodies_are_read_in_pieces(admin: Admin, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed ones too, which inflate to more than may be held: none is passed over for that."""
    admin.create_topic("large", queue_count=1)
    queue = admin.show_topic("large").route.read_queues()[0]
    for n in range(40):
        producer.send("large", b"%d " % n + bytes(20_000) + b" end", queue=queue)
    for module, name, value in (
        (stored, "INFLATED_BYTES", 50_000),
        (messages_search, "AHEAD_BYTES", 1),
        (messages_search, "AHEAD_BYTES_MIN", 1),
    ):
        monkeypatch.setattr(module, name, value)
        for newest_first in (False, True):
            found = admin.find_messages("large", Search(contains=b"\0 end"), newest_first=newest_first)
            order = range(39, -1, -1) if newest_first else range(40)
            assert [int(m.body.split()[0]) for m in found.messages if m.body_error is None] == list(order)
            # Of those that are small as they are stored few are held at a time.
            numbers, starts = list[int](), None
            while True:
                part = admin.find_messages("large", newest_first=newest_first, bytes_max=50_000, starts=starts)
                assert len(part.messages) <= 3
                numbers += [int(m.body.split()[0]) for m in part.messages]
                if part.stopped != "bytes":
                    break
                starts = part.next_offsets
            assert (numbers, part.stopped) == (list(order), "")


@pytest.mark.parametrize("search", [Search(), Search(tag="ten")])
def test_queues_that_hold_too_much_are_read_again_at_their_turn(
    admin: Admin, numbers: list[MessageQueue], search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many queues with bodies that inflate all would be held at once."""
    whole = [admin.find_messages("numbers", search, limit=1000, newest_first=newest) for newest in (False, True)]
    fill, held = messages_search._Cursor.fill, list[int]()

    async def filled(self: messages_search._Cursor, *, to_use: bool = False) -> None:
        await fill(self, to_use=to_use)
        if not to_use:
            held.append(len(self.buffer))

    monkeypatch.setattr(messages_search, "AHEAD_BYTES", 1)
    monkeypatch.setattr(messages_search._Cursor, "fill", filled)
    again = [admin.find_messages("numbers", search, limit=1000, newest_first=newest) for newest in (False, True)]
    for one, other in zip(whole, again, strict=True):
        assert list(map(place, other.messages)) == list(map(place, one.messages))
        assert (other.looked_at, other.stopped, other.next_offsets) == (one.looked_at, one.stopped, one.next_offsets)
    assert (set(held), len(held) > 2 * len(numbers) - 1) == ({0}, True)


def test_a_message_is_sent_and_sent_again(admin: Admin) -> None:
    admin.create_topic("again", queue_count=1)
    admin.create_topic("elsewhere", queue_count=1)
    fields = {"tag": "T", "keys": ["a", "b"], "properties": {"p": "v"}, "sharding_key": "s", "flag": 5}
    sent = admin.send_message("again", b"body", **fields)
    again = admin.resend_message(sent.offset_message_id)
    assert (again.message_id, again.queue.topic) == (sent.message_id, "again")
    other = admin.resend_message(sent.message_id, topic="again", to="elsewhere")
    for one in (sent, again, other):
        m = admin.get_message(one.offset_message_id)
        assert (m.body, m.tag, m.keys, m.flag) == (b"body", "T", ("a", "b"), 5)
        assert (m.properties["p"], m.properties["__SHARDINGKEY"]) == ("v", "s")
    assert other.queue.topic == "elsewhere"


def test_what_became_of_a_message_is_told(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("traced", queue_count=1)
    heard = threading.Semaphore(0)

    def listen(m: ReceivedMessage) -> bool:
        heard.release()
        return m.reconsume_times > 0

    with Producer(cluster.namesrv, "tracing", trace=True) as producer:
        sent = producer.send("traced", b"x", tag="T")
    consumer = PushConsumer(cluster.namesrv, "readers", trace=True, consume_from="first")
    consumer.subscribe("traced")
    consumer.listen(listen)
    with consumer:
        assert heard.acquire(timeout=LIMIT_S)
        message = admin.get_message(sent.message_id, topic="traced")
        until(lambda: tracks(admin, message) == [("readers", "CONSUMED")])
    events = until(lambda: (found := admin.trace_message(sent.message_id).events)[2:] and found)
    assert [(e.kind, e.group, e.success) for e in events[:3]] == [
        ("sent", "tracing", True),
        ("received", "readers", True),
        ("consumed", "readers", False),
    ]
    assert (events[0].topic, events[0].message_kind, events[2].result) == ("traced", "normal", "failed")
    assert events[1].request_id == events[2].request_id != ""
    assert [e.time_ms for e in events] == sorted(e.time_ms for e in events)
    # The connection ends a moment after the consumer did.
    until(lambda: tracks(admin, message) == [("readers", "NOT_ONLINE")])
    assert admin.trace_message("AC1100010000000000000000000000AB").events == []


def tracks(admin: Admin, message: ReceivedMessage) -> list[tuple[str, str]]:
    return [(t.group, str(t.track)) for t in admin.track_message(message)]


def test_a_message_is_given_to_a_consumer_by_hand(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    admin.create_topic("by-hand", queue_count=1)
    sent = producer.send("by-hand", b"again")
    given: list[bytes] = []

    def listen(m: ReceivedMessage) -> bool:
        given.append(m.body)
        if m.body == b"bad":
            raise ValueError("no such order")
        return True

    consumer = PushConsumer(cluster.namesrv, "hands", consume_from="last")
    consumer.subscribe("by-hand")
    consumer.listen(listen)
    with consumer:
        done = until(lambda: direct(admin, sent.message_id))
        assert (done.result, done.remark, done.ordered, done.broker_name) == (
            "CR_SUCCESS",
            None,
            False,
            sent.queue.broker_name,
        )
        assert done.client_id == consumer.client_id
        # A new group reads a young queue from its begin, so once it came by itself.
        until(lambda: given == [b"again", b"again"])
        bad = producer.send("by-hand", b"bad", queue=sent.queue)
        done = admin.consume_directly(bad.offset_message_id, "hands", client_id=consumer.client_id)
        assert (done.result, done.remark) == ("CR_THROW_EXCEPTION", "ValueError: no such order")
        with pytest.raises(ServerError):
            admin.consume_directly(sent.message_id, "hands", client_id="nobody")
    with pytest.raises(UsageError, match="group 'none' has no member that is connected"):
        admin.consume_directly(sent.message_id, "none")


def direct(admin: Admin, message_id: str) -> DirectResult | None:
    try:
        return admin.consume_directly(message_id, "hands", topic="by-hand")
    except UsageError:
        return None  # The consumer is not known to the broker yet.


def bury(cluster: Cluster, topic: str, group: str, count: int) -> None:
    """Make dead letters: the group gives each message up at its first failure."""
    left = threading.Semaphore(0)

    def listen(m: ReceivedMessage) -> bool:
        left.release()
        return False

    consumer = PushConsumer(cluster.namesrv, group, consume_from="first", max_reconsume_times=0)
    consumer.subscribe(topic)
    consumer.listen(listen)
    with consumer, Admin(cluster.namesrv) as admin:
        for _ in range(count):
            assert left.acquire(timeout=LIMIT_S)
        until(lambda: sum(c.letters for c in admin.list_dead_letters() if c.group == group) == count)


def test_a_unique_id_that_reads_as_no_position_is_asked_for_by_index_alone(
    cluster: Cluster, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("positions", queue_count=1)
    host, port = cluster.brokers[0].split(":")
    of_broker = "".join(f"{int(part):02X}" for part in host.split(".")) + f"{int(port):08X}"
    with pytest.raises(ServerError, match="is found; was it deleted"):
        admin.get_message(of_broker + "F" * 16, topic="positions")
    assert "broken header" not in caplog.text


def test_two_who_resend_dead_letters_at_once_send_each_once(
    cluster: Cluster, admin: Admin, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("twice", queue_count=1)
    for n in range(2):
        producer.send("twice", b"%d" % n)
    bury(cluster, "twice", "hasty", 2)
    with Admin(cluster.namesrv) as other:
        ask = dead_letters.DeadLetterOperations._is_there
        begun, refused = threading.Event(), threading.Event()

        async def ask_late(operations: Any, letter: Any) -> bool:
            there = await ask(operations, letter)
            if not begun.is_set():  # The first has asked, and not sent yet.
                begun.set()
                with pytest.raises(UsageError, match="are being sent again by somebody else"):
                    await asyncio.to_thread(other.resend_dead_letters, "hasty")
                refused.set()
                # To look is allowed.
                seen = await asyncio.to_thread(other.resend_dead_letters, "hasty", dry_run=True)
                assert [r.outcome for r in seen] == ["would send"] * 2
            return there

        monkeypatch.setattr(dead_letters.DeadLetterOperations, "_is_there", ask_late)
        assert [r.outcome for r in admin.resend_dead_letters("hasty")] == ["sent"] * 2
        assert refused.is_set()
        assert [r.outcome for r in other.resend_dead_letters("hasty")] == ["already"] * 2
    assert len(admin.find_messages("twice").messages) == 4


@pytest.mark.shows("mended: `dlq resend` sent a letter twice when the answer to its send was lost")
def test_a_resend_without_an_answer_is_looked_for_before_it_is_sent_again(
    cluster: Cluster, admin: Admin, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("unsure", queue_count=1)
    for n in range(3):
        producer.send("unsure", b"%d" % n)
    bury(cluster, "unsure", "patient", 3)
    monkeypatch.setattr(dead_letters, "DOUBT_S", 0.0)
    replies, sends = 0, 0
    result_of, send = in_flight_send.result_of, AsyncProducer.send_packed

    def lost(*reply: Any) -> Any:
        nonlocal replies
        replies += 1
        if replies == 1:
            raise ConnectionLost("the answer was lost")
        return result_of(*reply)

    async def refused(*what: Any) -> Any:
        nonlocal sends
        sends += 1
        if sends == 2:
            raise ConnectionLost("it was not sent")
        return await send(*what)

    monkeypatch.setattr(in_flight_send, "result_of", lost)
    monkeypatch.setattr(AsyncProducer, "send_packed", refused)
    assert [r.outcome for r in admin.resend_dead_letters("patient")] == ["sent"] * 3
    assert (replies, sends) == (3, 4)
    assert sorted(m.body for m in admin.find_messages("unsure").messages) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_dead_letters_are_shown_and_sent_again_once(
    cluster: Cluster, admin: Admin, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_LETTERS", 2)
    admin.create_topic("orders", queue_count=1)
    for n in range(3):
        producer.send("orders", b"%d" % n, keys=[f"k{n}"], sharding_key="one")
    bury(cluster, "orders", "billing", 3)
    (count,) = [c for c in admin.list_dead_letters() if c.group == "billing"]
    assert (count.topic, count.letters, count.readable, count.newest_ms > 0) == ("%DLQ%billing", 3, True, True)
    shown = admin.show_dead_letters("billing")
    assert [(x.message.body, x.origin_topic) for x in shown.letters] == [
        (b"0", "orders"),
        (b"1", "orders"),
        (b"2", "orders"),
    ]
    first = shown.letters[0]
    (would,) = admin.resend_dead_letters("billing", [first.message.message_id], dry_run=True)
    assert (would.outcome, would.target, would.resend_id) == ("would send", "orders", first.resend_id)
    (one,) = admin.resend_dead_letters("billing", [first.message.offset_message_id])
    assert one.outcome == "sent"
    assert [r.outcome for r in admin.resend_dead_letters("billing")] == ["already", "sent", "sent"]
    assert [r.outcome for r in admin.resend_dead_letters("billing")] == ["already"] * 3
    sent = admin.find_messages("orders").messages
    assert [m.body for m in sent] == [b"0", b"1", b"2", b"0", b"1", b"2"]
    again = sent[3]
    assert (again.message_id, again.keys) == (first.resend_id, ("k0",))
    assert again.properties["originMessageId"] == first.message.message_id
    assert again.properties["originPlace"] == first.place
    with pytest.raises(UsageError, match="has no dead letter nothing"):
        admin.resend_dead_letters("billing", ["nothing"])
    with pytest.raises(RouteNotFound, match="which is not there"):
        admin.resend_dead_letters("billing", to="nowhere")
    with pytest.raises(UsageError, match="no dead letters of group 'nobody'"):
        admin.show_dead_letters("nobody")
    admin.delete_topic("orders")
    (lost,) = admin.resend_dead_letters("billing", [first.message.message_id])
    assert (lost.outcome, lost.why) == ("failed", "topic 'orders' is not there: create it, or name another to send to")
    (back,) = admin.resend_dead_letters("billing", [first.message.message_id], to_group=True)
    assert (back.outcome, back.target) == ("sent", "%RETRY%billing")


def test_delayed_messages_are_counted_by_time_and_topic() -> None:
    now_ms = int(time.time() * 1000)
    # One of its own: messages that come again wait by delay level too.
    with run_cluster() as cluster, Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, "senders") as producer:
        admin.create_topic("later", queue_count=1)
        for level in (18, 18, 18, 17):
            producer.send("later", b"x", delay_level=level)
        for hours in (5, 5, 9):
            producer.send("later", b"x", deliver_at_ms=now_ms + hours * 3_600_000)
        # A timer message is counted once it is on the wheel.
        found = until(lambda: (d := admin.list_delayed()).whole and sum(d.due.values()) == 7 and d)
        bounded = admin.list_delayed(scan_max=1)
    assert found.levels == [
        DelayedLevel("broker-a", 17, 3_600_000, 1, found.levels[0].next_due_ms),
        DelayedLevel("broker-a", 18, 7_200_000, 3, found.levels[1].next_due_ms),
    ]
    assert [(t.kind, t.topic, t.waiting) for t in found.topics] == [("level", "later", 4), ("timer", "later", 3)]
    levels, timers = found.topics
    assert 3_600_000 <= levels.next_due_ms - now_ms < 3_600_000 + LIMIT_S * 1000
    assert 7_200_000 <= levels.last_due_ms - now_ms < 7_200_000 + LIMIT_S * 1000
    assert abs(timers.next_due_ms - now_ms - 5 * 3_600_000) <= 1000
    assert abs(timers.last_due_ms - now_ms - 9 * 3_600_000) <= 1000
    assert (bounded.whole, [level.waiting for level in bounded.levels]) == (False, [1, 3])


class Undecided:
    """Ends transactions as their bodies say."""

    def execute(self, message: Message, transaction: object) -> TransactionState:
        ends = {b"done": TransactionState.COMMIT, b"undone": TransactionState.ROLLBACK}
        return ends.get(message.body, TransactionState.UNKNOWN)

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


def test_open_transactions_are_listed_and_checked_again(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("paid", queue_count=1)
    with TransactionProducer(cluster.namesrv, "payers", listener=Undecided()) as producer:
        sent = [producer.send_in_transaction("paid", body, keys=["k"]) for body in (b"done", b"open", b"undone")]
        (one,) = until(lambda: len(found := admin.list_transactions().transactions) == 1 and found)
        assert (one.topic, one.group, one.checks, one.keys) == ("paid", "payers", 0, ("k",))
        assert (one.message_id, one.body_bytes) == (sent[1].sent.message_id, 4)
        assert admin.list_transactions(given_up=True).transactions == []
        assert admin.check_transaction(one.offset_message_id) == one
        # A copy takes its place, whose checks count anew.
        (copy,) = until(lambda: len(found := admin.list_transactions().transactions) == 1 and found)
        assert copy.message_id == one.message_id
        until(lambda: admin.list_transactions().transactions[0].offset_message_id != one.offset_message_id)
        with pytest.raises(UsageError, match="no open or given-up transaction"):
            admin.check_transaction(sent[0].sent.offset_message_id)


def test_a_moved_static_topic_is_searched_by_its_logical_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            async with AsyncProducer(names, "PG") as producer, AsyncAdmin(names) as admin:
                for n in range(20):
                    await producer.send("Moved", b"%d" % n, queue=LOGICAL[n % 4])
                await move_to_b(to_a, to_b)
                for n in range(20, 40):
                    await producer.send("Moved", b"%d" % n, queue=LOGICAL[n % 4])
                for newest_first in (False, True):
                    found = await admin.find_messages("Moved", limit=100, newest_first=newest_first)
                    assert sorted(int(m.body) for m in found.messages) == list(range(40))
                    assert {m.queue for m in found.messages} == set(LOGICAL)
                    assert max(m.queue_offset for m in found.messages if m.queue_id == 0) >= 10_000
                m = found.messages[0]
                assert (await admin.get_message_at(m.queue, m.queue_offset)).body == m.body
                assert (await admin.get_message(m.message_id, topic="Moved")).body == m.body

    asyncio.run(main())


def test_who_may_only_read_one_topic_searches_it() -> None:
    with run_cluster(secure=True) as secure, Admin(secure.namesrv, **secure.client_options) as super_user:
        super_user.create_topic("orders", queue_count=1)
        super_user.create_topic("salaries", queue_count=1)
        sent = super_user.send_message("orders", b"x", keys=["k"])
        secret = super_user.send_message("salaries", b"secret", keys=["k"])
        super_user.create_user("clerk", "a-secret-of-his")
        super_user.create_acl("clerk", ["Group:TOOLS_CONSUMER", "Topic:orders"], ["Get", "Sub"])
        keys = {"access_key": "clerk", "secret_key": "a-secret-of-his"}
        with Admin(secure.namesrv, **{**secure.client_options, **keys}) as admin:
            for search in (None, Search(key="k"), Search(contains="x")):
                assert [m.body for m in admin.find_messages("orders", search).messages] == [b"x"]
            assert admin.get_message(sent.message_id, topic="orders").body == b"x"
            assert admin.get_message(sent.offset_message_id, topic="orders").body == b"x"
            for search in (None, Search(key="k")):
                with pytest.raises(ServerError, match="code 16"):
                    admin.find_messages("salaries", search)
            for name in (secret.message_id, secret.offset_message_id):
                for topic in ("salaries", "orders", None):
                    with pytest.raises(ServerError):
                        admin.get_message(name, topic=topic)
            with pytest.raises(SendFailed):
                admin.send_message("orders", b"y")
            with pytest.raises(SendFailed):
                admin.resend_message(sent.message_id, topic="orders")
