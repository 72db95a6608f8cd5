"""What our clients do as the members of a broker name change, each rule against brokers that do what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from tests.unit.client.fake import Fake, FakeBroker, in_loop, until

from rocketspark.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    SendStatus,
    TransactionState,
)
from rocketspark.client.consumer import puller
from rocketspark.client.producer import send_attempts
from rocketspark.errors import RouteNotFound, SendFailed
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import sysflags
from rocketspark.transport.request_frames import request

pytestmark = pytest.mark.shows(
    "the client follows its brokers: a former master's refusals (2, 14) have the route fetched, as lost "
    "connections do; sends wait while a master is elected; ids that swap",
    "commits to the lowest slave and again to the master; offsets of a slave only without a master; bounds "
    "and times from a slave; locks asked for at once at a new master; heartbeats to all members, to new ones "
    "at once",
)

NAME = "broker-a"
Q0 = MessageQueue("t", NAME, 0)
BOTH = [Q0, MessageQueue("t", NAME, 1)]
SEND, PULL, HELD = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.LOCK_BATCH_MQ
END = RequestCode.END_TRANSACTION


class Members(NamedTuple):
    """A NameServer, and three brokers of one name, of which `route` says which are in the route, with what id."""

    fake: Fake
    a: FakeBroker
    b: FakeBroker
    c: FakeBroker

    def route(self, **ids: int) -> None:
        self.fake.names.addresses[NAME] = {number: getattr(self, letter).address for letter, number in ids.items()}

    @property
    def namesrv(self) -> str:
        return self.fake.namesrv

    def fill(self, count: int) -> None:
        """The same messages on all, as replication leaves them."""
        for broker in (self.a, self.b, self.c):
            for number in range(count):
                broker.put("t", 0, b"%d" % number)


@asynccontextmanager
async def members(queues: int = 1, **ids: int) -> AsyncIterator[Members]:
    async with Fake(t=queues) as fake:
        others = [await FakeBroker().start() for _ in range(2)]
        made = Members(fake, fake.broker, *others)
        made.route(**(ids or {"a": 0, "b": 1}))
        try:
            yield made
        finally:
            for broker in others:
                await broker.server.close()


async def read(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll(1000, count_max=count - len(found))
    return found


# -- sends ---------------------------------------------------------------------------------------------------------


@in_loop
@pytest.mark.parametrize("code", [2, 14])
async def test_a_send_that_a_former_master_refuses_goes_to_the_new_one(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(send_attempts, "ROUTE_AGE_S", 0)
    async with members() as pair, AsyncProducer(pair.namesrv, "pg", retries=1) as producer:
        await producer.send("t", b"before")
        pair.a.rules[SEND] = lambda header, body: (code, "not a master")
        pair.route(b=0, a=2)
        result = await producer.send("t", b"after")
        assert (result.status, result.queue) == (SendStatus.SEND_OK, Q0)
        assert (len(pair.a.sends), len(pair.b.sends)) == (1, 1)
        assert pair.a.requests[SEND] == 2


@pytest.mark.shows(
    "a send that is not tried again (retries=0) because its broker was not reached has the route fetched for "
    "the next one"
)
@in_loop
async def test_a_send_that_is_not_tried_again_has_the_route_fetched() -> None:
    async with members() as pair, AsyncProducer(pair.namesrv, "pg", retries=0) as producer:
        await producer.send("t", b"before")
        await pair.a.server.close()
        pair.route(b=0)
        with pytest.raises(SendFailed):
            await producer.send("t", b"lost")
        await until(lambda: producer._instance.routes.master(NAME) == pair.b.address)
        await producer.send("t", b"after")
        assert (len(pair.a.sends), len(pair.b.sends)) == (1, 1)


@in_loop
async def test_a_busy_master_does_not_have_the_route_fetched_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_attempts, "ROUTE_AGE_S", 60)
    async with members() as pair, AsyncProducer(pair.namesrv, "pg", retries=1) as producer:
        pair.a.rules[SEND] = lambda header, body: (2, "busy")
        for failed in await asyncio.gather(*(producer.send("t", b"x") for _ in range(50)), return_exceptions=True):
            assert isinstance(failed, SendFailed)
        assert pair.fake.names.fetches["t"] == 1


@in_loop
async def test_a_send_waits_while_a_master_is_elected() -> None:
    async with members(b=1) as pair, AsyncProducer(pair.namesrv, "pg", retries=20, send_timeout_ms=60_000) as producer:
        sending = [asyncio.ensure_future(producer.send("t", b"%d" % n, sharding_key="k")) for n in range(3)]
        await until(lambda: pair.fake.names.fetches["t"] > 2)
        assert not any(one.done() for one in sending)
        pair.route(b=0)
        assert [(await one).queue_offset for one in sending] == [0, 1, 2]
        assert len(pair.b.sends) == 3


@in_loop
async def test_without_a_master_a_send_fails_once_its_attempts_are_over() -> None:
    async with members(b=1) as pair, AsyncProducer(pair.namesrv, "pg", retries=1) as producer:
        with pytest.raises(RouteNotFound, match="no broker takes messages for topic 't'"):
            await producer.send("t", b"x")
        assert pair.b.sends == []


@in_loop
async def test_a_send_goes_on_at_the_new_master_when_the_connection_is_lost() -> None:
    async with members() as pair, AsyncProducer(pair.namesrv, "pg", retries=5) as producer:
        await producer.send("t", b"before")
        pair.a.silent.add(SEND)
        sending = asyncio.ensure_future(producer.send("t", b"after"))
        await until(lambda: pair.a.requests[SEND] == 2)
        pair.route(b=0)
        await pair.a.server.close()
        assert (await sending).status is SendStatus.SEND_OK
        assert len(pair.b.sends) == 1


@in_loop
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_but_not_safe_is_a_result(code: int, status: SendStatus) -> None:
    async with members() as pair, AsyncProducer(pair.namesrv, "pg", retries=5) as producer:
        pair.a.reply_code = code
        result = await producer.send("t", b"x")
        assert (result.status, result.queue_offset) == (status, 0)
        assert len(pair.a.sends) == 1


@in_loop
async def test_a_broker_that_is_read_only_leaves_the_publish_list_and_is_read_from() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        fake.names.perms["t@broker-a"] = 4
        for _ in range(4):
            assert (await producer.send("t", b"x")).queue.broker_name == "broker-b"
        fake.broker.put("t", 0, b"old")
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            assert [q.broker_name for q in await consumer.queues("t")] == ["broker-a", "broker-b"]
            await consumer.assign([Q0])
            assert [m.body for m in await read(consumer, 1)] == [b"old"]


@in_loop
async def test_addresses_that_swap_their_ids() -> None:
    """What is kept goes by address: sends, pulls and commits find the new master over connections that are open."""
    async with members() as pair:
        pair.fill(6)
        pair.fake.names.topics["u"] = {NAME: 1}
        pair.a.suggested = pair.b.suggested = 1
        async with (
            AsyncProducer(pair.namesrv, "pg") as producer,
            AsyncPullConsumer(pair.namesrv, "g", consume_from="first", auto_commit=False) as consumer,
        ):
            await producer.send("u", b"to a")
            await consumer.assign([Q0])
            await read(consumer, 2)
            await consumer.commit()
            assert (pair.a.offsets["g", "t", 0], len(pair.a.sends)) == (2, 1)
            pair.route(a=1, b=0)
            for client in (producer, consumer):
                await client._instance.routes.refresh_all()
            pulled = pair.a.requests[PULL]
            for _ in range(3):
                await producer.send("u", b"to b")
            await consumer.commit()
            assert (len(pair.a.sends), len(pair.b.sends)) == (1, 3)
            assert pair.b.offsets["g", "t", 0] == 2
            # The slave that is suggested is the former master now.
            for broker in (pair.a, pair.b):
                broker.put("t", 0, b"more")
            await until(lambda: pair.a.requests[PULL] > pulled)


# -- transactions --------------------------------------------------------------------------------------------------


class Teller:
    """Of the bank."""

    def execute(self, message: Any, transaction: Any) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: Any) -> TransactionState:
        return TransactionState.COMMIT


def ends_at(broker: FakeBroker) -> list[headers.EndTransactionHeader]:
    told: list[headers.EndTransactionHeader] = []
    broker.routes.add(END, lambda peer, asked, body: told.append(asked.ext), headers.EndTransactionHeader)
    return told


@pytest.mark.shows("transactions end at the master of the moment; without one the check ends them")
@in_loop
async def test_a_transaction_is_ended_at_the_master_of_the_moment() -> None:
    async with members() as pair, AsyncTransactionProducer(pair.namesrv, "pg", listener=Teller()) as producer:
        told = ends_at(pair.b)
        half = await producer.send_half("t", b"x")
        assert len(pair.a.sends) == 1
        pair.route(b=0)
        await pair.a.server.close()
        await until(lambda: producer._instance.open_broker(pair.a.address) is None)
        ended = await producer.end(half, TransactionState.COMMIT)
        assert ended.state is TransactionState.COMMIT
        await until(lambda: told)
        assert told[0].outcome == sysflags.TRANSACTION_COMMIT
        assert told[0].message_id == half.transaction.sent.message_id


@pytest.mark.shows("transactions end at the master of the moment; without one the check ends them")
@in_loop
async def test_a_transaction_whose_master_is_gone_is_ended_by_the_check() -> None:
    async with members() as pair, AsyncTransactionProducer(pair.namesrv, "pg", listener=Teller()) as producer:
        told = ends_at(pair.b)
        half = await producer.send_half("t", b"x")
        pair.route(b=1)
        await pair.a.server.close()
        await until(lambda: producer._instance.open_broker(pair.a.address) is None)
        await producer.end(half, TransactionState.COMMIT)
        assert told == []
        # It was elected, and asks whom its heartbeats named.
        pair.route(b=0)
        await producer._instance.routes.refresh_all()
        await until(lambda: pair.b.heartbeats)
        data = pair.a.queues["t", half.transaction.sent.queue.queue_id][0]
        asked = headers.CheckTransactionHeader(half_offset=0, physical_offset=0, broker_name=NAME)
        for peer in pair.b.server.peers:
            peer.send(request(RequestCode.CHECK_TRANSACTION_STATE, asked, data, opaque=peer.next_opaque(), flag=2))
        await until(lambda: told)
        assert (told[0].outcome, told[0].from_check) == (sysflags.TRANSACTION_COMMIT, True)


# -- heartbeats ----------------------------------------------------------------------------------------------------


def groups_at(broker: FakeBroker) -> set[str]:
    return {consumer.group_name for beat in broker.heartbeats for consumer in beat.consumer_data_set}


@in_loop
async def test_all_members_know_a_consumer_and_new_ones_at_once() -> None:
    async with members() as pair:
        consumer = AsyncPushConsumer(pair.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        consumer.listen(lambda message: None)
        async with consumer:
            await until(lambda: groups_at(pair.a) == groups_at(pair.b) == {"g"})
            pair.route(a=0, b=1, c=2)
            await consumer._instance.routes.refresh_all()
            await until(lambda: groups_at(pair.c) == {"g"}, 20)


@in_loop
async def test_producers_are_known_to_masters_alone_and_to_a_new_one_at_once() -> None:
    async with members() as pair, AsyncProducer(pair.namesrv, "pg") as producer:
        await producer.send("t", b"x")
        await producer._instance.heartbeat_all()
        assert (len(pair.a.heartbeats), len(pair.b.heartbeats)) == (2, 0)
        pair.route(c=0, b=1)
        await producer._instance.routes.refresh_all()
        await until(lambda: pair.c.heartbeats, 20)
        assert {group.group_name for group in pair.c.heartbeats[0].producer_data_set} == {"pg", "CLIENT_INNER_PRODUCER"}
        assert pair.b.heartbeats == []


# -- reading -------------------------------------------------------------------------------------------------------


@in_loop
@pytest.mark.parametrize("code", [2, 14])
async def test_a_pull_that_is_refused_has_the_route_fetched(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(puller, "REFUSED_PAUSE_S", 0.01)
    async with members() as pair, AsyncPullConsumer(pair.namesrv, "g", consume_from="first") as consumer:
        pair.fill(5)
        pair.a.rules[PULL] = lambda header, body: (code, "not a master")
        await consumer.assign([Q0])
        await until(lambda: pair.a.requests[PULL])
        pair.route(b=0, a=2)
        assert [m.body for m in await read(consumer, 5)] == [b"%d" % n for n in range(5)]
        assert pair.b.requests[PULL]


@in_loop
async def test_reading_goes_on_at_the_slave_as_the_master_dies() -> None:
    async with members() as pair, AsyncPullConsumer(pair.namesrv, "g", consume_from="first") as consumer:
        pair.fill(3)
        await consumer.assign([Q0])
        await read(consumer, 3)
        pair.route(b=1)
        await pair.a.server.close()
        pair.b.put("t", 0, b"3")
        assert [m.body for m in await read(consumer, 1)] == [b"3"]


@in_loop
async def test_a_queues_bounds_come_from_a_slave_while_there_is_no_master() -> None:
    async with members() as pair, AsyncProducer(pair.namesrv, "pg") as client:
        pair.fill(7)
        for broker, lowest in ((pair.a, 1), (pair.b, 2)):
            broker.minima["t", 0] = lowest
        assert (await client.min_offset(Q0), await client.max_offset(Q0)) == (1, 7)
        # The route still names the one that died.
        pair.route(b=1, c=2)
        await pair.a.server.close()
        await until(lambda: client._instance.open_broker(pair.a.address) is None)
        assert (await client.min_offset(Q0), await client.max_offset(Q0)) == (2, 7)
        assert await client.search_offset(Q0, 0) == 0
        assert pair.b.requests[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] == 1
        assert pair.c.requests == {}


# -- offsets -------------------------------------------------------------------------------------------------------


@in_loop
async def test_offsets_go_to_the_lowest_slave_and_again_to_the_master() -> None:
    async with (
        members(a=0, b=1, c=2) as pair,
        AsyncPullConsumer(pair.namesrv, "g", consume_from="first", auto_commit=False) as consumer,
    ):
        pair.fill(5)
        key = "g", "t", 0
        await consumer.assign([Q0])
        await read(consumer, 3)
        await consumer.commit()
        assert pair.a.committed[key] == [3]
        pair.route(b=1, c=2)
        await consumer._instance.routes.refresh_all()
        await consumer.commit()
        assert (pair.b.committed[key], pair.c.committed[key]) == ([3], [])
        await consumer.commit()
        assert pair.b.committed[key] == [3]
        pair.route(a=0, b=1, c=2)
        await consumer._instance.routes.refresh_all()
        # Nothing more was read; the master may have lost them.
        await consumer.commit()
        assert (pair.a.committed[key], pair.b.committed[key]) == ([3, 3], [3])


@in_loop
async def test_a_commit_to_a_master_that_died_goes_to_the_slave_at_once() -> None:
    async with (
        members() as pair,
        AsyncPullConsumer(pair.namesrv, "g", consume_from="first", auto_commit=False) as consumer,
    ):
        pair.fill(5)
        pair.a.suggested = 1
        await consumer.assign([Q0])
        await read(consumer, 5)
        pair.route(b=1)
        await pair.a.server.close()
        await until(lambda: consumer._instance.open_broker(pair.a.address) is None)
        await consumer.commit()
        assert pair.b.committed["g", "t", 0] == [5]


@in_loop
async def test_a_slaves_offset_counts_only_if_the_route_still_names_no_master() -> None:
    async with members(b=1) as pair:
        pair.fill(9)
        pair.a.offsets["g", "t", 0], pair.b.offsets["g", "t", 0] = 7, 4
        async with AsyncPullConsumer(pair.namesrv, "g", consume_from="first", auto_commit=False) as consumer:
            assert await consumer.queues("t") == [Q0]
            assert await consumer.committed(Q0) == 4
            pair.route(a=0, b=1)
            assert await consumer.committed(Q0) == 7


# -- locks ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_locks_are_asked_for_at_once_at_a_new_master() -> None:
    async with members(queues=2) as pair:
        consumer = AsyncPushConsumer(pair.namesrv, "g", consume_from="first", ordered=True)
        consumer.subscribe("t")
        consumer.listen(lambda message: None)
        async with consumer:
            held = {("g", queue) for queue in BOTH}
            await until(lambda: held <= pair.a.owners.keys())
            assert pair.b.requests[HELD] == 0
            pair.route(b=0, a=1)
            await consumer._instance.routes.refresh_all()
            # By itself they are renewed every 20 s.
            await until(lambda: held <= pair.b.owners.keys(), 15)
            pair.route(a=1)
            await consumer._instance.routes.refresh_all()
            pair.b.owners.clear()
            pair.route(b=0)
            await consumer._instance.routes.refresh_all()
            await until(lambda: held <= pair.b.owners.keys(), 15)
