"""What brokers ask of consumers, on both servers, asked for by the official mqadmin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.scene import Cluster, Inbox, Scene
from tests.java.apache import ask, committed_offset
from tests.java.mqadmin import MqAdmin, same, until

from rocketspark.client import Producer, PushConsumer
from rocketspark.model import Message, ReceivedMessage

pytestmark = [
    pytest.mark.java,
    pytest.mark.shows("consumers: the seven requests of brokers"),
]


@pytest.fixture(scope="module")
def mqadmin(java_tools: None, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    made = MqAdmin(tmp_path_factory.mktemp("mqadmin"), cluster.namesrv, cluster.broker)
    yield made
    made.close()


@pytest.fixture
def reset_by_clients(cluster: Cluster) -> Iterator[None]:
    def change(value: str) -> None:
        assert ask(cluster.broker, 25, f"useServerSideResetOffset={value}".encode()).code == 0

    change("false")
    yield
    change("true")


def fill(scene: Scene, per_queue: int) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        for queue in producer.queues(scene.topic):
            producer.send_batch([Message(topic=scene.topic, body=b"%d" % i) for i in range(per_queue)], queue=queue)


def consumer(scene: Scene, listener: Any, **options: Any) -> PushConsumer:
    made = PushConsumer(scene.namesrv, scene.group, consume_from="first", commit_interval_ms=200, **options)
    made.subscribe(scene.topic)
    made.listen(listener)
    return made


def committed(scene: Scene) -> list[int | None]:
    return [committed_offset(scene.cluster.broker, scene.group, scene.topic, n) for n in range(4)]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.usefixtures("reset_by_clients")
def test_resetting_offsets_of_consumers_that_run(scene: Scene, mqadmin: MqAdmin, ordered: bool) -> None:
    fill(scene, 3)
    inbox = Inbox()
    with consumer(scene, inbox, ordered=ordered):
        assert len(inbox.wait_for(12)) == 12
        until(lambda: committed(scene) == [3] * 4)
        mqadmin("resetOffsetByTime", "-g", scene.group, "-t", scene.topic, "-s", "0")
        assert len(inbox.wait_for(24)) == 24
        until(lambda: committed(scene) == [3] * 4)
    again = [(m.queue_id, int(m.body)) for m in inbox.received[12:]]
    assert sorted(again) == [(queue, n) for queue in range(4) for n in range(3)]


def test_resetting_offsets_at_the_server(scene: Scene, mqadmin: MqAdmin) -> None:
    fill(scene, 3)
    inbox = Inbox()
    with consumer(scene, inbox):
        assert len(inbox.wait_for(12)) == 12
        until(lambda: committed(scene) == [3] * 4)
        mqadmin("resetOffsetByTime", "-g", scene.group, "-t", scene.topic, "-s", "0")
        # A pull that the broker holds ends when something comes.
        fill(scene, 1)
        everything = {(queue, offset) for queue in range(4) for offset in range(4)}
        until(lambda: {(m.queue_id, m.queue_offset) for m in inbox.received[12:]} == everything)
        until(lambda: committed(scene) == [4] * 4)


def part(lines: list[str], title: str) -> list[str]:
    begin = lines.index(title) + 1
    return lines[begin : next((n for n, line in enumerate(lines) if n > begin and line[-1] == line[0] == "#"), None)]


@pytest.mark.parametrize("ordered", [False, True])
def test_running_info(scene: Scene, mqadmin: MqAdmin, ordered: bool) -> None:
    fill(scene, 2)
    inbox = Inbox()
    with consumer(scene, inbox, ordered=ordered, threads=3) as member:
        assert len(inbox.wait_for(8)) == 8
        until(lambda: committed(scene) == [2] * 4)
        lines = mqadmin("consumerStatus", "-g", scene.group, "-s")
        same(
            lines,
            """
            #Index #ClientId #Version #ConsumerRunningInfoFile
            1 <client> V5_5_0 <number>/<client>
            Same subscription in the same group of consumer
            Rebalance OK
            """,
        )
        lines = mqadmin("consumerStatus", "-g", scene.group, "-i", member.client_id, "-s")
        for expected in (
            f"consumerGroup : {scene.group}",
            f"PROP_CONSUMEORDERLY : {str(ordered).lower()}",
            "PROP_CONSUME_TYPE : CONSUME_PASSIVELY",
            "PROP_THREADPOOL_CORE_SIZE : 3",
            "PROP_CLIENT_VERSION : V5_5_0",
            "PROP_NAMESERVER_ADDR : NAMESRV;",
        ):
            assert expected in lines
        same(
            [line for line in part(lines, "#Consumer Offset#") if line.startswith(scene.topic)],
            "".join(f"{scene.topic} broker-a {n} 2\n" for n in range(4)),
        )
        same(
            [line for line in part(lines, "#Consumer MQ Detail#") if line.startswith(f"{scene.topic} broker-a 0")],
            f"{scene.topic} broker-a 0 ProcessQueueInfo [commitOffset=2, cachedMsgMinOffset=0, cachedMsgMaxOffset=0,"
            " cachedMsgCount=0, cachedMsgSizeInMiB=0, transactionMsgMinOffset=0, transactionMsgMaxOffset=0,"
            f" transactionMsgCount=0, locked={str(ordered).lower()}, tryUnlockTimes=0, lastLockTimestamp=<number>,"
            " droped=false, lastPullTimestamp=<number>, lastConsumeTimestamp=<number>]",
        )
        (rates,) = (line for line in part(lines, "#Consumer RT&TPS#") if line.startswith(scene.topic))
        same([rates], f"{scene.topic} <decimal> <decimal> <decimal> <decimal> 0.00 0")
        assert float(rates.split()[4]) > 0
        stacks = lines[lines.index("#Consumer jstack#") :]
        assert any(line.startswith("MainThread TID: ") for line in stacks)


def test_positions(scene: Scene, mqadmin: MqAdmin) -> None:
    fill(scene, 2)
    inbox = Inbox()
    with consumer(scene, inbox):
        assert len(inbox.wait_for(8)) == 8
        until(lambda: committed(scene) == [2] * 4)
        asked = {"topic": scene.topic, "group": scene.group, "clientAddr": ""}
        answer = ask(scene.cluster.broker, 223, ext_fields=asked)
    assert answer.code == 0
    for n in range(4):
        assert b'{"brokerName":"broker-a","queueId":%d,"topic":"%b"}:2' % (n, scene.topic.encode()) in answer.body


@pytest.mark.parametrize("ordered", [False, True])
def test_consuming_by_hand(scene: Scene, mqadmin: MqAdmin, ordered: bool) -> None:
    outcomes: dict[bytes, bool] = {b"good": True, b"later": False}
    armed = threading.Event()
    accepted: list[bytes] = []

    def listener(message: ReceivedMessage) -> bool:
        if not armed.is_set():
            accepted.append(message.body)
            return True
        if message.body not in outcomes:
            raise ValueError("as told")
        return outcomes[message.body]

    inbox = Inbox(then=listener)
    with consumer(scene, inbox, ordered=ordered) as member, Producer(scene.namesrv, "pg") as producer:
        sent = {body: producer.send(scene.topic, body) for body in (b"good", b"later", b"bad")}
        until(lambda: len(accepted) == 3)
        armed.set()
        for body, result, remark in (
            (b"good", "CR_SUCCESS", "null"),
            (b"later", "CR_LATER", "null"),
            (b"bad", "CR_THROW_EXCEPTION", "ValueError: as told"),
        ):
            arguments = ("-i", sent[body].offset_message_id, "-g", scene.group, "-d", member.client_id)
            same(
                mqadmin("queryMsgById", "-t", scene.topic, *arguments),
                f"ConsumeMessageDirectlyResult [order={str(ordered).lower()}, autoCommit=true, consumeResult={result},"
                f" remark={remark}, spentTimeMills=<number>]",
            )
    assert [m.body for m in inbox.received[3:]] == [b"good", b"later", b"bad"]
