"""A topic is deleted and made anew: who read it begins at the first message of the new one, however it reads."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import ack, popped
from tests.live.support import (
    GROUP,
    TOPIC,
    broker,
    commit,
    connected,
    create,
    create_group,
    moved_to,
    name_server,
    pull,
    pulled,
    run,
    sent,
    settings,
    until,
)
from tests.live.test_controller_mode import group

from rocketspark import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    CloneOffsetsHeader,
    OffsetReply,
    QueryConsumerOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import ConsumerData, Heartbeat
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "a topic made anew under running consumers",
    "a topic made anew: readers are known over a stop, a kill (also in the midst of the deletion) and a "
    "failover; a slave whose master serves sends nobody",
)


async def made(peer: Peer, count: int) -> None:
    """The topic and the group, with so many messages."""
    await create(peer, queues=1)
    await create_group(peer)
    for number in range(count):
        await sent(peer, b"old %d" % number)


async def remade(peer: Peer, count: int) -> None:
    """The topic with so many messages, after another one of its name."""
    (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
    await create(peer, queues=1)
    for number in range(count):
        await sent(peer, b"new %d" % number)


async def sent_and_goes_there(peer: Peer, offset: int, **changes: Any) -> bool:
    """Whether a pull is sent to the first message, as often as it asks, until it pulls there."""
    told = [await moved_to(peer, offset, **changes) for _ in range(2)]
    await pull(peer, TOPIC, 0, 0, **{"sys_flag": 6} | changes)
    return told == [0, 0]


async def broadcasts(peer: Peer, client_id: str, model: str = "BROADCASTING") -> None:
    """A heartbeat of a member of a broadcasting group."""
    consumer = ConsumerData(group_name=GROUP, message_model=model)
    beat = Heartbeat(client_id=client_id, consumer_data_set=[consumer])
    (await peer.request(RequestCode.HEART_BEAT, body=bodies.encode(beat))).raise_for_code("heartbeat")


@pytest.mark.parametrize("count", [3, 25])
def test_each_member_of_a_broadcasting_group_is_sent_to_the_first_message(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as one,
            connected(server.address) as two,
            connected(server.address) as late,
        ):
            await made(one, 10)
            for name, peer in (("one", one), ("two", two)):
                await broadcasts(peer, name)
                assert len(await pulled(peer)) == 10
            await remade(one, count)
            await broadcasts(late, "late")
            assert await moved_to(late, count) is None
            assert await sent_and_goes_there(one, 10)
            assert await moved_to(one, count) is None
            assert await sent_and_goes_there(two, 10)
            assert await moved_to(two, count) is None
            assert server._offsets.anew.readers == {}

    run(main())


@pytest.mark.shows("a broker started on an empty store under its old name sends running consumers to its first message")
def test_consumers_read_the_first_messages_of_a_broker_that_lost_its_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as names, AsyncExitStack() as ends:
            same = {"namesrv_addresses": names.address, "broker_name": "b"}
            async with broker(tmp_path / "old", **same) as lost, connected(lost.address) as peer:
                await made(peer, 0)
                port = int(lost.address.rpartition(":")[2])
                push = AsyncPushConsumer(names.address, GROUP, consume_from="first")
                pull = AsyncPullConsumer(names.address, "other", consume_from="first")
                pushed: list[bytes] = []
                push.listen(lambda message: pushed.append(message.body))
                for consumer in (push, pull):
                    consumer.subscribe(TOPIC)
                    await ends.enter_async_context(consumer)
                bodies_read = [b"old %d" % number for number in range(30)]
                for body in bodies_read:
                    await sent(peer, body)
                await until(lambda: pushed == bodies_read)
                assert [m.body for m in await polled(pull, 30)] == bodies_read
            async with broker(tmp_path / "new", listen_port=port, **same) as now, connected(now.address) as peer:
                await create(peer, queues=1)
                bodies_read = [b"new %d" % number for number in range(20)]
                for body in bodies_read:
                    await sent(peer, body)
                await until(lambda: pushed[30:] == bodies_read)
                assert [m.body for m in await polled(pull, 20)] == bodies_read
            async with broker(tmp_path / "new") as again, connected(again.address) as peer:
                # What is beyond the end by now was lost with the power: as in RocketMQ.
                assert await moved_to(peer, 25) == 20

    run(main())


async def polled(consumer: AsyncPullConsumer, count: int) -> list[Any]:
    """So many messages."""
    found: list[Any] = []
    while len(found) < count:
        found += await consumer.poll(200)
    return found


@pytest.mark.parametrize("model", ["BROADCASTING", "CLUSTERING"])
@pytest.mark.parametrize("waits", ["for each message", "at the end"])
def test_a_reader_that_waits_is_sent_to_the_first_message(tmp_path: Path, waits: str, model: str) -> None:
    """It was given all of its messages by pulls that the broker held, or none since the broker's start."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await made(other, 0)
            await broadcasts(peer, "one", model)
            for offset in range(10):
                if waits == "at the end":
                    await sent(other, b"old")
                    continue
                asked = asyncio.ensure_future(pulled(peer, TOPIC, 0, offset, sys_flag=6, suspend_ms=60_000))
                await until(lambda: server._long_polling.waiting == 1)
                await sent(other, b"old")
                assert len(await asked) == 1
            if waits == "at the end":
                await pull(peer, TOPIC, 0, 10, sys_flag=6, suspend_ms=1)
            await remade(other, 25)
            assert await sent_and_goes_there(peer, 10)

    run(main())


@pytest.mark.parametrize("count", [3, 10, 25])
def test_a_reader_is_sent_to_the_first_message_once(tmp_path: Path, count: int) -> None:
    """Where the new one ends before the offset, at it, and behind it."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await made(peer, 10)
            assert len(await pulled(peer)) == 10
            await remade(peer, count)
            if count > 10:
                # A tool that looks at a place waits for nothing.
                assert await moved_to(peer, 10, sys_flag=4) is None
            assert await moved_to(peer, 10) == 0
            assert [found.body for found in await pulled(peer)] == [b"new %d" % number for number in range(count)]
            # It was told. Another group, and one that asks where to begin, mean what they say.
            assert await moved_to(peer, count) is None
            if count > 10:
                assert await moved_to(peer, 10, group="other") is None
            await remade(peer, 20)
            asked = QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
            await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert await moved_to(peer, 10) is None
            # What is read by ranges is what was asked for.
            await remade(peer, 20)
            assert await moved_to(peer, 10, bulk=True, sys_flag=4) is None
            # A consumer of columns.
            assert await moved_to(peer, 10, bulk=True) == 0
            assert await moved_to(peer, 0) is None

    run(main())


def test_a_reader_that_nobody_knows_is_sent_there_if_its_offset_is_beyond_the_end(tmp_path: Path) -> None:
    """After a start of the broker, and where each member of a group keeps its own offsets."""

    async def old() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            await pulled(peer)
            # Of a topic that was never another, its end was read before: it lost some of it.
            assert await moved_to(peer, 11) == 10
            await remade(peer, 3)

    async def new() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert [await moved_to(peer, 10, group=group) for group in (GROUP, "other")] == [0, 0]

    run(old())
    run(new())


@pytest.mark.parametrize("count", [3, 25])
def test_a_pop_goes_on_at_the_first_message(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await made(peer, 10)
            assert len(await popped(peer)) == 10
            await remade(peer, count)
            # Those that begin at the end, too: the group was there before.
            assert [m.body for m in await popped(peer, init_mode=1)] == [b"new %d" % number for number in range(count)]

    run(main())


def test_a_held_pull_hears_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer, queues=1)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            await pulled(peer)
            held = asyncio.ensure_future(moved_to(peer, 10, sys_flag=6, suspend_ms=60_000))
            await until(lambda: server._long_polling.waiting)
            await remade(other, 1)
            assert await held == 0

    run(main())


@pytest.mark.shows(
    "mended: topic made anew: the last commit of a consumer that was stopped meanwhile passed over the first messages"
)
@pytest.mark.parametrize("by", ["request", "pull"])
def test_a_commit_of_a_reader_that_ends_before_it_heard_of_it_is_left_out(tmp_path: Path, by: str) -> None:
    """It would pass over as many messages of the new one as it had read of the one before."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)

            async def commit(offset: int) -> None:
                if by == "pull":
                    # It commits where it stands beside what it asks for; what it carries after a move, too.
                    (await pull(peer, TOPIC, 0, 0, sys_flag=5, commit_offset=offset)).raise_for_code("pull")
                    return
                header = UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset)
                (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code("commit")

            async def begin() -> int:
                header = QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
                reply = await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
                return reply.raise_for_code("query").header(OffsetReply).offset

            for number in range(10):
                await sent(peer, b"old %d" % number)
            # A topic that was never another's name: whoever sets an offset means it.
            await commit(11)
            assert await begin() == 11
            await remade(peer, 3)
            # Also one that the new one has already.
            await commit(2)
            await commit(10)
            assert await begin() == 0
            await commit(3)
            assert await begin() == 3

    run(main())


def test_numbers_that_exactly_once_writes_keep_are_taken_in_a_topic_made_anew(tmp_path: Path) -> None:
    topic = "SPARK_TX_totals"

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create_group(peer, topic)
            for _ in range(2):
                await create(peer, topic, queues=2)
                header = UpdateConsumerOffsetHeader(group=topic, topic=topic, queue_id=1, commit_offset=1 << 61)
                reply = await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
                assert (reply.code, reply.remark or "") == (0, "")
                assert server._offsets.of(topic, topic) == {1: 1 << 61}
                await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic))

    run(main())


@pytest.mark.shows("mended: offsets cloned to a group of pops that had read the topic before were lost")
def test_a_pop_begins_where_an_operator_set_it_by_a_clone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await made(peer, 10)
            await popped(peer)
            await remade(peer, 5)
            server._offsets.commit("source", TOPIC, 0, 3)
            header = CloneOffsetsHeader(source="source", target=GROUP, topic=TOPIC)
            (await peer.request(RequestCode.CLONE_GROUP_OFFSET, header)).raise_for_code("clone")
            assert [m.body for m in await popped(peer)] == [b"new 3", b"new 4"]

    run(main())


@pytest.mark.shows("mended: topic made anew: after a kill the offsets of pops followed the topic before")
@pytest.mark.parametrize("count", [3, 25])
def test_after_a_kill_no_pop_of_the_one_before_counts(tmp_path: Path, count: int) -> None:
    """The offsets that follow the check points of before the kill would pass over the first messages."""
    killed = tmp_path / "killed"

    async def old() -> None:
        async with broker(tmp_path / "old") as server, connected(server.address) as peer:
            await made(peer, 10)
            assert len(await popped(peer)) == 10
            await remade(peer, count)
            shutil.copytree(tmp_path / "old", killed)

    async def new() -> None:
        async with broker(killed) as server, connected(server.address) as peer:
            assert [m.body for m in await popped(peer)] == [b"new %d" % number for number in range(count)]
            assert len(server._pops.check_points) == 1

    run(old())
    run(new())


@pytest.mark.shows("after a kill a group that popped the topic made anew is not sent to its first message again")
def test_after_a_kill_who_popped_the_new_one_is_not_sent_to_its_first_message_again(tmp_path: Path) -> None:
    """The note of readers that is on the disk is older than the pop, whose check point tells."""
    killed = tmp_path / "killed"

    async def old() -> None:
        async with broker(tmp_path / "old") as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await sent(peer, b"old")
            assert len(await popped(peer)) == 1
            await remade(peer, 3)
            assert len(await popped(peer)) == 3
            shutil.copytree(tmp_path / "old", killed)

    async def new() -> None:
        async with broker(killed) as server, connected(server.address) as peer:
            await sent(peer, b"new 3")
            assert [m.body for m in await popped(peer)] == [b"new 3"]
            await until(lambda: server._offsets.get(GROUP, TOPIC, 0) == 4)

    run(old())
    run(new())


@pytest.mark.shows("a topic's deletion takes its own retries, and no others")
@pytest.mark.parametrize(
    ("others", "retry_topic", "stays"),
    [
        # Of group `shop_orders`, whatever it reads.
        ({"group": "shop_orders", "topic": "paid"}, "%RETRY%shop_orders", True),
        # Of group `shop` and topic `eu_orders`.
        ({"group": "shop", "topic": "eu_orders"}, "%RETRY%shop_eu_orders", True),
        ({"group": "other", "topic": "paid"}, "%RETRY%shop_orders", False),
    ],
)
def test_with_a_topic_no_retries_of_others_are_deleted(
    others: dict[str, str], retry_topic: str, stays: bool, tmp_path: Path
) -> None:
    """Names of retry topics do not tell where the group ends."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            group = retry_topic.removeprefix("%RETRY%").removesuffix("_orders")
            for topic in ("orders", others["topic"], retry_topic):
                await create(peer, topic, 1)
            for name in (group, others["group"]):
                await create_group(peer, name)
            await sent(peer, b"of others", retry_topic)
            # Without an offset in the topic, as after its own deletion with all of them.
            assert group not in server._offsets.groups_of("orders")
            if others["group"] == "other":
                server._groups.delete("shop_orders")  # The send made it.
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="orders"))).raise_for_code("d")
            assert server._topics.get("orders") is None
            assert (server._topics.get(retry_topic) is not None) == stays
            assert server.store.queue_range(retry_topic, 0) == (0, int(stays))

    run(main())


@pytest.mark.parametrize("count", [3, 25])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_reader_is_sent_there_after_a_start_too(tmp_path: Path, end: str, count: int) -> None:
    """One that commits nothing, whom the broker knows by its pulls alone; once it went there it is not told again."""
    folder, copy = tmp_path / "store", tmp_path / "copy"

    async def old() -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await made(peer, 10)
            assert len(await pulled(peer)) == 10
            await remade(peer, count)
            shutil.copytree(folder, copy)

    async def told() -> None:
        async with broker(folder if end == "stop" else copy) as server, connected(server.address) as peer:
            assert await sent_and_goes_there(peer, 10)
            assert await moved_to(peer, min(count, 10)) is None

    async def again() -> None:
        async with broker(folder if end == "stop" else copy) as server, connected(server.address) as peer:
            assert await moved_to(peer, min(count, 10)) is None

    for act in (old, told, again):
        run(act())


def test_a_kill_in_the_midst_of_the_deletion_forgets_no_reader(tmp_path: Path) -> None:
    """The topic is gone, its offsets are not yet."""
    folder, copy = tmp_path / "store", tmp_path / "copy"

    async def old() -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await sent(peer, b"old")
            await commit(peer, 1)
            await server._offsets.saved()
            before = (folder / "config/consumerOffset.json").read_bytes()
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
            shutil.copytree(folder, copy)
            (copy / "config/consumerOffset.json").write_bytes(before)
            (copy / "config/readersAnew.json").unlink()

    async def new() -> None:
        async with broker(copy) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for number in range(3):
                await sent(peer, b"new %d" % number)
            assert await sent_and_goes_there(peer, 1)
            assert await moved_to(peer, 1) is None

    run(old())
    run(new())


def test_a_reader_is_sent_there_by_who_was_a_slave_and_not_by_a_slave(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: g.master())
            second = await g.start(2)
            await g.in_sync(2)
            async with connected(first.address) as peer:
                await made(peer, 10)
                assert len(await pulled(peer)) == 10
                assert len(await pulled(peer, group="other")) == 10
                await remade(peer, 25)
                assert await sent_and_goes_there(peer, 10, group="other")
            synchronize = second.replication.synchronize
            assert synchronize is not None
            await until(lambda: second._offsets.anew.table() == {f"{TOPIC}@{GROUP}": [0]})
            await until(lambda: second.role.has_live_master)
            async with connected(second.address) as peer:
                assert await moved_to(peer, 10) is None
                await g.stop(1)
                await until(lambda: g.master())
                assert await sent_and_goes_there(peer, 10)
                assert await moved_to(peer, 10) is None
                assert await moved_to(peer, 10, group="other") is None

    run(main())


@pytest.mark.shows("after a kill no check point of a deleted topic counts")
@pytest.mark.parametrize("came", [False, True])
def test_after_a_kill_nothing_popped_of_the_one_before_comes_again(came: bool, tmp_path: Path) -> None:
    """Its record lies in the revive topic, at once or out of the timer wheel: in the same place stands another now."""

    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=3_600_000) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer, b"old")
            assert len(await popped(peer, invisible_time_ms=1500 if came else 300)) == 1
            await remade(peer, 1)
            topic = server._pops.topic
            ids = range(server.settings.revive_queue_count)
            await until(lambda: any(server.store.stored_range(topic, queue_id)[1] for queue_id in ids))
            await server.kill()
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert len(server._pops.check_points) == 0
            assert [message.body for message in await popped(peer)] == [b"new 0"]

    run(main())


@pytest.mark.shows("an ordered message of a deleted topic, acknowledged late, moves no offset of the topic made anew")
def test_a_late_acknowledgement_in_order_passes_over_no_message_of_the_new_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await made(peer, 3)
            held = await popped(peer, order=True)
            await remade(peer, 0)
            assert await popped(peer, order=True) == []
            # Not in the millisecond of the pop.
            await until(lambda: time.time() * 1000 > int(held[0].handle.split()[1]) + 2)
            for number in range(3):
                await sent(peer, b"new %d" % number)
            for message in held:
                await ack(peer, message)
            assert [m.body for m in await popped(peer, order=True)] == [b"new 0", b"new 1", b"new 2"]

    run(main())


def test_after_a_kill_no_batch_of_the_old_topic_is_acknowledged_in_the_new_one(tmp_path: Path) -> None:
    """The ordered batch was noted before the deletion; what was noted since of the new topic is gone with the kill."""

    async def main() -> None:
        server = BrokerServer(settings(tmp_path))
        await server.start()
        async with connected(server.address) as peer:
            await made(peer, 3)
            held = await popped(peer, order=True)
            server._pop_state.save()
            noted = (tmp_path / "config" / "consumerOrderInfo.json").read_bytes()
            await remade(peer, 5)
            assert json.loads((tmp_path / "config" / "consumerOrderInfo.json").read_text())["table"] == {}
            assert len(await popped(peer, order=True, count_max=2)) == 2
            server._offsets.save()
            await server.kill()
        # As brokers left it that wrote it later.
        (tmp_path / "config" / "consumerOrderInfo.json").write_bytes(noted)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for message in held:
                await ack(peer, message)
            found = await popped(peer, order=True)
            assert [m.body for m in found] == [b"new %d" % number for number in range(5)]

    run(main())


def test_what_is_in_flight_goes_with_queues_that_are_cleaned_away(tmp_path: Path) -> None:
    """A topic without settings, as a kill in the midst of its deletion leaves it."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer, b"old")
            assert len(await popped(peer)) == 1
            server._topics.delete(TOPIC)
            (await peer.request(RequestCode.CLEAN_UNUSED_TOPIC)).raise_for_code("clean")
            assert len(server._pops.check_points) == 0
            assert TOPIC not in server.store.queues()

    run(main())
