"""Server-side assignment: our broker gives each member what Apache's broker gave it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, create, create_group, run, until
from tests.support import assignment_rows

from rocketspark.namesrv.server import NameServer
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing.cluster import run_cluster
from rocketspark.transport.processor_table import Routes

pytestmark = pytest.mark.shows(
    "QUERY_ASSIGNMENT, SET_ and GET_ALL_MESSAGE_REQUEST_MODE: strategies, shares, modes, odd questions",
)


def test_assignments_are_those_of_apaches_broker() -> None:
    with run_cluster() as cluster:
        assert assignment_rows.rows(cluster.brokers[0]) == assignment_rows.golden()


def test_queues_of_all_brokers_are_shared_out() -> None:
    with run_cluster(brokers=2) as cluster:
        first, second = (assignment_rows.Link(address) for address in cluster.brokers)
        ext = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "defaultTopic": "TBW102", "topic": "both"}
        for link in (first, second):
            assert (
                link.ask(17, ext=ext | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})[0] == 0
            )
            link.join("g", "c0", ["both"])
        asked = {"topic": "both", "consumerGroup": "g", "clientId": "c0", "strategyName": "AVG"}

        def told(mode: str) -> list[tuple[str, int]]:
            wanted = {"topic": "both", "consumerGroup": "g", "mode": mode, "popShareQueueNum": 0}
            assert second.ask(401, wanted)[0] == 0
            found = json.loads(second.ask(400, asked)[2])["messageQueueAssignments"]
            return sorted((a["messageQueue"]["brokerName"], a["messageQueue"]["queueId"]) for a in found)

        assert told("PULL") == [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
        assert told("POP") == [("broker-a", -1), ("broker-b", -1)]
        first.close()
        second.close()


def test_members_are_told_of_a_new_mode_and_it_outlives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        told: list[int] = []
        routes = Routes()
        routes.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, lambda peer, request, body: told.append(request.code))
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 3}
        asked = {"topic": "T", "consumerGroup": "G", "clientId": "c0", "strategyName": "AVG"}
        consumer = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        beat = {"clientID": "c0", "consumerDataSet": [consumer | {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}]}

        async def ask(peer: Any, code: int, body: dict[str, Any]) -> Any:
            reply = await peer.request(code, None, json.dumps(body).encode())
            assert reply.code == 0, reply.remark
            return json.loads(reply.body or b"{}").get("messageQueueAssignments")

        one = {"brokerName": "broker-a", "queueId": -1, "topic": "T"}
        async with broker(tmp_path) as server, connected(server.address, routes) as peer:
            await create(peer)
            await create_group(peer)
            await ask(peer, RequestCode.HEART_BEAT, beat)
            before = len(told)
            await ask(peer, RequestCode.SET_MESSAGE_REQUEST_MODE, mode)
            await until(lambda: len(told) > before)
            assert await ask(peer, RequestCode.QUERY_ASSIGNMENT, asked) == [{"messageQueue": one, "mode": "POP"}]
        saved = json.loads((tmp_path / "config" / "messageRequestMode.json").read_text())
        assert saved == {"messageRequestModeMap": {"T": {"G": mode}}}
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await ask(peer, RequestCode.HEART_BEAT, beat)
            assert await ask(peer, RequestCode.QUERY_ASSIGNMENT, asked) == [{"messageQueue": one, "mode": "POP"}]

    run(main())


def test_a_nameserver_that_is_away_leaves_what_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        namesrv = NameServer("127.0.0.1", 0)
        await namesrv.start()
        changes = {"namesrv_addresses": namesrv.address, "route_interval_ms": 1}
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await create(peer)
            queues = server._topic_queues
            found = await queues.of("T")
            assert found is not None
            assert [q.queue_id for q in found] == list(range(len(found)))
            assert await queues.of("nowhere") is None
            await namesrv.close()
            await asyncio.sleep(0.01)
            assert await queues.of("T") == found
            await until(lambda: not queues._fetches)
            assert await queues.of("T") == found

    run(main())


def test_modes_of_groups_that_were_never_set(tmp_path: Path) -> None:
    async def main() -> None:
        changes: dict[str, Any] = {"default_request_mode": "POP", "server_load_balancer": False}
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await create(peer)

            async def modes(topic: str) -> list[tuple[int, str]]:
                body = {"topic": topic, "consumerGroup": "G", "clientId": "c", "strategyName": "AVG"}
                reply = await peer.request(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())
                found = json.loads(reply.body)["messageQueueAssignments"]
                return [(a["messageQueue"]["queueId"], a["mode"]) for a in found]

            # Without the balancer everybody has everything.
            count = server._topics.table["T"].read_queue_nums
            assert await modes("T") == [(i, "POP") for i in range(count)]
            await create_group(peer)
            server._topics.ensure("%RETRY%G", 1)
            assert await modes("%RETRY%G") == [(0, "PULL")]
            for body in (b"{}", b"[]", b"", b'{"topic":"T","consumerGroup":"G","messageModel":"ALL"}'):
                reply = await peer.request(RequestCode.QUERY_ASSIGNMENT, None, body)
                assert reply.code != 0
                assert reply.remark
                assert "\n" not in reply.remark
            for number in ("2147483648", "-2147483649", "9" * 400):
                wanted = f'{{"topic":"T","consumerGroup":"G","mode":"POP","popShareQueueNum":{number}}}'.encode()
                reply = await peer.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, wanted)
                assert reply.code != 0
                assert reply.remark

    run(main())
