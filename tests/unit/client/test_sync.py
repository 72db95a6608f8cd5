"""The synchronous clients: the same signatures, and threads that come and go with them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.fake import Fake, until
from tests.unit.client.producer.test_producer import SEND, failing

import rocketspark
from rocketspark import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from rocketspark.admin.operations import Admin, AsyncAdmin
from rocketspark.client.connection.loop_thread import LoopThread
from rocketspark.client.hooks import Hooks, Sending
from rocketspark.client.producer.prepared_message import pack
from rocketspark.client.producer.thread_sends import WaitingSend
from rocketspark.client.results import SendResult
from rocketspark.errors import MessageIllegal, NotSent, SendFailed, ServerError, StateError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import record

PAIRS = [
    (AsyncProducer, Producer),
    (AsyncPushConsumer, PushConsumer),
    (AsyncPullConsumer, PullConsumer),
    (AsyncAdmin, Admin),
]


@pytest.fixture(autouse=True)
def _no_shared_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process, such as Spark's, may hold the shared loop: these count threads on their own."""
    monkeypatch.setattr(LoopThread, "_shared", None)


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(function)
        for name, function in inspect.getmembers(kind, callable)
        if not name.startswith("_") or name == "__init__"
    }


@pytest.mark.shows("synchronous classes have the asynchronous ones' methods and arguments")
@pytest.mark.parametrize(("core", "facade"), PAIRS)
def test_same_methods_and_signatures(core: type, facade: type) -> None:
    ours, theirs = public(facade), public(core)
    # Only what has no meaning under asyncio, where every send can be a task.
    assert set(ours) - set(theirs) <= {"send_future"}
    # Only what the facade itself is made of.
    parts = {"send_packed"}
    assert set(theirs) - set(ours) <= parts | {"lend", "take_back", "unread_now"}
    for name in set(ours) & set(theirs):
        assert ours[name] == theirs[name], name


def waiting_send(core: AsyncProducer, message: Message) -> WaitingSend:
    out = pack(message, core.packing)
    return WaitingSend(core.send_path, out, message.sharding_key, None, None, core.attempts, message)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A fake cluster on a loop of its own, in another thread."""
    thread = LoopThread()
    made = Fake(t=4, u=1)
    thread.call(made.__aenter__())
    yield made
    thread.call(made.__aexit__())
    thread._users = 1
    thread.release()


@pytest.mark.shows("Producer, AsyncProducer: send, one-way, batch, queue, sharding key")
def test_send_in_all_ways(fake: Fake) -> None:
    before = threading.active_count()
    with Producer(fake.namesrv, "pg") as producer:
        assert threading.active_count() == before + 1
        assert producer.send("t", b"1").queue_offset == 0
        future = producer.send_future(Message(topic="t", body=b"2"))
        assert isinstance(future, Future)
        assert isinstance(future.result(120), SendResult)
        producer.send_oneway("t", b"3")
        assert producer.send_batch([Message(topic="t", body=b"4")] * 2).message_id.count(",") == 1
        assert len(producer.queues("t")) == 4
        with pytest.raises(MessageIllegal):
            producer.send("t", b"")
        with pytest.raises(MessageIllegal):
            producer.send_future("t", b"")
    assert threading.active_count() == before
    with pytest.raises(StateError):
        producer.send("t", b"5")
    producer.close()


@pytest.mark.parametrize("kind", [Producer, PullConsumer, SimpleConsumer, Admin])
def test_a_client_that_was_closed_before_its_start_stays_closed(fake: Fake, kind: Any) -> None:
    client = kind(fake.namesrv) if kind is Admin else kind(fake.namesrv, "g")
    client.close()
    client.close()
    with pytest.raises(StateError, match="closed"):
        client.start()
    client.close()


def test_many_threads_and_clients_share_one_loop(fake: Fake) -> None:
    before = threading.active_count()
    with Producer(fake.namesrv, "p1") as one, Producer(fake.namesrv, "p2") as two:
        assert threading.active_count() == before + 1
        results: list[SendResult] = []

        def send(producer: Producer) -> None:
            for _ in range(50):
                results.append(producer.send("t", b"x"))

        threads = [threading.Thread(target=send, args=(p,)) for p in (one, two) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({r.message_id for r in results}) == 400
        assert one.client_id != two.client_id
    assert threading.active_count() == before


def test_futures_of_one_sharding_key_keep_their_order(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        futures = [producer.send_future("t", b"%d" % i, sharding_key="k") for i in range(200)]
        assert [f.result(120).queue_offset for f in futures] == list(range(200))


def test_futures_are_tried_again_as_sends_are(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))
    with Producer(fake.namesrv, "pg", future_retries=1) as producer:
        assert producer.send_future("t", b"the first finds the route").result(120).queue_offset == 0
        before = fake.broker.requests[SEND]
        fake.broker.rules[SEND] = failing(1)
        assert producer.send_future("t", b"again").result(120).status == "SEND_OK"
        assert fake.broker.requests[SEND] == before + 2
        fake.broker.rules[SEND] = failing(1, 1, 1)
        failed = producer.send_future("t", b"twice").exception(5)
        assert isinstance(failed, SendFailed)
        assert (failed.attempts, failed.code, failed.brokers) == (2, 1, ("broker-a", "broker-a"))
        fake.broker.rules[SEND] = failing(13)
        refused = producer.send_future("t", b"not again").exception(5)
        assert isinstance(refused, SendFailed)
        assert (refused.attempts, refused.code) == (1, 13)
        fake.broker.rules.clear()
        fake.broker.silent.add(SEND)
        late = producer.send_future("t", b"no answer", timeout_ms=60).exception(5)
        assert isinstance(late, SendFailed)
        assert late.code == 10002
        fake.broker.silent.clear()
        # What is in flight when closing is finished.
        futures = [producer.send_future("t", b"%d" % i) for i in range(500)]
    assert all(f.done() for f in futures)
    assert {f.result().status for f in futures} == {"SEND_OK"}


def test_what_a_hook_raises_reaches_the_caller_alone(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    class Forbid(Hooks):
        def check_forbidden(self, sending: Sending) -> None:
            raise PermissionError("not this topic")

    with Producer(fake.namesrv, "pg", hooks=[Forbid()]) as producer:
        with pytest.raises(PermissionError, match="not this topic"):
            producer.send("t", b"x")
        assert isinstance(producer.send_future("t", b"x").exception(5), PermissionError)
    gc.collect()
    # A task that ended with it would complain that nobody took it.
    assert caplog.messages == []
    assert fake.broker.requests[SEND] == 0


def test_sends_of_threads_are_gathered_too(fake: Fake) -> None:
    batch = RequestCode.SEND_BATCH_MESSAGE
    with Producer(fake.namesrv, "pg", linger_ms=60_000) as producer:
        late = producer.send_future("u", b"delayed", delay_level=1)
        assert late.result(120).queue_offset == 0
        futures = [producer.send_future("u", b"%d" % i) for i in range(20)]
        futures += [producer.send_future("t", b"%d" % i, sharding_key="k") for i in range(20)]
        gathered = producer._core.send_path.accumulator
        assert gathered is not None
        producer._loop.call(until(lambda: sum(map(len, gathered._waiting.values())) == 40))
    results = [f.result(0) for f in futures]
    assert [r.queue_offset for r in results] == [*range(1, 21), *range(20)]
    assert len({r.message_id for r in results}) == 40
    assert len({r.queue for r in results[20:]}) == 1
    assert (fake.broker.requests[SEND], fake.broker.requests[batch]) == (1, 2)
    with Producer(fake.namesrv, "pg", linger_ms=1) as producer:
        fake.broker.rules[SEND] = fake.broker.rules[batch] = failing(13, 13)
        refused = [producer.send_future("u", b"no") for _ in range(2)]
        assert {type(f.exception(5)) for f in refused} == {SendFailed}
        fake.broker.rules.clear()
        assert producer.send("u", b"waited for").queue_offset == 21


def test_a_send_that_fails_is_tried_again_by_its_own_rules(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))
    with Producer(fake.namesrv, "pg", retries=2, future_retries=0) as producer:
        producer.send("t", b"the first finds the route")
        before = fake.broker.requests[SEND]
        fake.broker.rules[SEND] = failing(1, 1)
        assert producer.send("t", b"x").status == "SEND_OK"
        assert fake.broker.requests[SEND] == before + 3
        fake.broker.rules[SEND] = failing(1, 1, 1)
        with pytest.raises(SendFailed) as failed:
            producer.send("t", b"x")
        assert (failed.value.attempts, failed.value.brokers) == (3, ("broker-a",) * 3)
        fake.broker.rules[SEND] = failing(1)
        once = producer.send_future("t", b"x").exception(5)
        assert isinstance(once, SendFailed)
        assert once.attempts == 1


def test_a_send_that_nobody_waits_for_any_more_is_not_sent_again(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"the first finds the route")
        before = fake.broker.requests[SEND]
        fake.broker.rules[SEND] = failing(1)
        message = Message(topic="u", body=b"interrupted")
        core = producer._core
        send = waiting_send(core, message)
        send.cancel()
        with pytest.raises(ServerError, match="as told"):
            producer._loop.ask(send)
        assert fake.broker.requests[SEND] == before + 1
        assert producer.send("u", b"goes on").queue_offset == 1


def test_push_consumer(fake: Fake) -> None:
    before = threading.active_count()
    got: list[ReceivedMessage] = []
    arrived = threading.Event()
    consumer = PushConsumer(fake.namesrv, "g", consume_from="first")
    consumer.subscribe("t")

    @consumer.listen
    def listener(message: ReceivedMessage) -> None:
        got.append(message)
        if len(got) == 100:
            arrived.set()

    with consumer, Producer(fake.namesrv, "pg") as producer:
        consumer.subscribe("u")
        for i in range(100):
            producer.send("tu"[i % 2], b"%d" % i)
        assert arrived.wait(120)
        assert len([q for q in consumer.queues() if q.topic in "tu"]) == 5
    assert sorted(int(m.body) for m in got) == list(range(100))
    assert threading.active_count() == before


def test_push_consumer_with_a_coroutine(fake: Fake) -> None:
    arrived = threading.Event()
    names: list[str] = []
    consumer = PushConsumer(fake.namesrv, "g", consume_from="first")
    consumer.subscribe("u")

    @consumer.listen
    async def listener(message: ReceivedMessage) -> None:
        names.append(threading.current_thread().name)
        arrived.set()

    with consumer, Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"x")
        assert arrived.wait(120)
    assert names == ["rocketspark-client"]


def test_a_synchronous_call_on_the_clients_own_thread_is_refused(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        outcome: list[BaseException] = []
        done = threading.Event()

        def call() -> None:
            try:
                producer.send("u", b"y")
            except StateError as e:
                outcome.append(e)
            done.set()

        producer._loop._loop.call_soon_threadsafe(call)
        assert done.wait(120)
        assert "use the Async client" in str(outcome[0])


@pytest.mark.shows("callbacks in threads")
def test_callbacks_hold_up_nothing_and_may_send(fake: Fake) -> None:
    """They run in threads of the producer's; those of one future in their order; `close` waits for them."""
    go_on, sent, order = threading.Event(), threading.Event(), list[str]()

    def sends(_: Future[SendResult]) -> None:
        assert producer.send("u", b"in a callback").queue.topic == "u"
        sent.set()

    with Producer(fake.namesrv, "pg") as producer:
        added = threading.Event()
        producer._loop._loop.call_soon_threadsafe(added.wait, 120)
        futures = [producer.send_future("u", b"%d" % n) for n in range(3)]
        for future in futures[:2]:
            future.add_done_callback(lambda _: order.append("waits") or (go_on.wait(120) and order.append("goes on")))
            future.add_done_callback(lambda _: order.append("after it"))
        futures[2].add_done_callback(sends)
        added.set()
        assert sent.wait(120)
        assert producer.send("u", b"beside them").queue.topic == "u"
        assert order == ["waits", "waits"]
        go_on.set()
    assert sorted(order) == ["after it"] * 2 + ["goes on"] * 2 + ["waits"] * 2


def test_pull_consumer_iterates(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        for i in range(10):
            producer.send("u", b"%d" % i)
    with PullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        consumer.subscribe("u")
        got = []
        for message in consumer:
            got.append(int(message.body))
            if len(got) == 4:
                break
    assert got == [0, 1, 2, 3]
    assert fake.broker.offsets["g", "u", 0] == 4
    with pytest.raises(ZeroDivisionError), PullConsumer(fake.namesrv, "g") as consumer:  # noqa: PT012
        consumer.subscribe("u")
        for message in consumer:
            raise ZeroDivisionError(message.body)
    assert fake.broker.offsets["g", "u", 0] == 4


@pytest.mark.shows("mended: iterating a PullConsumer commits messages that were never given out")
def test_an_iterator_that_is_held_commits_what_it_gave_out(fake: Fake) -> None:
    for i in range(50):
        fake.broker.put("u", 0, b"%d" % i)
    with PullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        consumer.subscribe("u")
        messages = iter(consumer)
        assert [int(next(messages).body) for _ in range(3)] == [0, 1, 2]
    assert fake.broker.offsets["g", "u", 0] == 3
    # Nothing comes after the end.
    assert list(messages) == []
    assert fake.broker.offsets["g", "u", 0] == 3


@pytest.mark.shows("mended: iterating a PullConsumer commits messages that were never given out")
def test_closing_another_threads_iterator_leaves_out_what_it_works_at(fake: Fake) -> None:
    for i in range(50):
        fake.broker.put("u", 0, b"%d" % i)
    consumer = PullConsumer(fake.namesrv, "g", consume_from="first")
    consumer.subscribe("u")
    consumer.start()
    got: list[int] = []
    third, closed = threading.Event(), threading.Event()

    def work() -> None:
        for message in consumer:
            got.append(int(message.body))
            if len(got) == 3:
                third.set()
                closed.wait(60)

    worker = threading.Thread(target=work)
    worker.start()
    assert third.wait(60)
    consumer.close()
    closed.set()
    worker.join(60)
    assert (got, worker.is_alive()) == ([0, 1, 2], False)
    assert fake.broker.offsets["g", "u", 0] == 2


@pytest.mark.shows("mended: iterating a PullConsumer commits messages that were never given out")
def test_an_iterator_commits_while_it_goes_and_an_error_leaves_its_message(fake: Fake) -> None:
    for i in range(50):
        fake.broker.put("u", 0, b"%d" % i)
    options: dict[str, Any] = {"consume_from": "first", "commit_interval_ms": 5}
    with pytest.raises(ZeroDivisionError), PullConsumer(fake.namesrv, "g", **options) as consumer:  # noqa: PT012
        consumer.subscribe("u")
        for message in consumer:
            if message.queue_offset == 7:
                consumer._loop.call(until(lambda: fake.broker.offsets.get(("g", "u", 0)) == 7))
                raise ZeroDivisionError
    assert fake.broker.offsets["g", "u", 0] == 7


def test_a_seek_within_an_iteration_counts_at_once(fake: Fake) -> None:
    for i in range(20):
        fake.broker.put("u", 0, b"%d" % i)
    queue = MessageQueue("u", "broker-a", 0)
    got: list[int] = []
    with PullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        consumer.assign([queue])
        for message in consumer:
            got.append(message.queue_offset)
            if got == [0, 1]:
                consumer.seek(queue, 15)
            if len(got) == 5:
                break
        assert consumer.position(queue) == 18
    assert got == [0, 1, 15, 16, 17]
    assert fake.broker.offsets["g", "u", 0] == 18


@pytest.mark.shows(
    "mended: an interrupt in the last step of a poll, or of an iteration, loses what it had found",
    "mended: iterating a PullConsumer commits messages that were never given out",
)
@pytest.mark.parametrize("found", [True, False])
def test_an_interrupt_takes_back_what_a_poll_had_found(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    for i in range(5):
        fake.broker.put("u", 0, b"%d" % i)
    queue = MessageQueue("u", "broker-a", 0)
    with PullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        consumer.assign([queue])
        ask = LoopThread.ask

        def interrupted(self: LoopThread, waiter: Any) -> Any:
            if found:
                ask(self, waiter)
            else:
                # Its thread is gone before the last step of the task, which nothing cancels any more.
                self.put(waiter)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "ask", interrupted)
            for hand in (consumer.poll, lambda: next(iter(consumer))):
                with pytest.raises(KeyboardInterrupt):
                    hand()
        assert [m.queue_offset for m in consumer.poll(5000, count_max=2)] == [0, 1]
    assert fake.broker.offsets["g", "u", 0] == 2


def test_start_that_fails_leaves_no_thread() -> None:
    before = threading.active_count()
    consumer = PullConsumer("127.0.0.1:1", "g")
    started_s = time.monotonic()
    with pytest.raises(NotSent, match="no NameServer answers"):
        consumer.start()
    assert time.monotonic() - started_s < 50
    assert threading.active_count() == before


def test_a_call_in_the_moment_of_closing_ends() -> None:
    thread = LoopThread.acquire()

    async def never() -> None:
        raise AssertionError

    thread.release()
    with pytest.raises(StateError, match="was closed"):
        thread.call(never())


def test_a_message_may_be_changed_after_send_future(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        message = Message(topic="u", body=b"0")
        futures = []
        for i in range(50):
            message.body = b"%d" % i
            futures.append(producer.send_future(message))
        for future in futures:
            future.result(120)
    # In any order: those that wait for the route may be overtaken.
    bodies = [record.decode(r).body for r in fake.broker.queues["u", 0]]
    assert sorted(bodies, key=int) == [b"%d" % i for i in range(50)]


def test_a_forked_child_is_told_and_can_begin_anew(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    producer.send("u", b"never")
                except StateError:
                    with Producer(fake.namesrv, "pg") as mine:
                        mine.send("u", b"child")
                    status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0
        producer.send("u", b"parent again")
    bodies = [record.decode(r).body for r in fake.broker.queues["u", 0]]
    assert bodies == [b"parent", b"child", b"parent again"]


@pytest.mark.shows("clients made before a fork")
def test_clients_made_before_a_fork_are_others_in_each_process(fake: Fake) -> None:
    """As gunicorn --preload and multiprocessing make them: at import, and started in each worker."""
    producer = Producer(fake.namesrv, "pg")
    named = Producer(fake.namesrv, "named", instance_name="web", unit_name="u")
    consumer = PushConsumer(fake.namesrv, "g", instance_name="web", unit_name="u")
    consumer.subscribe("u")
    consumer.listen(lambda message: None)
    before = producer.client_id
    children = []
    for _ in range(2):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with producer, named, consumer:
                    assert producer.send_future("u", b"x").result(60).queue.topic == "u"
                    assert named.client_id == consumer.client_id
                    assert named.client_id.endswith("@web@u")
                    os.write(tell, producer.client_id.encode())
                status = 0
            finally:
                os._exit(status)
        os.close(tell)
        children.append((child, told))
    with producer:
        ids = {producer.client_id, *(os.read(told, 1000).decode() for _, told in children)}
    assert [os.waitpid(child, 0)[1] for child, _ in children] == [0, 0]
    assert (before, len(ids)) == ("", 3)
    assert len(fake.broker.queues["u", 0]) == 2


@pytest.mark.shows("mended: a forked child can't open the parent's broadcast consumer")
def test_a_forked_child_opens_the_broadcast_consumer_of_its_parent(fake: Fake, tmp_path: Path) -> None:
    def made() -> PushConsumer:
        consumer = PushConsumer(fake.namesrv, "g", broadcast=True, offset_folder=str(tmp_path))
        consumer.subscribe("u")
        consumer.listen(lambda message: None)
        return consumer

    with made() as parents:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with made() as mine:
                    status = 0 if mine.client_id == parents.client_id and mine.queues() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.shows(
    "mended: a forked process that ends by `sys.exit` while its parent's client runs on uvloop died of "
    "SIGSEGV as it ended"
)
def test_a_forked_child_ends_as_it_wants_to(fake: Fake) -> None:
    """Not by a fault: libuv's threads, which a child has not, are waited for at its end."""
    code = (
        "import os, sys\n"
        "from rocketspark import Producer\n"
        f"p = Producer({fake.namesrv!r}, 'pg'); p.start(); p.send('u', b'x')\n"
        "child = os.fork()\n"
        "if not child: sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); p.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def ended(fake: Fake, count: int) -> None:
    """Wait until no client is left, and so many have told the broker that they leave."""
    end_s = time.monotonic() + 120
    while LoopThread._shared is not None:
        assert time.monotonic() < end_s, f"{LoopThread._shared._users} clients are open"
        gc.collect()
        time.sleep(0.01)
    assert fake.broker.requests[RequestCode.UNREGISTER_CLIENT] == count


@pytest.mark.shows("a synchronous client without a listener closes once nothing refers to it")
def test_clients_that_nothing_refers_to_close(fake: Fake) -> None:
    before = threading.active_count()
    producer = Producer(fake.namesrv, "pg", linger_ms=1000)
    producer.start()
    called = threading.Event()
    sent = [producer.send_future("u", b"%d" % i) for i in range(100)]
    sent[-1].add_done_callback(lambda future: called.set())
    del producer
    assert [future.result(120).queue_offset for future in sent] == list(range(100))
    assert called.wait(120)
    admin, simple = Admin(fake.namesrv), SimpleConsumer(fake.namesrv, "simple")
    simple.subscribe("u")
    for client in (admin, simple):
        client.start()
    del admin, simple, client
    ended(fake, 1)
    consumer = PullConsumer(fake.namesrv, "g", consume_from="first")
    consumer.subscribe("u")
    consumer.start()
    read = [consumer.poll(60_000, count_max=10) for _ in range(2)]
    del consumer
    ended(fake, 2)
    # As where it is left by an error, nobody knows whether what it read last is done.
    assert fake.broker.offsets["g", "u", 0] == len(read[0]) == 10
    until_ended = time.monotonic() + 120
    while threading.active_count() > before:
        assert time.monotonic() < until_ended
        time.sleep(0.01)


@pytest.mark.shows("a synchronous client without a listener closes once nothing refers to it")
def test_a_listener_goes_on_where_nothing_else_refers_to_its_consumer(fake: Fake) -> None:
    arrived = threading.Event()
    cores: list[AsyncPushConsumer] = []

    def begin() -> None:
        consumer = PushConsumer(fake.namesrv, "g", consume_from="first")
        consumer.subscribe("u")
        consumer.listen(lambda message: arrived.set())
        consumer.start()
        cores.append(consumer._core)

    begin()
    gc.collect()
    fake.broker.put("u", 0, b"x")
    assert arrived.wait(120)
    thread = LoopThread._shared
    assert thread is not None
    thread.call(cores[0].close())
    thread.release()


def test_a_script_that_forgets_to_close_ends(fake: Fake) -> None:
    code = (
        "from rocketspark import Producer, PushConsumer\n"
        f"p = Producer({fake.namesrv!r}, 'pg'); p.start(); p.send('u', b'x')\n"
        f"c = PushConsumer({fake.namesrv!r}, 'g', consume_from='first'); c.subscribe('u'); c.listen(print); c.start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.shows("an end without close beside a stuck ordered listener")
@pytest.mark.parametrize("end", ["", "c.close()", "raise SystemExit(0)"])
def test_an_ordered_consumer_whose_listener_is_stuck_keeps_no_process_alive(fake: Fake, end: str) -> None:
    code = (
        "import threading\n"
        "from rocketspark import Producer, PushConsumer\n"
        f"with Producer({fake.namesrv!r}, 'pg') as p: p.send('u', b'x')\n"
        f"c = PushConsumer({fake.namesrv!r}, 'g', consume_from='first', ordered=True, close_timeout_ms=20)\n"
        "began = threading.Event()\n"
        "c.subscribe('u'); c.listen(lambda m: (began.set(), threading.Event().wait())); c.start(); began.wait()\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.shows("close in a listener, also during start", "close in a listener, then the end of the program")
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"batch_max": 2}, {"coroutine": True}], ids=str)
def test_a_listener_may_close_its_consumer(
    fake: Fake, options: dict[str, Any], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, go_on = threading.Event(), threading.Event()
    coroutine = options.get("coroutine", False)
    more = {name: value for name, value in options.items() if name != "coroutine"}
    consumer = PushConsumer(fake.namesrv, "g", consume_from="first", threads=1, **more)
    consumer.subscribe("u")

    def listen(given: object) -> None:
        assert go_on.wait(120)
        consumer.close()
        closed.set()

    async def listen_on_loop(given: object) -> None:
        await asyncio.to_thread(go_on.wait, 120)
        listen(given)

    consumer.listen(listen_on_loop if coroutine else listen)

    if early:
        # The start ends only by the close.
        monkeypatch.setattr("rocketspark.client.consumer.rebalance.JOIN_S", 1e6)
        monkeypatch.setattr(consumer._core._rebalance.balanced, "set", lambda: None)
        go_on.set()
    with Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"0")
        consumer.start()
        go_on.set()
        assert closed.wait(120)
        consumer.close()
        # It waits for the close that the listener began: what comes after it may end the program.
        assert fake.broker.offsets.get(("g", "u", 0)) == 1
    with pytest.raises(StateError, match="not started, or closed"):
        consumer.queues()


@pytest.mark.shows("an asynchronous client on another loop")
def test_an_asynchronous_client_on_another_loop_says_so(fake: Fake) -> None:
    async def started() -> AsyncProducer:
        producer = AsyncProducer(fake.namesrv, "pg")
        await producer.start()
        await producer.send("u", b"x")
        return producer

    async def elsewhere(producer: AsyncProducer, consumer: AsyncPullConsumer) -> None:
        for act in (producer.send("u", b"y"), producer.close(), consumer.poll(), consumer.close()):
            with pytest.raises(StateError, match="started on another event loop"):
                await act

    async def consuming() -> AsyncPullConsumer:
        consumer = AsyncPullConsumer(fake.namesrv, "g")
        await consumer.start()
        return consumer

    thread = LoopThread.acquire()
    producer, consumer = thread.call(started()), thread.call(consuming())
    asyncio.run(elsewhere(producer, consumer))
    thread.call(producer.close())
    thread.call(consumer.close())
    thread.release()


def test_importing_the_package_is_light() -> None:
    code = "import sys, rocketspark; print([m for m in ('asyncio', 'msgspec', 'uvloop', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    for name in rocketspark.__all__:
        assert getattr(rocketspark, name) is not None
    for name in rocketspark.client.__all__:
        assert getattr(rocketspark.client, name) is not None
    with pytest.raises(AttributeError):
        rocketspark.nothing  # noqa: B018
