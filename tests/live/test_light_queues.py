"""Light queues (LMQ) of one broker and of a pair: sent, pulled, waited for, committed, limited, deleted."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    broker,
    connected,
    create,
    pull,
    records,
    run,
    send_header,
    sent,
    until,
)
from tests.live.test_replication import Pair

from rocketspark import Message, MessageQueue, Producer, PullConsumer, read_table
from rocketspark.admin import Admin
from rocketspark.broker.lite import parts
from rocketspark.client import AsyncProducer
from rocketspark.errors import ConfigError, RouteNotFound, SendFailed, UsageError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.light_queues import offset_of
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.protocol.message.batch import encode as encode_batch
from rocketspark.protocol.message.properties import encode
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "light queues (LMQ): one message in many queues %LMQ%…, pulled like topics; limits, deletion"
)

LIGHT: dict[str, Any] = {"lmq": True, "multi_dispatch": True}
NAMES = "INNER_MULTI_DISPATCH"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(**LIGHT, light_queues_max=8) as made:
        yield made


def test_our_client_sends_to_light_queues_and_pulls_them(cluster: Cluster) -> None:
    with Producer(cluster.namesrv) as producer:
        for number in range(6):
            names = "%LMQ%red,%LMQ%all" if number % 2 else "%LMQ%all"
            producer.send("paints", b"%d" % number, tag="t", properties={NAMES: names})
    with PullConsumer(cluster.namesrv, "painters", consume_from="first") as consumer:
        name = consumer.queues("paints")[0].broker_name
        red, all_of_them = MessageQueue("%LMQ%red", name, 0), MessageQueue("%LMQ%all", name, 0)
        consumer.assign([red, all_of_them])
        found: list[tuple[bytes, int, int]] = []
        while len(found) < 9:
            found += [(m.body, m.queue_id, m.queue_offset) for m in consumer.poll(timeout_ms=5000)]
        consumer.commit()
        assert sorted(found) == sorted(
            [(b"%d" % n, 0, n) for n in range(6)] + [(b"%d" % n, 0, n // 2) for n in range(1, 6, 2)]
        )
        assert (consumer.committed(red), consumer.committed(all_of_them)) == (3, 6)
        assert (consumer.min_offset(red), consumer.max_offset(red)) == (0, 3)


def test_our_client_reads_light_queues_of_any_name_and_goes_on_there() -> None:
    names = ["%LMQ%a@b", "%LMQ%devices:12 left.$x", "%LMQ%über", "%LMQ%" + "x" * 240]
    with run_cluster(**LIGHT) as cluster, Producer(cluster.namesrv) as producer:
        found: list[tuple[bytes, int]] = []
        for number in range(2):
            producer.send("odd", b"%d" % number, properties={NAMES: ",".join(names)})
            # The second one goes on where the first one was.
            with PullConsumer(cluster.namesrv, "readers", consume_from="first") as consumer:
                name = consumer.queues("odd")[0].broker_name
                consumer.assign([MessageQueue(each, name, 0) for each in names])
                while len(found) < 4 * (number + 1):
                    found += [(m.body, m.queue_offset) for m in consumer.poll(timeout_ms=5000)]
                consumer.commit()
        assert found == [(b"0", 0)] * 4 + [(b"1", 1)] * 4


@pytest.mark.parametrize(
    ("names", "code", "text"),
    [
        ("%LMQ%a/b", ResponseCode.MESSAGE_ILLEGAL, "slashes"),
        ("%LMQ%" + "x" * 300, ResponseCode.MESSAGE_ILLEGAL, "shorten"),
        ("other", ResponseCode.MESSAGE_ILLEGAL, "begin with %LMQ%"),
        (",%LMQ%a", ResponseCode.MESSAGE_ILLEGAL, "begin with %LMQ%"),
        (",".join(f"%LMQ%{n}" for n in range(9)), ResponseCode.LMQ_QUOTA_EXCEEDED, "maxLmqConsumeQueueNum"),
        (",".join(f"%LMQ%{n}" for n in range(1025)), ResponseCode.MESSAGE_ILLEGAL, "at most 1024"),
    ],
)
@pytest.mark.parametrize("kind", ["single", "batch", "delayed"])
def test_lists_that_no_broker_could_keep_are_refused(
    cluster: Cluster, kind: str, names: str, code: int, text: str
) -> None:
    message = Message("refused", b"x", properties={NAMES: names}, delay_level=1 if kind == "delayed" else 0)
    with Producer(cluster.namesrv, retries=0) as producer:
        send = (lambda: producer.send_batch([message] * 2)) if kind == "batch" else (lambda: producer.send(message))
        with pytest.raises(SendFailed, match=text) as refused:
            send()
    assert f"code {int(code)}" in str(refused.value)


def test_a_batch_makes_no_more_light_queues_than_a_broker_may_have(cluster: Cluster) -> None:
    batch = [Message("refused", b"x", properties={NAMES: f"%LMQ%of-a-batch-{n}"}) for n in range(9)]
    with Producer(cluster.namesrv, retries=0) as producer, pytest.raises(SendFailed, match="maxLmqConsumeQueueNum"):
        producer.send_batch(batch)


def test_a_light_queue_is_no_topic_to_send_to_or_create(cluster: Cluster) -> None:
    with (
        Producer(cluster.namesrv, retries=0) as producer,
        pytest.raises(SendFailed, match=f"with the property {NAMES}"),
    ):
        producer.send("%LMQ%red", b"x")


def test_a_held_pull_is_answered_and_what_is_asked_of_a_light_queue(tmp_path: Path) -> None:
    name = "%LMQ%odd \u00e9 (1)"

    async def main() -> None:
        async with broker(tmp_path, **LIGHT) as server, connected(server.address) as peer:
            await create(peer)
            waiting = asyncio.create_task(pull(peer, name, 0, 0, group="%LMQ%g", sys_flag=6, suspend_ms=600_000))
            await sent(peer, b"1", TOPIC, 2, pairs={NAMES: f"%LMQ%b,{name}"})
            [found] = records(await waiting)
            assert (found.topic, found.queue_id, found.queue_offset) == (TOPIC.encode(), 2, 0)
            assert offset_of(name.encode(), found.properties) == 0
            commit = headers.UpdateConsumerOffsetHeader(group="%LMQ%g", topic=name, queue_id=0, commit_offset=1)
            (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
            answers = {}
            for code, more in (
                (RequestCode.GET_MAX_OFFSET, {}),
                (RequestCode.GET_MIN_OFFSET, {}),
                (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "0"}),
            ):
                ext = {"topic": name, "queueId": "0", **more}
                answers[code] = (await peer.request(code, ext)).header(headers.OffsetReply).offset
            assert list(answers.values()) == [1, 0, 0]
            assert "%LMQ%g" not in server._groups.table
            assert [each for each in server._topics.table if "LMQ" in each] == []
            server._offsets.commit("g", f"{name}@example.com", 0, 7)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})).raise_for_code("delete")
            assert server._offsets.get("g", f"{name}@example.com", 0) == 7
            assert server.store.queue_range(name, 0) == (0, 0)
            assert server._offsets.get("%LMQ%g", name, 0) is None
            await sent(peer, b"2", TOPIC, 2, pairs={NAMES: name})
            assert server.store.queue_range(name, 0) == (0, 1)
            wanted = {"topic": "%LMQ%b", "consumerGroup": "g", "queueId": "0", "maxMsgNums": "1", "initMode": "0"}
            times = {"invisibleTime": "10000", "pollTime": "0", "bornTime": "0"}
            popped = await peer.request(RequestCode.POP_MESSAGE, wanted | times)
            assert popped.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run(main())


def test_what_commands_say_of_a_light_queue() -> None:
    with run_cluster(**LIGHT) as cluster, Admin(cluster.namesrv) as admin:
        with pytest.raises(UsageError, match="'%LMQ%a' is a light queue: the first message that names it makes it"):
            admin.create_topic("%LMQ%a")
        calls = [admin.delete_topic, admin.show_topic, lambda topic: read_table(cluster.namesrv, topic)]
        for call in calls:
            with pytest.raises(RouteNotFound, match="'%LMQ%a' is a light queue, which has no route"):
                call("%LMQ%a")


@pytest.mark.shows("mended: a pattern that a light queue's name matches too ends a read of a store's folder")
def test_a_store_is_read_without_its_light_queues(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path, **LIGHT) as cluster, Producer(cluster.namesrv) as producer:
        for n in range(3):
            producer.send("paints", b"%d" % n, properties={NAMES: "%LMQ%house-paints"})
    folder = tmp_path / "broker-a"
    assert read_table(store=folder, topicPattern=".*paints")["topic"].to_pylist() == ["paints"] * 3
    with pytest.raises(ConfigError, match="'%LMQ%house-paints' is a light queue: read the topic that its messages"):
        read_table(store=folder, topic="%LMQ%house-paints")


def test_unused_topics_are_cleaned_while_light_queues_are_switched_off(tmp_path: Path) -> None:
    async def main(**changes: Any) -> tuple[int, int]:
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await create(peer, TOPIC, 1)
            if changes:
                await sent(peer, b"x", TOPIC, 0, pairs={NAMES: "%LMQ%a"})
            (await peer.request(RequestCode.CLEAN_UNUSED_TOPIC)).raise_for_code("clean")
            return server.store.queue_range("%LMQ%a", 0)

    assert [run(main(**LIGHT)), run(main()), run(main(**LIGHT))] == [(0, 1), (0, 1), (0, 2)]


@pytest.mark.parametrize("batch", [False, True])
def test_what_is_sent_to_a_lite_topic_while_its_topic_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    monkeypatch.setattr(parts, "QUEUES_IN_TURN", 1)
    names = ["%LMQ%$T$a", "%LMQ%$T$b", "%LMQ%$T$c", "%LMQ%$T$d"]

    async def main() -> None:
        async with broker(tmp_path, **LIGHT) as server, connected(server.address) as peer:
            await create(peer, TOPIC, 1)
            for name in names:
                await sent(peer, b"old", TOPIC, 0, pairs={NAMES: name})
            # Another one's deletion, which has passed these, ends meanwhile.
            other = server._lite.delete_parent_steps("other")
            for _ in names:
                next(other)
            steps = server._lite.delete_parent_steps(TOPIC)
            next(steps)
            list(other)
            # The topic was made anew by then, as its senders go on.
            if batch:
                items = [BatchItem(0, body, encode({NAMES: ",".join(names[1:3])}).encode()) for body in (b"1", b"2")]
                code = RequestCode.SEND_BATCH_MESSAGE
                reply = await peer.request(code, send_header(TOPIC, 0, batch=True), encode_batch(items))
                reply.raise_for_code("send")
            else:
                for name in names[1:3] * 2:
                    await sent(peer, b"new", TOPIC, 0, pairs={NAMES: name})
            list(steps)
            assert sorted(name for name in server.store.queues() if "LMQ" in name) == names[1:3]
            for name in names[1:3]:
                found = records(await pull(peer, name, 0, 0))
                assert [each.body for each in found] == ([b"1", b"2"] if batch else [b"new"] * 2)
            assert server.store.before_light is None

    run(main())


def test_a_topic_that_is_deleted_twice_at_once_has_no_lite_topic_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "QUEUES_IN_TURN", 1)

    async def main() -> None:
        async with broker(tmp_path, **LIGHT) as server, connected(server.address) as peer:
            await create(peer, TOPIC, 1)
            for name in "abcd":
                await sent(peer, b"old", TOPIC, 0, pairs={NAMES: f"%LMQ%$T${name}"})
            first = server._lite.delete_parent_steps(TOPIC)
            next(first)
            await sent(peer, b"of the topic made anew", TOPIC, 0, pairs={NAMES: "%LMQ%$T$d"})
            second = server._lite.delete_parent_steps(TOPIC)
            next(second)
            list(first)
            list(second)
            assert [name for name in server.store.queues() if "LMQ" in name] == []

    run(main())


def test_offsets_are_in_rocketmqs_file_and_in_ours(tmp_path: Path) -> None:
    async def main(**changes: Any) -> dict[str, int | None]:
        async with broker(tmp_path, **changes) as server:
            found = {group: server._offsets.get(group, "%LMQ%a", 0) for group in ("g", "%LMQ%g")}
            for group in found:
                server._offsets.commit(group, "%LMQ%a", 0, (found[group] or 0) + 2)
            return found

    assert run(main(**LIGHT)) == {"g": None, "%LMQ%g": None}
    table = json.loads((tmp_path / "config/lmqConsumerOffset.json").read_text().replace("{0:", '{"0":'))
    assert table["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 2}
    assert table["offsetTable"]["%LMQ%a@g"] == {"0": 2}
    assert run(main(**LIGHT)) == {"g": 2, "%LMQ%g": 2}
    # Switched off it goes on with the same offsets, and on again too.
    assert run(main()) == {"g": 4, "%LMQ%g": 4}
    # A copy of the store may have both files from one moment.
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        os.utime(tmp_path / "config" / name, (1, 1))
    assert run(main(**LIGHT)) == {"g": 6, "%LMQ%g": 6}


def test_a_slave_gives_out_the_light_queues_of_its_master(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path, **LIGHT)
        await pair.namesrv.start()
        try:
            await pair.start(0)
            await pair.start(1)
            async with AsyncProducer(pair.namesrv.address) as producer:
                for number in range(3):
                    await producer.send("base", b"%d" % number, properties={NAMES: "%LMQ%a"})
            await until(lambda: pair.slave.store.queue_range("%LMQ%a", 0) == (0, 3))
            async with connected(pair.slave.address) as peer:
                found = records(await pull(peer, "%LMQ%a", 0, 0))
            assert [each.body for each in found] == [b"0", b"1", b"2"]
        finally:
            for broker_id in list(pair.brokers):
                await pair.stop(broker_id)
            await pair.namesrv.close()

    run(main())
