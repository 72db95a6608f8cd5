"""Groups as an operator sees them, questions passed on to clients, request-reply, SQL92 filters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    pairs,
    pull,
    records,
    run,
    send_header,
    sent,
    until,
)
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import java_json
from rocketspark.protocol.message import properties
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Reply, reply

pytestmark = pytest.mark.shows("settings, connections, progress, reset, clone, running info, direct consume")


def table(body: bytes) -> dict[tuple[str, int], Any]:
    """An offsetTable keyed by queue, as {(topic, queue id): value}."""
    found = {}
    for key, value in java_json.decode(body, dict)["offsetTable"].items():
        queue = json.loads(key)
        assert queue["brokerName"] == "broker-a"
        found[(queue["topic"], queue["queueId"])] = value
    return found


async def commit(peer: Peer, queue_id: int, offset: int, group: str = GROUP) -> Reply:
    await create_group(peer, group)
    header = headers.UpdateConsumerOffsetHeader(group=group, topic=TOPIC, queue_id=queue_id, commit_offset=offset)
    return await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def test_settings_of_groups_are_kept_changed_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            config = {"groupName": "GG", "retryMaxTimes": 5, "consumeEnable": False}
            (await peer.request(200, None, json.dumps(config).encode())).raise_for_code("create")
            more = {"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2", "retryQueueNums": 3}]}
            (await peer.request(225, None, json.dumps(more).encode())).raise_for_code("create")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            shown = json.loads((await peer.request(352, headers.GroupHeader(group="GG"))).body)
            assert (shown["retryMaxTimes"], shown["consumeEnable"], shown["groupRetryPolicy"]) == (
                5,
                False,
                {"type": "CUSTOMIZED"},
            )
            refused = await pull(peer, TOPIC, 0, 0, group="GG")
            assert refused.code == 16
            header = headers.DeleteGroupHeader(group="G2", clean_offsets=True)
            (await peer.request(207, header)).raise_for_code("delete")
            everything = json.loads((await peer.request(201, {"groupSeq": "0"})).body)["subscriptionGroupTable"]
            assert {"GG", "G1"} <= set(everything)
            assert "G2" not in everything
            assert (await peer.request(352, headers.GroupHeader(group="G2"))).code == 26
            assert (await peer.request(200, None, b'{"groupName":"bad name"}')).code == 29

    run(main())


def test_a_forbidden_group_may_not_read_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            header = headers.ForbiddenHeader(group=GROUP, topic=TOPIC, readable=False)
            answer = await peer.request(353, header)
            assert json.loads(answer.body) == {"group": GROUP, "readable": False, "topic": TOPIC}
            assert (await pull(peer)).code == 16
            assert (await pull(peer, group="other")).code == 0
            await peer.request(353, headers.ForbiddenHeader(group=GROUP, topic=TOPIC, readable=True))
            assert (await pull(peer)).code == 0

    run(main())


def test_connections_show_who_lives(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert (await peer.request(203, headers.ConsumerListHeader(group=GROUP))).code == 206
            await beat(peer, client_id="c1", producer="P", topics={TOPIC: "A || B"})
            shown = json.loads((await peer.request(203, headers.ConsumerListHeader(group=GROUP))).body)
            (connection,) = shown["connectionSet"]
            assert (connection["clientId"], connection["language"], connection["version"]) == ("c1", "PYTHON", 513)
            assert connection["clientAddr"].startswith("127.0.0.1:")
            assert shown["subscriptionTable"][TOPIC] | {"tagsSet": [], "codeSet": []} == {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": "A || B",
                "subVersion": 0,
                "tagsSet": [],
                "topic": TOPIC,
            }
            assert sorted(shown["subscriptionTable"][TOPIC]["codeSet"]) == [65, 66]
            producers = json.loads((await peer.request(204, headers.ProducerGroupHeader(group="P"))).body)
            assert producers["connectionSet"] == [connection]
            everyone = json.loads((await peer.request(328, {})).body)["data"]
            assert [c["clientId"] for c in everyone["P"]] == ["c1"]

    run(main())


def test_progress_shows_the_backlog_of_every_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=2)
            for _ in range(3):
                await sent(peer)
            await commit(peer, 0, 2)
            (reply_2,) = [await pull(peer, TOPIC, 0, 2)]
            assert reply_2.code == 0
            answer = await peer.request(208, headers.ConsumerStatsHeader(group=GROUP))
            rows = table(answer.body)
            stored = records(await pull(peer, TOPIC, 0, 0))[1].store_time_ms
            assert rows == {
                (TOPIC, 0): {"brokerOffset": 3, "consumerOffset": 2, "lastTimestamp": stored, "pullOffset": 3},
                (TOPIC, 1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
            }
            groups = json.loads((await peer.request(300, headers.TopicHeader(topic=TOPIC))).body)
            assert groups == {"groupList": [GROUP]}
            topics = json.loads((await peer.request(343, headers.GroupHeader(group=GROUP))).body)
            assert topics == {"brokerAddr": server.address, "topicList": [TOPIC]}
            spans = json.loads((await peer.request(303, {"topic": TOPIC, "group": GROUP})).body)["consumeTimeSpanSet"]
            assert [s["messageQueue"]["queueId"] for s in spans] == [0, 1]
            assert spans[0]["consumeTimeStamp"] == stored

    run(main())


def test_offsets_set_by_hand_are_told_once_and_commits_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as admin:
            await create(peer, queues=2)
            for _ in range(3):
                await sent(peer)
            await beat(peer)
            await commit(peer, 0, 3)
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 3, sys_flag=6, suspend_ms=10_000))
            await until(lambda: server._long_polling.waiting == 1)
            reset = await admin.request(222, headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0))
            assert table(reset.body) == {(TOPIC, 0): 0, (TOPIC, 1): 0}
            moved = await asyncio.wait_for(held, LIMIT_S)
            assert (moved.code, moved.remark, moved.header(headers.PullReply).next_offset) == (21, "OFFSET_RESET", 0)
            # Queue 1 was not pulled yet: what its consumer still commits counts for nothing.
            assert (await commit(peer, 1, 7)).remark == "Offset has been previously reset"
            assert (await pull(peer, TOPIC, 1, 7)).code == 21
            assert (await pull(peer, TOPIC, 0, 0)).code == 0
            end = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=-1, force=True)
            assert table((await admin.request(222, end)).body) == {(TOPIC, 0): 3, (TOPIC, 1): 0}
            one = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, offset=1)
            assert table((await admin.request(222, one)).body) == {(TOPIC, 0): 1}
            beyond = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, offset=4)
            assert (await admin.request(222, beyond)).code == 1

    run(main())


@pytest.mark.shows("reset by the clients themselves (220, useServerSideResetOffset=false)")
def test_offsets_reset_by_the_consumers_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        came: dict[str, list[tuple[Any, dict[str, Any]]]] = {"JAVA": [], "CPP": []}

        def client(language: str) -> Routes:
            def take(peer: Peer, request: Any, body: bytes) -> None:
                assert request.flag & 2
                came[language].append((request.ext, java_json.decode(body, dict)["offsetTable"]))

            routes = Routes()
            routes.add(220, take, headers.ResetOffsetHeader)
            return routes

        settings = {"reset_offsets_here": False}
        async with broker(tmp_path, **settings) as server, connected(server.address) as admin:
            reset = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0)
            unknown = await admin.request(222, reset)
            assert (unknown.code, unknown.remark) == (
                1,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={TOPIC}",
            )
            await create(admin, queues=2)
            for queue_id in (0, 0, 1):
                await sent(admin, b"x", TOPIC, queue_id)
            assert (await admin.request(222, reset)).remark == f"THe consumer group <{GROUP}> not exist"
            (await admin.request(200, None, json.dumps({"groupName": GROUP}).encode())).raise_for_code("create")
            await commit(admin, 0, 1)
            await commit(admin, 1, 1)
            assert (await admin.request(222, reset)).code == 206
            async with (
                connected(server.address, client("JAVA"), language="JAVA") as java,
                connected(server.address, client("CPP"), language="CPP") as cpp,
            ):
                await beat(java)
                await beat(cpp)
                done = await admin.request(222, reset)
                assert (done.code, table(done.body)) == (0, {(TOPIC, 0): 0, (TOPIC, 1): 0})
                later = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=-1)
                # Forwards only by force.
                assert table((await admin.request(222, later)).body) == {(TOPIC, 0): 1, (TOPIC, 1): 1}
                forced = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=-1, force=True)
                assert table((await admin.request(222, forced)).body) == {(TOPIC, 0): 2, (TOPIC, 1): 1}
                await until(lambda: len(came["JAVA"]) == len(came["CPP"]) == 3)
            heads = [(h.group, h.topic, h.queue_id, h.time_ms) for h, _ in came["JAVA"]]
            assert heads == [(GROUP, TOPIC, -1, 0), (GROUP, TOPIC, -1, -1), (GROUP, TOPIC, -1, -1)]
            assert [sorted(t.values()) for _, t in came["JAVA"]] == [[0, 0], [1, 1], [1, 2]]
            assert [[(q["topic"], q["brokerName"], q["queueId"], q["offset"]) for q in t] for _, t in came["CPP"]] == [
                [(TOPIC, "broker-a", 0, a), (TOPIC, "broker-a", 1, b)] for a, b in ((0, 0), (1, 1), (2, 1))
            ]
            # The broker's own offsets are as they were: the consumers commit theirs.
            query = headers.QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
            answer = await admin.request(RequestCode.QUERY_CONSUMER_OFFSET, query)
            assert answer.header(headers.OffsetReply).offset == 1

    run(main())


def test_offsets_are_cloned_to_another_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await commit(peer, 0, 5)
            await commit(peer, 2, 7)
            await commit(peer, 1, 4, "new")
            header = headers.CloneOffsetsHeader(source=GROUP, target="new", topic=TOPIC, offline=True)
            (await peer.request(314, header)).raise_for_code("clone")
            for queue_id, offset in ((0, 5), (2, 7)):
                asked = headers.QueryConsumerOffsetHeader(group="new", topic=TOPIC, queue_id=queue_id)
                assert (await peer.request(14, asked)).header(headers.OffsetReply).offset == offset
            # Where the source has none it has none either: it would pass over what the source has not read.
            assert server._offsets.of("new", TOPIC) == {0: 5, 2: 7}
            await commit(peer, 0, 3, "third")
            correction = headers.CorrectionHeader(compared=GROUP, filtered="new", topic=TOPIC)
            answer = await peer.request(308, correction)
            assert answer.body == b'{"correctionOffsets":{0:3,2:7}}'

    run(main())


def test_questions_about_a_consumer_are_passed_on_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        asked: list[tuple[int, Any, bytes]] = []
        client = Routes()

        def answer(peer: Peer, request: Any, body: bytes) -> bytes:
            asked.append((request.code, request.ext, body))
            text = {
                221: b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3},"consumerTable":{}}',
                307: b'{"properties":{"x":"1"}}',
                309: b'{"consumeResult":"CR_SUCCESS"}',
            }
            return reply(request.opaque, body=text[request.code], remark="told")

        client.add(307, answer, headers.RunningInfoHeader)
        client.add(309, answer, headers.ConsumeDirectlyHeader)
        client.add(221, answer, headers.ConsumerStatusHeader)
        async with (
            broker(tmp_path) as server,
            connected(server.address, client) as consumer,
            connected(server.address) as admin,
        ):
            await create(admin)
            await sent(admin, b"again")
            await beat(consumer, client_id="c1")
            info = await admin.request(307, headers.RunningInfoHeader(group=GROUP, client_id="c1", stacks=True))
            assert (info.code, info.body, info.remark) == (0, b'{"properties":{"x":"1"}}', "told")
            assert asked[0][1].stacks is True
            (stored,) = records(await pull(admin))
            message_id = f"7F000001{server._server.port:08X}{stored.position:016X}"
            direct = headers.ConsumeDirectlyHeader(group=GROUP, client_id="c1", message_id=message_id, topic=TOPIC)
            assert (await admin.request(309, direct)).body == b'{"consumeResult":"CR_SUCCESS"}'
            assert b"again" in asked[1][2]
            status = await admin.request(223, headers.ConsumerStatusHeader(group=GROUP, topic=TOPIC, client=""))
            assert status.body == (
                b'{"consumerTable":{"c1":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}},"messageQueueTable":{}}'
            )
            absent = headers.RunningInfoHeader(group=GROUP, client_id="nobody", stacks=False)
            assert (await admin.request(307, absent)).code == 1

    run(main())


@pytest.mark.shows("requests and their replies")
def test_a_reply_is_pushed_to_who_asked_and_stored(tmp_path: Path) -> None:
    async def main() -> None:
        came: list[tuple[Any, bytes]] = []
        client = Routes()

        def take(peer: Peer, request: Any, body: bytes) -> bytes:
            came.append((request.ext, body))
            return reply(request.opaque)

        client.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take, headers.PushReplyHeader)
        async with (
            broker(tmp_path) as server,
            connected(server.address, client) as asking,
            connected(server.address) as answering,
        ):
            await beat(asking, client_id="me", group=None, producer="P")
            given = {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "me", "CORRELATION_ID": "c-1", "TTL": "3000"}
            topic = "DefaultCluster_REPLY_TOPIC"
            answer = await answering.request(325, send_header(topic, 0, pairs=given), b"the reply")
            assert (answer.code, answer.remark) == (0, None)
            ((header, body),) = came
            assert (body, header.topic) == (b"the reply", topic)
            told = properties.decode(header.properties)
            assert told["CORRELATION_ID"] == "c-1"
            assert int(told["PUSH_REPLY_TIME"]) == header.store_time_ms
            (stored,) = records(await pull(answering, topic))
            assert (stored.body, pairs(stored)["REPLY_TO_CLIENT"]) == (b"the reply", "me")
            lost = await answering.request(325, send_header(topic, 0, pairs=given | {"REPLY_TO_CLIENT": "gone"}), b"x")
            assert "channel of <gone> not found" in (lost.remark or "")

    run(main())


@pytest.mark.shows("SQL92, judged by the official classes")
def test_sql_filters_pass_what_they_say_where_they_are_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        check = {"clientId": "c", "group": GROUP}
        asked = {"topic": TOPIC, "expressionType": "SQL92", "subVersion": 1}
        sql = {"subscription": "price > 5 AND color = 'red'", "expression_type": "SQL92"}
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            refused = await pull(peer, **sql)
            assert refused.code == 1
            assert "does not support consumer to filter message by SQL92" in (refused.remark or "")
            body = json.dumps(check | {"subscriptionData": asked | {"subString": "price > 5"}}).encode()
            assert (await peer.request(46, None, body)).code == 1
        async with broker(tmp_path, property_filter=True) as server, connected(server.address) as peer:
            for price, color in ((3, "red"), (7, "red"), (9, "blue"), (8, "red")):
                await sent(peer, b"%d" % price, pairs={"price": str(price), "color": color})
            found = records(await pull(peer, **sql))
            assert [m.body for m in found] == [b"7", b"8"]
            assert (await peer.request(46, None, body)).code == 0
            wrong = json.dumps(check | {"subscriptionData": asked | {"subString": "price = = 1"}}).encode()
            answer = await peer.request(46, None, wrong)
            assert answer.code == 23
            assert "column 9" in (answer.remark or "")
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 4, sys_flag=6, suspend_ms=LIMIT_MS, **sql))
            await until(lambda: server._long_polling.waiting == 1)
            await sent(peer, b"no", pairs={"price": "9"})
            await sent(peer, b"yes", pairs={"price": "9", "color": "red"})
            assert [m.body for m in records(await asyncio.wait_for(held, LIMIT_S))] == [b"yes"]

    run(main())
