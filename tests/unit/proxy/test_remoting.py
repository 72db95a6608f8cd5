"""Remoting through the proxy's port: what a client's connections cost the proxy."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.unit.proxy.conftest import RunningProxy
from tests.unit.proxy.consuming.test_consuming import wait_until

from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.connections import dial
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
