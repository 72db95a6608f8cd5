"""Sends in trouble: what hooks, logs and the fault table hear of it, and how long a broker that hangs holds one up."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND
from tests.unit.client.producer.test_transactions import Bank, ask

from rocketspark.client import AsyncProducer, AsyncTransactionProducer, TransactionState
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.client.hooks import Hooks, Sending
from rocketspark.errors import ConfigError, NoReply, NotSent, RouteNotFound, SendFailed, UsageError
from rocketspark.model import MessageQueue
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows(
    "hooks, logs, fault table, attempt time, a dropped broker, routes and NameServers in the log, `check`'s "
    "topic, remarks"
)


class Seen(Hooks):
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def before_send(self, sending: Sending) -> None:
        sending.properties["seen"] = "changed"
        assert sending.body == b"x"

    def after_send(self, sending: Sending) -> None:
        self.told.append((sending.queue.broker_name, sending.address, type(sending.error).__name__))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if part in r.getMessage() and r.levelno >= logging.WARNING]


@in_loop
@pytest.mark.parametrize("log_sends", [False, True])
async def test_attempts_that_cannot_connect_are_seen_and_said(
    log_sends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[seen], log_sends=log_sends) as producer:
        await producer.queues("t")
        address = fake.broker.address
        await fake.broker.server.close()
        with pytest.raises(SendFailed):
            await producer.send("t", b"x")
        with pytest.raises(NotSent):
            await producer.send_oneway("t", b"x")
    assert seen.told == [("broker-a", address, "NotSent")] * 4
    attempts = lines(caplog, "to send to topic t, at broker-a, failed")
    if log_sends:
        # One line each.
        assert (len(lines(caplog, "not sent: topic=t")), attempts) == (4, [])
    else:
        assert [line.split()[1] for line in attempts] == ["1", "2", "3"]
        assert f"cannot connect to {address}" in attempts[0]


@in_loop
async def test_hooks_may_change_values() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[Seen()]) as producer:
        await producer.send("t", b"x", properties={"seen": "given", "other": "kept"})
        sent = fake.broker.sends[-1].properties
        assert "seen\x01changed\x02" in sent
        assert "other\x01kept\x02" in sent


@in_loop
@pytest.mark.parametrize("hooked", [False, True])
async def test_a_broker_that_hangs_costs_a_delay(hooked: bool) -> None:
    hooks = [Seen()] if hooked else []
    options: Any = {"hooks": hooks, "send_timeout_ms": 60_000}
    async with (
        Fake(2, t=1) as fake,
        AsyncProducer(fake.namesrv, "pg", attempt_timeout_ms=50, **options) as producer,
    ):
        fake.brokers[0].silent.add(SEND)
        for _ in range(2):
            assert (await producer.send("t", b"x")).queue.broker_name == "broker-b"
        # The last attempt has what is left.
        queue = MessageQueue("t", "broker-a", 0)
        began_s = time.monotonic()
        with pytest.raises(SendFailed) as caught:
            await producer.send("t", b"x", queue=queue, timeout_ms=300)
        assert isinstance(caught.value.__cause__, NoReply)
        assert caught.value.attempts == 3
        assert time.monotonic() - began_s >= 0.28
    with pytest.raises(ConfigError, match="attempt_timeout_ms 0 must be more than 0, or None"):
        AsyncProducer(fake.namesrv, "pg", attempt_timeout_ms=0)


@in_loop
@pytest.mark.parametrize("fields", [{}, {"sharding_key": "k"}, {"queue": MessageQueue("t", "broker-a", 0)}])
@pytest.mark.parametrize("hooked", [False, True])
async def test_a_send_whose_time_is_over_before_its_turn_is_not_sent(fields: Any, hooked: bool) -> None:
    hooks = [Seen()] if hooked else []
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", in_flight_max=1, hooks=hooks) as producer:
        await producer.send("t", b"x")
        for _ in range(2):
            with pytest.raises(NotSent, match=r"topic 't': a turn of the client, which was busy: .* nothing was sent"):
                await producer.send("t", b"x", timeout_ms=0, **fields)
        # It kept neither its room nor its place in line.
        await producer.send("t", b"x", **fields)
        assert len(fake.broker.sends) == 2


@in_loop
async def test_one_way_sends_feed_the_fault_table() -> None:
    async with Fake(2, t=2) as fake, AsyncProducer(fake.namesrv, "pg", fault_tolerance=True) as producer:
        await producer.queues("t")
        await fake.brokers[0].server.close()
        failed = 0
        for _ in range(8):
            try:
                await producer.send_oneway("t", b"x")
            except NotSent:
                failed += 1
        assert failed <= 1
        await until(lambda: fake.brokers[1].requests[SEND] == 8 - failed)


@in_loop
async def test_a_send_waits_for_a_broker_that_was_dropped() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", send_timeout_ms=60_000) as producer:
        await producer.send("t", b"x")
        topics, fake.names.topics = fake.names.topics, {}
        with pytest.raises(RouteNotFound):
            await producer._routes.find_write_queues("t", refresh=True)
        sending = asyncio.ensure_future(producer.send("t", b"x"))
        before = fake.names.fetches["t"]
        await until(lambda: fake.names.fetches["t"] > before + 1)
        assert not sending.done()
        fake.names.topics = topics
        assert (await sending).queue == MessageQueue("t", "broker-a", 0)
        # One that never was is told at once, and one that stays away within the send's time.
        began_s = time.monotonic()
        with pytest.raises(RouteNotFound):
            await producer.send("nowhere", b"x")
        assert time.monotonic() - began_s < 30
        fake.names.topics = {}
        with pytest.raises(RouteNotFound):
            await producer._routes.find_write_queues("t", refresh=True)
        with pytest.raises(RouteNotFound):
            await producer.send("t", b"x", timeout_ms=100)


@in_loop
async def test_routes_that_change_and_name_servers_that_are_lost_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketspark.client")
    async with Fake(t=2) as fake:
        routes = RouteCache([fake.namesrv], timeout_ms=200)
        await routes.refresh_all()
        await routes.get("t")
        await routes.refresh("t")
        fake.names.topics["t"] = {"broker-a": 6}
        await routes.refresh_all()
        told = [r.getMessage() for r in caplog.records if "changed from" in r.getMessage()]
        at = f"broker-a at {fake.broker.address} with"
        assert told == [
            f"the route of topic t changed from {at} 2 read and 2 write queues, perm 6 to {at} 6 read and 6 write"
            " queues, perm 6"
        ]
        port = fake.names.server.port
        await fake.names.server.close()
        for _ in range(3):
            await routes.refresh_all()
        assert len(lines(caplog, "routes stay as they are known: no NameServer answers")) == 1
        await fake.names.server.start("127.0.0.1", port)
        await routes.refresh_all()
        assert lines(caplog, "a NameServer answers again") == ["a NameServer answers again"]
        await routes.close()


@in_loop
async def test_check_sees_the_bare_topic_and_a_failure_is_told_in_the_remark() -> None:
    async with Fake(**{"INST%t": 1}) as fake:
        told: list[tuple[str, str | None, int]] = []

        def end(peer: Any, asked: Any, body: bytes) -> None:
            told.append((asked.ext.topic, asked.remark, asked.ext.outcome))

        fake.broker.routes.add(RequestCode.END_TRANSACTION, end, headers.EndTransactionHeader)
        bank = Bank(lambda: 1 // 0)
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=bank, namespace="INST") as producer:
            await producer.send_in_transaction("t", b"x")
            fake.broker.queues["t", 0] = fake.broker.queues["INST%t", 0]
            ask(fake)
            await until(lambda: len(told) == 2)
            bank.act = lambda: TransactionState.COMMIT
            ask(fake)
            await until(lambda: len(told) == 3)
        assert [m.topic for m in bank.asked] == ["t", "t"]
        failure = "raised ZeroDivisionError: integer division or modulo by zero"
        assert told == [
            ("INST%t", f"execute {failure}", 0),
            ("INST%t", f"check {failure}", 0),
            ("INST%t", None, 8),
        ]


@in_loop
async def test_a_topic_is_made_past_a_master_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with Fake(3, TBW102=8) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        made: list[str] = []
        for broker in (fake.brokers[0], fake.brokers[2]):

            def make(peer: Any, asked: Any, body: bytes, name: str = broker.name) -> bytes:
                made.append(name)
                return reply(asked.opaque)

            broker.routes.add(RequestCode.UPDATE_AND_CREATE_TOPIC, make, headers.CreateTopicHeader)
        for broker in fake.brokers:
            broker.rules[RequestCode.GET_TOPIC_CONFIG] = lambda header, body: (ResponseCode.TOPIC_NOT_EXIST, "none")
        await producer.queues("TBW102")
        await fake.brokers[1].server.close()
        await producer.create_topic("t")
        assert made == ["broker-a", "broker-c"]
        assert len(lines(caplog, "topic t is not created on broker-b, which others have")) == 1
        with pytest.raises(UsageError):
            await producer.create_topic("t", queue_count=0)
        for broker in (fake.brokers[0], fake.brokers[2]):
            await broker.server.close()
        with pytest.raises(NotSent):
            await producer.create_topic("t")
