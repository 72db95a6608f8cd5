"""Hooks around sends, consuming and requests; the signature of requests."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND, failing

from rocketspark.client import AsyncProducer, AsyncPushConsumer
from rocketspark.client.connection.credentials import Signer
from rocketspark.client.hooks import Consuming, Hooks, HookSet, LogSends, Sending
from rocketspark.client.message_trace import Tracer
from rocketspark.errors import ConfigError, SendFailed
from rocketspark.model import Message, ReceivedMessage
from rocketspark.protocol import trace
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties, record
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows(
    "hooks, message traces, OpenTelemetry",
    "docs: options held to the code, recipes run and compared, good practice; `log_sends`",
)


class Seen(Hooks):
    """Notes what it is told; fails afterwards if asked to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self._error = error

    def _tell(self, name: str, what: Any) -> None:
        self.told.append((name, what))
        if self._error is not None:
            raise self._error

    def before_send(self, sending: Sending) -> None:
        self._tell("before", (sending.topic, sending.queue.broker_name, sending.properties.get("TAGS")))

    def after_send(self, sending: Sending) -> None:
        self._tell("after", (sending.result is not None, type(sending.error).__name__))

    def before_consume(self, consuming: Consuming) -> None:
        self._tell("consume", [m.body for m in consuming.messages])

    def after_consume(self, consuming: Consuming) -> None:
        self._tell("consumed", (consuming.success, type(consuming.error).__name__))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))


@pytest.mark.parametrize("error", [None, RuntimeError("a hook's own mistake")])
def test_each_attempt_is_seen_before_and_after(error: Exception | None) -> None:
    @in_loop
    async def run() -> None:
        seen = Seen(error)
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[seen]) as producer:
            fake.broker.rules[SEND] = failing(1)
            result = await producer.send("t", b"x", tag="A")
            assert seen.told == [
                ("before", ("t", "broker-a", "A")),
                ("after", (False, "ServerError")),
                ("before", ("t", "broker-a", "A")),
                ("after", (True, "NoneType")),
            ]
            # What is sent is the same as without hooks.
            header = fake.broker.sends[-1]
            assert (header.topic, header.queue_id, header.producer_group) == ("t", result.queue.queue_id, "pg")
            await producer.send_batch([Message(topic="t", body=b"y")] * 2)
            await producer.send_oneway("t", b"z")
            await until(lambda: len(fake.broker.queues["t", 0]) == 4)
            assert len(seen.told) == 8

    run()


@pytest.mark.shows("hooks may change the body")
@in_loop
async def test_a_hook_may_change_the_body() -> None:
    class Sealed(Hooks):
        def before_send(self, sending: Sending) -> None:
            sending.body = sending.body[::-1]
            sending.properties["sealed"] = "yes"

    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[Sealed()]) as producer:
        fake.broker.rules[SEND] = failing(1)
        await producer.send("t", b"one")  # Each attempt begins with the body of the message.
        await producer.send_oneway("t", b"two")
        await until(lambda: len(fake.broker.queues["t", 0]) == 2)
        assert [record.decode(each).body for each in fake.broker.queues["t", 0]] == [b"eno", b"owt"]


@pytest.mark.parametrize("options", [{"log_sends": True}, {"hooks": [LogSends()]}], ids=["option", "hook"])
def test_sends_are_logged_with_result_and_keys(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", **options) as producer:
            fake.broker.rules[SEND] = failing(1)
            result = await producer.send("t", b"x", tag="A", keys=["k1", "k2"])
            await producer.send_oneway("t", b"x")
            failed, sent, oneway = caplog.records
            assert [r.levelname for r in caplog.records] == ["WARNING", "INFO", "INFO"]
            what = f"topic=t tag=A keys='k1 k2' id={result.message_id} queue=broker-a/0"
            assert failed.getMessage().startswith(f"not sent: {what} cost_ms=")
            assert " error=ServerError: " in failed.getMessage()
            assert sent.getMessage().startswith(f"sent: {what} offset=0 status=SEND_OK cost_ms=")
            assert oneway.getMessage().startswith("sent one-way: topic=t tag= keys='' id=")

    with caplog.at_level(logging.INFO, "rocketspark.sends"):
        run()


@in_loop
async def test_a_quiet_logger_gets_failures_only(caplog: pytest.LogCaptureFixture) -> None:
    quiet = logging.getLogger("test.sends")
    quiet.setLevel(logging.WARNING)
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[LogSends(quiet)]) as producer:
        fake.broker.rules[SEND] = failing(1)
        await producer.send("t", b"x")
    assert [r.levelname for r in caplog.records if r.name == "test.sends"] == ["WARNING"]


@in_loop
async def test_a_send_can_be_forbidden() -> None:
    class Forbid(Hooks):
        def check_forbidden(self, sending: Sending) -> None:
            if sending.topic == "u":
                raise PermissionError("not this topic")

    async with Fake(t=1, u=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[Forbid()]) as producer:
        await producer.send("t", b"x")
        with pytest.raises(PermissionError, match="not this topic"):
            await producer.send("u", b"x")
        assert fake.broker.requests[SEND] == 1


@pytest.mark.parametrize("coroutine", [False, True])
def test_listeners_are_seen_before_and_after(coroutine: bool) -> None:
    @in_loop
    async def run() -> None:
        seen = Seen()
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def plain(message: ReceivedMessage) -> bool:
            if message.body == b"bad":
                raise ValueError("bad")
            loop.call_soon_threadsafe(done.set)
            return message.body == b"good"

        async def awaited(message: ReceivedMessage) -> bool:
            return plain(message)

        async with Fake(t=1) as fake:
            for body in (b"bad", b"refused", b"good"):
                fake.broker.put("t", 0, body)
            fake.broker.silent.add(RequestCode.CONSUMER_SEND_MSG_BACK)
            consumer = AsyncPushConsumer(
                fake.namesrv, "g", consume_from="first", hooks=[seen], threads=1, close_timeout_ms=10
            )
            consumer.subscribe("t")
            consumer.listen(awaited if coroutine else plain)
            async with consumer:
                await until(lambda: len(seen.told) == 6)
        assert seen.told == [
            ("consume", [b"bad"]),
            ("consumed", (False, "ValueError")),
            ("consume", [b"refused"]),
            ("consumed", (False, "NoneType")),
            ("consume", [b"good"]),
            ("consumed", (True, "NoneType")),
        ]

    run()


@in_loop
async def test_requests_are_seen_and_may_be_added_to() -> None:
    class Mark(Hooks):
        def __init__(self) -> None:
            self.asked: list[int] = []
            self.answered: list[tuple[int, int | None]] = []

        def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
            ext["mark"] = "here"
            self.asked.append(code)

        def after_response(self, address: str, code: int, reply: Any, error: BaseException | None) -> None:
            self.answered.append((code, None if reply is None else reply.code))

    mark = Mark()
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[mark], retries=0) as producer:
        await producer.send("t", b"x")
        assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, SEND} <= set(mark.asked)
        assert (SEND, 0) in mark.answered
        fake.broker.silent.add(SEND)
        with pytest.raises(SendFailed):
            await producer.send("t", b"x", timeout_ms=50)
        await until(lambda: (SEND, None) in mark.answered)


@pytest.mark.shows("producers: signed requests")
def test_the_official_client_s_signature() -> None:
    # From the captures: a route request, key and secret as there.
    ext = {"topic": "GoldTopic"}
    Signer("goldAccessKey", "goldSecretKey").before_request("", 105, ext, b"")
    assert ext == {"topic": "GoldTopic", "AccessKey": "goldAccessKey", "Signature": "vFoNYdvCACOtFL0ZtZdzoBtdHrg="}


@in_loop
async def test_every_request_is_signed() -> None:
    seen: list[set[str]] = []

    class Look(Hooks):
        def after_response(self, address: str, code: int, reply: Any, error: BaseException | None) -> None:
            pass

    async with (
        Fake(t=1) as fake,
        AsyncProducer(
            fake.namesrv, "pg", access_key="a", secret_key="s", security_token="t", hooks=[Look()]
        ) as producer,
    ):
        original = HookSet.before_request

        def note(self: HookSet, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
            original(self, address, code, ext, body)
            seen.append(set(ext))

        HookSet.before_request = note  # type: ignore[method-assign]
        try:
            await producer.send("t", b"x")
            await producer.send_oneway("t", b"x")
        finally:
            HookSet.before_request = original  # type: ignore[method-assign]
    assert len(seen) >= 3
    assert all({"AccessKey", "SecurityToken", "Signature"} <= names for names in seen)
    with pytest.raises(ConfigError, match="give both"):
        AsyncProducer("127.0.0.1:9", "pg", access_key="a")
    with pytest.raises(ConfigError, match="derived"):
        AsyncProducer("127.0.0.1:9", "pg", hooks=[object()])  # type: ignore[list-item]


@in_loop
async def test_traces_never_fail_what_they_tell_of() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", trace="no-such-topic") as producer:
        assert (await producer.send("t", b"x")).queue_offset == 0
    assert not fake.broker.queues["no-such-topic", 0]


@in_loop
async def test_traces_are_sent_at_the_latest_when_closing() -> None:
    async with Fake(t=1, traces=1) as fake:
        async with AsyncProducer(fake.namesrv, "pg", trace="traces", retries=0) as producer:
            fake.broker.rules[SEND] = failing(1)
            with pytest.raises(SendFailed):
                await producer.send("t", b"x")
            result = await producer.send("t", b"x", tag="A", keys=["k1", "k2"], delay_level=1)
        (header,) = [h for h in fake.broker.sends if h.topic == "traces"]
        assert header.producer_group == "_INNER_TRACE_PRODUCER-pg-PRODUCE-1"
        stored = record.decode(fake.broker.queues["traces", 0][0])
        failed, sent = trace.decode(stored.body.decode())
        assert isinstance(failed, trace.Published)
        assert isinstance(sent, trace.Published)
        assert (failed.success, failed.offset_message_id, failed.kind) == (False, "", trace.NORMAL)
        assert sent == trace.Published(
            time_ms=sent.time_ms,
            region="DefaultRegion",
            group="pg",
            topic="t",
            message_id=result.message_id,
            tag="A",
            keys="k1 k2",
            store_host=fake.broker.address,
            body_bytes=1,
            cost_ms=sent.cost_ms,
            kind=trace.DELAY,
            offset_message_id=result.offset_message_id,
            success=True,
        )
        assert result.message_id.encode() in stored.properties
        assert b"k2" in stored.properties


@in_loop
async def test_odd_keys_of_one_message_cost_no_other_its_trace() -> None:
    """Control characters in keys of others' messages, halves of characters, more than all properties may have."""
    odd = ["a\x01b", "c\x02d", "\ud800", "x" * 30_000, "y" * 30_000, "\x00", "\u3000"]
    async with Fake(t=1, traces=1) as fake:
        async with AsyncProducer(fake.namesrv, "pg", trace="traces") as producer:
            (tracer,) = producer._hooks.sends
            assert isinstance(tracer, Tracer)
            for number, key in enumerate(["first", *odd, "last"]):
                message: Any = SimpleNamespace(properties={}, keys=(key,), message_id=f"ID{number}", reconsume_times=0)
                tracer.before_consume(Consuming(group="g", messages=[message]))
            assert (await producer.send("t", b"x")).queue_offset == 0
        stored = [record.decode(data) for data in fake.broker.queues["traces", 0]]
        found = [each for one in stored for each in trace.decode(record.to_message(one).body.decode())]
        received = [each for each in found if isinstance(each, trace.Received)]
        assert [each.message_id for each in received] == [f"ID{n}" for n in range(len(odd) + 2)]
        assert tracer.dropped == 0
        keys = {key for one in stored for key in properties.decode(one.properties.decode())["KEYS"].split(" ")}
        assert {f"ID{n}" for n in range(len(odd) + 2)} | {"first", "last"} <= keys


@in_loop
async def test_a_trace_that_is_cancelled_by_others_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fake(t=1, traces=1) as fake:
        async with AsyncProducer(fake.namesrv, "pg", trace="traces") as producer:
            (tracer,) = producer._hooks.sends
            assert isinstance(tracer, Tracer)
            errors: list[BaseException] = [asyncio.CancelledError(), KeyError(3)]

            def failing_first() -> None:
                if errors:
                    raise errors.pop()

            monkeypatch.setattr(tracer._send_path, "check_started", failing_first)
            monkeypatch.setattr("rocketspark.client.message_trace.PAUSE_S", 0.01)
            for left in (1, 0):
                await producer.send("t", b"x")
                await until(lambda left=left: len(errors) == left)  # type: ignore[misc]
            await producer.send("t", b"x")
        assert len(fake.broker.queues["traces", 0]) == 1
        assert tracer.dropped == 2


@pytest.mark.shows("mended: TRACE_ON, region, FLUSH_* in traces")
@pytest.mark.parametrize(
    ("code", "trace_on", "told"),
    [(0, "true", [("r1", True)]), (0, "false", []), (0, None, [("r1", True)]), (10, "true", [("r1", False)])],
)
def test_traces_say_what_the_broker_said(code: int, trace_on: str | None, told: list[tuple[str, bool]]) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1, traces=1) as fake:

            def stored(peer: Any, asked: Any, body: bytes) -> bytes:
                if asked.ext.topic == "traces":
                    fake.broker.put("traces", 0, body)
                ext = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0", "MSG_REGION": "r1"}
                return reply(asked.opaque, code, ext | ({"TRACE_ON": trace_on} if trace_on else {}))

            fake.broker.routes.add(SEND, stored)
            async with AsyncProducer(fake.namesrv, "pg", trace="traces") as producer:
                await producer.send("t", b"x")
            kept = [trace.decode(record.decode(r).body.decode()) for r in fake.broker.queues["traces", 0]]
            assert [(t.region, t.success) for part in kept for t in part if isinstance(t, trace.Published)] == told

    run()


@in_loop
async def test_a_broker_that_does_not_answer_holds_no_close_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.message_trace.CLOSE_S", 0.05)
    async with Fake(t=1, traces=1) as fake:
        producer = AsyncProducer(fake.namesrv, "pg", trace="traces")
        await producer.start()
        await producer.send("t", b"x")
        fake.broker.silent.add(SEND)
        await producer.close()
        assert producer._tracer is not None
        assert producer._tracer._task is not None
        assert producer._tracer._task.cancelling()


@pytest.mark.shows("mended: keys of batches in `log_sends`")
@in_loop
async def test_keys_of_batches_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rocketspark.sends"):
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", log_sends=True, linger_ms=0) as producer:
            batch = [Message(topic="t", body=b"x", keys=keys) for keys in (["a", "b"], (), "c\u00e4")]
            await producer.send_batch(batch)
            await asyncio.gather(*(producer.send("t", b"x", keys=f"g{i}") for i in range(2)))
    assert [r.getMessage().partition("keys=")[2].partition(" id=")[0] for r in caplog.records] == [
        "'a b c\u00e4'",
        "'g0 g1'",
    ]


def test_hooks_that_nobody_would_await_are_refused() -> None:
    class Guard(Hooks):
        async def check_forbidden(self, sending: Sending) -> None:  # type: ignore[override]
            raise PermissionError

    class Steps(Hooks):
        def before_send(self, sending: Sending) -> Any:
            yield sending

    for hooks in (Guard(), Steps()):
        with pytest.raises(ConfigError, match="it would not run"):
            AsyncProducer("127.0.0.1:1", hooks=[hooks])
