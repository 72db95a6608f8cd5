"""What brokers ask of consumers: reset offsets, positions, running info, consuming by hand."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.client.consumer.consumer_status import thread_stacks
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.metadata import decode_offsets, encode_offsets
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("consumers: the seven requests of brokers")

Q0 = MessageQueue("t", "broker-a", 0)


def link(fake: Fake, group: str = "g") -> Peer:
    """The broker's end of the connection with the group's only member."""
    (peer,) = fake.broker.groups[group].values()
    return peer


async def info(fake: Fake, group: str = "g", *, stacks: bool = False) -> dict[str, Any]:
    asked = headers.RunningInfoHeader(group=group, client_id="c", stacks=stacks)
    answer = await link(fake).request(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
    assert answer.code == 0, answer.remark
    return java_json.decode(answer.body, dict[str, Any])


async def consumed(fake: Fake, offset: int = 0, group: str = "g") -> Any:
    asked = headers.ConsumeDirectlyHeader(group=group, client_id="c", broker_name="broker-a")
    data = fake.broker.queues["t", 0][offset]
    answer = await link(fake).request(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked, data)
    if answer.code:
        return answer.remark
    told = json.loads(answer.body)
    assert told.pop("spentTimeMills") >= 0
    return told


def consumer(fake: Fake, listener: Any, **settings: Any) -> AsyncPushConsumer:
    made = AsyncPushConsumer(fake.namesrv, "g", consume_from="first", **settings)
    made.subscribe("t")
    made.listen(listener)
    return made


def test_thread_stacks_name_threads_and_calls() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="a waiting thread")
    thread.start()
    try:
        blocks = thread_stacks().split("\n\n")
    finally:
        release.set()
        thread.join()
    (block,) = [b for b in blocks if b.startswith("a waiting thread ")]
    first, *calls = block.splitlines()
    assert first == f"{'a waiting thread':40}TID: {thread.ident} STATE: UNKNOWN"
    assert calls[0].startswith(f"{'a waiting thread':40}wait(")


def test_both_forms_of_offsets() -> None:
    assert decode_offsets(encode_offsets({Q0: 7})) == {Q0: 7}
    listed = b'{"offsetTable":[{"topic":"t","brokerName":"broker-a","queueId":0,"offset":7}]}'
    assert decode_offsets(listed) == {Q0: 7}


@in_loop
async def test_running_info_and_positions_of_a_push_consumer() -> None:
    async with Fake(t=2) as fake:
        for i in range(5):
            fake.broker.put("t", 0, b"%d" % i)
        taken: list[ReceivedMessage] = []

        def listener(message: ReceivedMessage) -> bool:
            taken.append(message)
            return message.queue_offset < 3 or message.reconsume_times > 0

        async with consumer(fake, listener, threads=1, heartbeat_interval_ms=50):
            await until(lambda: fake.broker.groups["g"])
            await until(lambda: len(taken) == 7)
            row = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "t"}, separators=(",", ":"))
            await until(lambda: len(fake.broker.send_backs) == 2)
            while (found := await info(fake))["mqTable"][row]["commitOffset"] != 5:
                pass
            assert set(found) == {"mqPopTable", "mqTable", "properties", "statusTable", "subscriptionSet"}
            queue = found["mqTable"][row]
            assert (queue["cachedMsgCount"], queue["droped"], queue["locked"]) == (0, False, False)
            assert queue["lastPullTimestamp"] > 1_700_000_000_000
            properties = found["properties"]
            assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert properties["PROP_NAMESERVER_ADDR"] == f"{fake.namesrv};"
            assert (properties["PROP_CONSUMEORDERLY"], properties["PROP_THREADPOOL_CORE_SIZE"]) == ("false", "1")
            assert {s["topic"] for s in found["subscriptionSet"]} == {"t", "%RETRY%g"}
            status = found["statusTable"]["t"]
            assert status["consumeFailedMsgs"] == 2
            assert status["consumeOKTPS"] > 0
            assert status["pullTPS"] > 0
            assert "a_thread_of_this_test" not in found.get("jstack", "")
            stacks = (await info(fake, stacks=True))["jstack"]
            assert "MainThread" in stacks
            assert "rocketspark-listener-1" in stacks
            asked = headers.ConsumerStatusHeader(topic="t", group="g")
            answer = await link(fake).request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked)
            table = java_json.decode(answer.body, dict[str, Any])["messageQueueTable"]
            assert table == {row: 5, row.replace('"queueId":0', '"queueId":1'): 0}
            refused = headers.RunningInfoHeader(group="other", client_id="c")
            answer = await link(fake).request(RequestCode.GET_CONSUMER_RUNNING_INFO, refused)
            assert (answer.code, answer.remark) == (1, "The Consumer Group <other> not exist in this consumer")


@in_loop
async def test_reset_reads_again_from_there_and_commits_it() -> None:
    for ordered in (False, True):
        async with Fake(t=2) as fake:
            for i in range(10):
                fake.broker.put("t", i % 2, b"%d" % i)
            got: list[tuple[int, int]] = []

            def listener(message: ReceivedMessage, got: list[tuple[int, int]] = got) -> None:
                got.append((message.queue_id, message.queue_offset))

            async with consumer(fake, listener, ordered=ordered, commit_interval_ms=1_000_000):
                await until(lambda got=got: len(got) == 10)
                table = {Q0: 3, MessageQueue("else", "broker-a", 1): 1, MessageQueue("t", "broker-z", 0): 1}
                asked = headers.ResetOffsetHeader(group="g", topic="t", time_ms=0)
                link(fake).oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, asked, encode_offsets(table))
                await until(lambda got=got: len(got) == 12)
                assert sorted(got[10:]) == [(0, 3), (0, 4)]
            assert fake.broker.offsets["g", "t", 0] == 5
            assert 3 in fake.broker.committed["g", "t", 0]


@in_loop
async def test_consume_directly() -> None:
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"good", "UNIQ_KEY\x01u\x02")
        fake.broker.put("t", 0, b"bad")
        fake.broker.put("%RETRY%g", 0, b"late", "RETRY_TOPIC\x01t\x02")

        def listener(messages: list[ReceivedMessage]) -> bool:
            (message,) = messages
            if message.body == b"bad":
                raise ValueError("not this one")
            seen.append((message.topic, message.body, message.message_id, message.broker_name))
            return message.body != b"late" or not armed

        seen: list[tuple[str, bytes, str, str]] = []
        armed: list[bool] = []
        made = AsyncPushConsumer(fake.namesrv, "g", batch_max=2)
        made.subscribe("t")
        made.listen(listener)
        async with made:
            await until(lambda: seen)
            seen.clear()
            armed.append(True)
            base = {"autoCommit": True, "order": False}
            assert await consumed(fake) == base | {"consumeResult": "CR_SUCCESS"}
            assert seen == [("t", b"good", "u", "broker-a")]
            failed = {"consumeResult": "CR_THROW_EXCEPTION", "remark": "ValueError: not this one"}
            assert await consumed(fake, 1) == base | failed
            fake.broker.queues["t", 0].append(fake.broker.queues["%RETRY%g", 0][0])
            assert await consumed(fake, 2) == base | {"consumeResult": "CR_LATER"}
            assert seen[-1][:2] == ("t", b"late")
            assert await consumed(fake, group="no") == "The Consumer Group <no> not exist in this consumer"
            fake.broker.queues["t", 0].append(b"nonsense")
            assert "cannot be decoded" in await consumed(fake, 3)


@in_loop
async def test_a_pull_consumer_tells_of_its_queues_and_is_told_nothing() -> None:
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"0")
        made = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        made.subscribe("t")
        async with made:
            while not await made.poll(1000):
                pass
            table = (await info(fake))["mqTable"]
            assert [row["cachedMsgCount"] for row in table.values()] == [0]
            asked = headers.ConsumerStatusHeader(topic="t", group="g")
            answer = await link(fake).request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked)
            assert answer.body == b'{"consumerTable":{},"messageQueueTable":{}}'
            assert await consumed(fake) == "The Consumer Group <g> not exist in this consumer"
            reset = headers.ResetOffsetHeader(group="g", topic="t", time_ms=0)
            link(fake).oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, encode_offsets({Q0: 0}))
            # Answered after it, on the same connection.
            await info(fake)
            assert await made.position(Q0) == 1
