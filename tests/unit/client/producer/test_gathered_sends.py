"""Messages of gathered sends: their bytes are those of sends one by one, and whoever awaits one is woken, once."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND

from rocketspark.client import AsyncProducer, Producer
from rocketspark.client.producer.accumulator import Gathered
from rocketspark.client.producer.gathered_sends import AwaitedPart, BatchOutcome, encode
from rocketspark.client.producer.prepared_message import PackingSettings, pack, pack_batch
from rocketspark.client.results import SendResult, SendStatus
from rocketspark.errors import MessageIllegal, NotSent, RocketSparkError, StateError
from rocketspark.model import Message, MessageQueue
from rocketspark.model.text import string_hash
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, record
from rocketspark.protocol.message.message_ids import UniqueIdBlocks

pytestmark = pytest.mark.shows("gathered sends (`linger_ms`, `batch_bytes`)")

BATCH = RequestCode.SEND_BATCH_MESSAGE
QUEUE = MessageQueue("t", "a", 0)
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
MESSAGES = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(min_size=1, max_size=300),
    tag=st.none() | TEXTS,
    keys=st.lists(st.from_regex(r"\A\w{1,9}\Z"), max_size=3),
    sharding_key=st.none() | TEXTS,
    properties=st.dictionaries(st.from_regex(r"\A[a-z]{1,9}\Z"), TEXTS, max_size=3),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    wait_store_ok=st.booleans(),
)


class Handle(asyncio.Handle):
    def __init__(self) -> None:
        pass


def gathered(messages: list[Message], packing: PackingSettings) -> Gathered:
    together = Gathered("t", None, messages[0].wait_store_ok, Handle(), 0)
    for message in messages:
        made = encode(message, packing)
        assert made is not None
        together.pieces += (made.head, b"", b"", b"", made.tail)
    return together


@given(st.lists(MESSAGES, min_size=1, max_size=30), st.sampled_from(["", "space"]))
def test_bytes_are_those_of_sends_one_by_one(messages: list[Message], namespace: str) -> None:
    packing = PackingSettings(namespace=namespace)
    out, ids = gathered(messages, packing).packed(UniqueIdBlocks().joined(len(messages)))
    assert len(set(ids)) == len(messages)
    alone = [pack(message, packing, unique_id) for message, unique_id in zip(messages, ids, strict=True)]
    if len(messages) == 1:
        assert out == alone[0] if not namespace else out.body == alone[0].body
        return
    items = [batch.BatchItem(one.flag, one.body, one.properties.encode()) for one in alone]
    assert out.body == batch.encode(items)
    assert (out.message_id, out.code) == (",".join(ids), BATCH)


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=2, max_size=50))
def test_a_gathered_batch_is_what_send_batch_sends(bodies: list[bytes]) -> None:
    """But for the ids, which differ from send to send."""
    messages = [Message("t", body) for body in bodies]
    out, ids = gathered(messages, PackingSettings()).packed(UniqueIdBlocks().joined(len(bodies)))
    other = pack_batch(messages, PackingSettings())
    texts = other.body
    for mine, its in zip(ids, other.message_id.split(","), strict=True):
        texts = texts.replace(its.encode(), mine.encode())
    assert out.body == texts
    assert (out.topic, out.code, out.sys_flag, out.flag) == (other.topic, other.code, other.sys_flag, other.flag)


@in_loop
async def test_the_short_way_and_the_general_one_store_the_same() -> None:
    """A message with a tag and a sharding key alone goes the short way from the second on; made by hand it does not."""
    ways: list[dict[str, Any]] = [{}, {"tag": "fruit"}, {"sharding_key": "k"}, {"tag": "fruit", "sharding_key": "k"}]
    ways += [{"tag": ""}, {"tag": None}, {"tag": "fruit", "keys": ["a"]}, {"tag": "fruit", "flag": 3}]
    ways += [{"sharding_key": "k", "properties": {"a": "b"}}, {"tag": "fruit", "wait_store_ok": False}]
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        await producer.send("t", b"the first finds the route")
        fake.broker.queues.clear()
        await asyncio.gather(*(producer.send("t", b"%d" % n, **ways[n % len(ways)]) for n in range(100)))
        first = stored(fake)
        assert producer.accumulator is not None
        assert producer.accumulator._known_count == 5
        fake.broker.queues.clear()
        await asyncio.gather(*(producer.send(Message("t", b"%d" % n, **ways[n % len(ways)])) for n in range(100)))
        again = stored(fake)
        assert [text for text, _ in first] == [text for text, _ in again]
        ids = {unique_id for _, unique_id in first + again}
        assert (len(ids), {len(unique_id) for unique_id in ids}) == (200, {32})


@in_loop
async def test_the_first_of_each_batch_goes_the_short_way_and_none_overtakes_it() -> None:
    """Batches of few, and a message now and then that cannot be in one with those before it."""
    ways: list[dict[str, Any]] = [{"sharding_key": "k"}, {"sharding_key": "k", "tag": "fruit"}]
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0, batch_bytes=400) as producer:
        for way in ways * 2:
            await producer.send("t", b"like this one", **way)
        assert producer.accumulator is not None
        encode, encoded = producer.accumulator.encode, list[bytes]()
        producer.accumulator.encode = lambda message, queue: (  # type: ignore[method-assign]
            encoded.append(message.body) or encode(message, queue)  # type: ignore[func-returns-value]
        )
        alone: dict[str, Any] = {"sharding_key": "k", "wait_store_ok": False}
        bodies = [b"%03d" % n for n in range(60)]
        sends = [producer.send("t", body, **(ways[n % 2] if n % 10 else alone)) for n, body in enumerate(bodies)]
        await asyncio.gather(*sends)
        assert encoded == bodies[::10]
        (stored_there,) = (records for records in fake.broker.queues.values() if records)
        assert [record.decode(each).body for each in stored_there[4:]] == bodies
        assert fake.broker.requests[BATCH] >= 10


def stored(fake: Fake) -> list[tuple[bytes, bytes]]:
    """Body, flag and properties but for the id, and the id, of all messages."""
    found, at = [], len("UNIQ_KEY\x01")
    for records in fake.broker.queues.values():
        for made in map(record.decode, records):
            text = b"%b %d %b" % (made.body, made.flag, made.properties[at + 32 :])
            found.append((text, made.properties[at : at + 32]))
    return sorted(found)


@in_loop
async def test_what_is_illegal_is_told_at_once() -> None:
    bad: list[Callable[[AsyncProducer], Awaitable[SendResult]]] = [
        lambda producer: producer.send("t", b""),
        lambda producer: producer.send("t", "text"),  # type: ignore[arg-type]
        lambda producer: producer.send("t", bytearray(b"x")),  # type: ignore[arg-type]
        lambda producer: producer.send("t", None),
        lambda producer: producer.send("no topic", b"x"),
        lambda producer: producer.send("t", b"x" * (5 << 20)),
        lambda producer: producer.send("t", b"x", properties={"KEYS": "x"}),
        lambda producer: producer.send("t", b"x", flag=1 << 40),
        lambda producer: producer.send("t", b"x", tag=["fruit"]),
        lambda producer: producer.send("t", b"x", tag="a\x02b"),
        lambda producer: producer.send("t", b"x", sharding_key=7),
        lambda producer: producer.send("t", b"x", queue=MessageQueue("u", "broker-a", 0)),
    ]
    async with Fake(t=1, u=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=60_000) as producer:
        for _ in range(2):  # With others that are gathered, too.
            for send in bad:
                with pytest.raises(MessageIllegal):
                    await send(producer)
            waiting = asyncio.ensure_future(producer.send("t", b"good"))
            await asyncio.sleep(0)
        await producer.close()
        await waiting
        assert [record.decode(r).body for r in fake.broker.queues["t", 0]] == [b"good"] * 2
        with pytest.raises(StateError):
            await producer.send("t", b"late")


@in_loop
async def test_a_key_finds_its_queue_when_the_topic_grows() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        keys = [f"k{n}" for n in range(16)]
        for count in (1, 4):
            fake.names.topics["t"] = {"broker-a": count}
            await producer._routes.refresh("t")
            results = await asyncio.gather(*(producer.send("t", b"x", sharding_key=k) for k in keys for _ in range(2)))
            assert [r.queue.queue_id for r in results] == [abs(string_hash(k)) % count for k in keys for _ in range(2)]


@in_loop
async def test_cancelled_at_each_await() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=60_000) as producer:
        assert producer.accumulator is not None

        async def begun(count: int) -> list[asyncio.Task[SendResult]]:
            sends = [asyncio.ensure_future(producer.send("t", b"%d" % n)) for n in range(count)]
            await until(lambda: sum(map(len, producer.accumulator._waiting.values())) == count)  # type: ignore[union-attr]
            return sends

        def flush() -> None:
            for kind in list(producer.accumulator._waiting):  # type: ignore[union-attr]
                producer.accumulator._flush(kind)  # type: ignore[union-attr]

        # Before it is sent: it is not.
        sends = await begun(5)
        sends[1].cancel("why")
        flush()
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(d) for d in done].count(SendResult) == 4
        assert isinstance(done[1], asyncio.CancelledError)
        assert [record.decode(r).body for r in fake.broker.queues["t", 0]] == [b"0", b"2", b"3", b"4"]
        # On its way: nobody waits for it, the others get theirs.
        sends = await begun(5)
        flush()
        sends[0].cancel()
        await asyncio.sleep(0)
        assert sends[0].cancelled()
        assert [r.queue_offset for r in await asyncio.gather(*sends[1:])] == [5, 6, 7, 8]
        # All of them: there is no request.
        before = fake.broker.requests[SEND] + fake.broker.requests[BATCH]
        sends = await begun(3)
        for send in sends:
            send.cancel()
        flush()
        await asyncio.wait(sends)
        assert {send.cancelled() for send in sends} == {True}
        assert fake.broker.requests[SEND] + fake.broker.requests[BATCH] == before
        # By a time-out, and by a coroutine that is thrown away.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.send("t", b"late")
        left = producer.send("t", b"left")
        left.send(None)
        left.close()
        flush()
        await asyncio.sleep(0)
        assert fake.broker.requests[SEND] + fake.broker.requests[BATCH] == before


@pytest.mark.shows("an asynchronous client on another loop")
def test_a_send_on_another_loop_says_so_and_leaves_nothing() -> None:
    """Also on the thread of the producer's own loop, where nothing but its task tells the other loop's send apart."""

    async def begin() -> tuple[Fake, AsyncProducer, asyncio.Task[SendResult]]:
        fake = await Fake(u=1).__aenter__()
        producer = AsyncProducer(fake.namesrv, "pg", linger_ms=60_000)
        await producer.start()
        waiting = asyncio.ensure_future(producer.send("u", b"mine"))
        await asyncio.sleep(0)
        return fake, producer, waiting

    async def elsewhere() -> None:
        # The last one would be the first of its kind.
        ways: list[dict[str, Any]] = [{}, {"tag": "fruit"}, {"wait_store_ok": False}]
        for fields in ways:
            with pytest.raises(StateError, match="started on another event loop"):
                await producer.send("u", b"not mine", **fields)
        with pytest.raises(StateError, match="started on another event loop"):
            await producer.send("v", b"where nothing waits")

    async def end() -> int:
        await producer.close()
        await fake.__aexit__()
        return (await waiting).queue_offset

    with asyncio.Runner() as runner:
        fake, producer, waiting = runner.run(begin())
        with asyncio.Runner() as other:
            other.run(elsewhere())
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, elsewhere()).result(120)
        assert producer.accumulator is not None
        assert list(producer.accumulator._waiting) == ["u"]
        assert runner.run(end()) == 0
    assert [record.decode(r).body for r in fake.broker.queues["u", 0]] == [b"mine"]


def outcome(count: int, error: BaseException | None = None) -> BatchOutcome:
    ids = [f"id{n}" for n in range(count)]
    places = ",".join(f"place{n}" for n in range(count))
    result = SendResult(SendStatus.SEND_OK, ",".join(ids), places, QUEUE, 70)
    return BatchOutcome(None if error else result, error, ids)


@pytest.mark.parametrize("kind", [asyncio.Task, asyncio.tasks._PyTask], ids=["C", "Python"])  # type: ignore[attr-defined]
def test_an_awaited_part_is_a_future_to_its_task(kind: Any) -> None:
    number: contextvars.ContextVar[int] = contextvars.ContextVar("number")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coroutine, **more: kind(coroutine, loop=loop, **more))
        parts = [AwaitedPart(loop) for _ in range(6)]
        woken: list[int] = []

        async def wait(n: int) -> SendResult:
            number.set(n)
            try:
                return await parts[n]
            finally:
                assert number.get() == n
                woken.append(n)

        tasks = [loop.create_task(wait(n)) for n in range(6)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert woken == [1]
        assert tasks[1].cancelled()
        assert parts[1].cancelled()
        told = outcome(6)
        told.tell(parts)
        # The outcome is there, but the task has not run: cancelled all the same.
        tasks[2].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert woken == [1, 0, 2, 3, 4, 5]
        assert isinstance(done[2], asyncio.CancelledError)
        assert [done[n].queue_offset for n in (0, 3, 4, 5)] == [70, 73, 74, 75]  # type: ignore[union-attr]
        assert done[4] == SendResult(SendStatus.SEND_OK, "id4", "place4", QUEUE, 74, "id4")
        # What is told before it is awaited need not wait.
        early = AwaitedPart(loop)
        outcome(1).tell([early])
        assert (await early).queue_offset == 70
        failed = AwaitedPart(loop)
        outcome(1, NotSent("no")).tell([failed])
        with pytest.raises(NotSent):
            await failed

    asyncio.run(main())


def frames_of(error: BaseException | None) -> int:
    assert error is not None
    return len(traceback.extract_tb(error.__traceback__))


@pytest.mark.parametrize(
    ("topic", "linger_ms", "fields"),
    [
        ("t", 0, {}),
        ("t", 0, {"queue": MessageQueue("t", "broker-a", 0)}),
        ("none", 0, {"sharding_key": "k"}),
        ("none", None, {}),
    ],
)
def test_what_fails_together_has_errors_of_its_own(topic: str, linger_ms: float | None, fields: Any) -> None:
    """Each raise adds to an error's traceback: with one for all, that of the last names every caller."""
    errors: list[BaseException] = []

    @in_loop
    async def tasks() -> None:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
            fake.broker.rules[BATCH] = fake.broker.rules[SEND] = lambda header, body: (13, "no")
            found = await asyncio.gather(
                *(producer.send(topic, b"x", **fields) for _ in range(9)), return_exceptions=True
            )
            errors.extend(each for each in found if isinstance(each, RocketSparkError))

    @in_loop
    async def threads() -> None:
        async with Fake(t=1) as fake:
            fake.broker.rules[BATCH] = fake.broker.rules[SEND] = lambda header, body: (13, "no")

            def send() -> None:
                with Producer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
                    for future in [producer.send_future(topic, b"x", **fields) for _ in range(9)]:
                        with pytest.raises(RocketSparkError) as caught:
                            future.result(60)
                        errors.append(caught.value)

            await asyncio.to_thread(send)

    for way in (tasks, threads):
        errors.clear()
        way()
        assert len({id(error) for error in errors}) == 9
        assert len({frames_of(error) for error in errors}) == 1
        assert len({(type(error), type(error.__cause__), error.retriable) for error in errors}) == 1  # type: ignore[attr-defined]


def test_who_ends_the_loop_takes_no_other_along() -> None:
    """Ctrl-C comes while one of many is woken: the others are woken when the loop goes on."""
    loop = asyncio.new_event_loop()
    parts = [AwaitedPart(loop) for _ in range(4)]

    async def wait(n: int) -> int:
        await parts[n]
        if n == 1:
            raise KeyboardInterrupt
        return n

    tasks = [loop.create_task(wait(n)) for n in range(4)]

    async def tell() -> None:
        outcome(4).tell(parts)
        await asyncio.wait(tasks)

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(tell())
    assert loop.run_until_complete(asyncio.gather(tasks[0], *tasks[2:])) == [0, 2, 3]
    assert isinstance(tasks[1].exception(), KeyboardInterrupt)
    loop.close()
