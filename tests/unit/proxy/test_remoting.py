"""Remoting through the proxy's port: what a client's connections cost the proxy."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RunningProxy
from tests.unit.proxy.consuming.test_consuming import wait_until

from rocketspark.admin.operations import Admin
from rocketspark.protocol import request_signing
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.proxy.remoting import Behind, RemotingRelay
from rocketspark.testing.cluster import Cluster
from rocketspark.transport.connections import dial
from rocketspark.transport.processor_table import ReceivedRequest, Refusal
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("remoting: a connection to each broker for each client, which counts as its client's")

HEARTBEAT = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []})


def beaten(address: str, meanwhile: list[int], count: dict[str, int]) -> Reply:
    """A client's heartbeat; `meanwhile` gets how many connections count for its host."""

    async def main() -> Reply:
        peer = await dial(address)
        found = await peer.request(RequestCode.HEART_BEAT, None, HEARTBEAT)
        meanwhile.append(count.get("127.0.0.1", 0))
        peer.close()
        await peer.wait_closed()
        return found

    return asyncio.run(main())


def test_connections_to_brokers_count_as_their_clients(proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    front = proxy.server.front.server
    count = front.bounds._by_host
    wait_until(lambda: not count)
    meanwhile: list[int] = []
    assert beaten(proxy.address, meanwhile, count).code == 0
    wait_until(lambda: not count)
    # The client's own connection, and that to the broker.
    assert meanwhile == [2]
    monkeypatch.setattr(front.bounds.bounds, "per_address", 1)
    refused = beaten(proxy.address, meanwhile, count)
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "no broker is reached")
    wait_until(lambda: not count)
    monkeypatch.undo()
    assert beaten(proxy.address, meanwhile, count).code == 0
    assert meanwhile == [2, 1, 2]


def test_a_request_that_wants_no_answer_reaches_the_broker(cluster: Cluster, proxy: RunningProxy) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("proxy-oneway", queue_count=1)
    beat = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [{"groupName": "oneway"}]}
    queue = {"consumerGroup": "oneway", "topic": "proxy-oneway", "queueId": "0", "bname": "broker-a"}

    async def main() -> None:
        peer = await dial(proxy.address)
        (await peer.request(RequestCode.HEART_BEAT, None, msgspec.json.encode(beat))).raise_for_code("beat")
        send = {"a": "p", "b": "proxy-oneway", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        for _ in range(2):
            sent = await peer.request(RequestCode.SEND_MESSAGE_V2, send | {"i": "", "n": "broker-a"}, b"x")
            sent.raise_for_code("send")
        peer.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": "2"})
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, queue)
                if request_signing.ext_texts(found.ext)["offset"] == "2":
                    break
                await asyncio.sleep(0.01)
        peer.close()

    asyncio.run(main())


class LosesHisRight:
    """A check that lets a request in, and refuses it when it is asked again."""

    def __init__(self) -> None:
        self.asked = 0

    def refuses(self, received: ReceivedRequest) -> Refusal | None:
        self.asked += 1
        return None if self.asked == 1 else Refusal(int(ResponseCode.NO_PERMISSION), "no matched policies")


@pytest.mark.parametrize(("code", "asked"), [(RequestCode.PULL_MESSAGE, 2), (RequestCode.GET_MAX_OFFSET, 1)])
def test_who_loses_a_right_while_his_pull_waits_gets_no_message(
    code: RequestCode, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fresh(user: str | None) -> None:
        """There is nothing to fetch."""

    async def answer(peer: Any, received: ReceivedRequest) -> Reply:
        return Reply(0, "FOUND", b"", b"secret", "")

    check: Any = LosesHisRight()
    relay = RemotingRelay(Behind(cast(Any, None), None, None), lambda peer: "", (check, fresh))
    monkeypatch.setattr(relay, "_answer", answer)
    received = ReceivedRequest(None, int(code), 0, 0, "PYTHON", {}, b"")
    found = asyncio.run(relay._serve(cast(Any, None), 7, received))
    assert found is not None
    assert (check.asked, b"secret" in found, b"no matched policies" in found) == (asked, asked == 1, asked == 2)
