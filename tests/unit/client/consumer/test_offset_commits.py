"""Offsets of a consumer: to whom the last of them are told."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from rocketspark.client.connection import client_api
from rocketspark.client.connection.client_api import PullResult
from rocketspark.client.consumer import offsets
from rocketspark.client.consumer.offsets import BrokerOffsets, OffsetCommits
from rocketspark.errors import NotSent, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader, PullReply

pytestmark = pytest.mark.shows("last offsets at a slave")

QUEUE = MessageQueue("T", "broker-a", 0)


class Store:
    """What each broker was told; `route`: which one is. `is_back`: the master is, for who asks for the route."""

    forgets = True

    def __init__(self) -> None:
        self.route = "slave"
        self.is_back = False
        self.told: dict[str, int] = {}

    def master_of(self, queue: MessageQueue) -> str | None:
        return "master" if self.route == "master" else None

    async def refresh(self, topic: str) -> None:
        assert topic == "T"
        if not self.is_back:
            raise NotSent("no NameServer answers")
        self.route = "master"

    def place(self, queue: MessageQueue) -> object:
        return self.route

    async def commit(self, offsets: Any, *, oneway: bool = False, latest: Any = None) -> dict[Any, Exception]:
        for queue in offsets:
            self.told[self.route] = latest(queue)
        return {}


def test_the_last_commit_goes_to_a_master_that_is_back() -> None:
    """Also if a slave was told the same before: the master's table replaces what it was told."""

    async def main() -> None:
        store: Any = Store()
        puller = mock.Mock(
            queue=QUEUE, committed=0, committed_at=None, committed_s=0.0, leaving=False, reset_to=None, absences=0
        )
        commits = OffsetCommits(
            mock.Mock(routes=store), "g", store, {QUEUE: puller}, consume_from="first", to_commit=lambda puller: 7
        )
        await commits.commit([puller], oneway=True)
        await commits.commit([puller])
        assert store.told == {"slave": 7}
        store.is_back = True
        # Those in between ask for no route.
        await commits.commit([puller], oneway=True)
        assert store.told == {"slave": 7}
        await commits.commit([puller])
        assert store.told == {"slave": 7, "master": 7}

    asyncio.run(main())


@pytest.mark.parametrize("forgets", [True, False])
def test_an_offset_that_does_not_move_is_told_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """A master that stood still and was replaced takes older offsets, and is elected again over the same connection."""

    async def main() -> None:
        store: Any = Store()
        store.route, store.forgets = "master", forgets
        puller = mock.Mock(
            queue=QUEUE, committed=0, committed_at=None, committed_s=0.0, leaving=False, reset_to=None, absences=0
        )
        commits = OffsetCommits(
            mock.Mock(routes=store), "g", store, {QUEUE: puller}, consume_from="first", to_commit=lambda puller: 7
        )
        await commits.commit([puller], oneway=True)
        store.told["master"] = 3
        await commits.commit([puller], oneway=True)
        assert store.told == {"master": 3}
        monkeypatch.setattr(offsets, "AGAIN_S", 0.0)
        await commits.commit([puller], oneway=True)
        # A file keeps what it was told.
        assert store.told == {"master": 7 if forgets else 3}

    asyncio.run(main())


@pytest.mark.parametrize(("consume_from", "begins"), [("first", 3), ("last", 9)])
@pytest.mark.parametrize("may_ask", [True, False])
def test_where_a_queue_begins_and_ends_who_may_only_read_it_learns_by_a_pull(
    consume_from: Any, begins: int, may_ask: bool
) -> None:
    """As rules of access control 2.0 have it: Sub on topic and group, without Get."""
    pulled: list[PullHeader] = []

    async def pull(peer: Any, header: PullHeader) -> PullResult:
        pulled.append(header)
        return PullResult(ResponseCode.PULL_OFFSET_MOVED, "", PullReply(min_offset=3, max_offset=9), b"")

    async def start(topic: str) -> int:
        store = mock.Mock(committed=mock.AsyncMock(return_value=None))
        instance = mock.Mock(peer_of=mock.AsyncMock())
        commits = OffsetCommits(instance, "g", store, {}, consume_from=consume_from, to_commit=lambda puller: 0)
        return await commits.start_offset(MessageQueue(topic, "broker-a", 0))

    refused = None if may_ask else ServerError(ResponseCode.NO_PERMISSION, "no matched policies.")
    ask = [mock.AsyncMock(return_value=offset, side_effect=refused) for offset in (3, 9)]
    with mock.patch.multiple(client_api, min_offset=ask[0], max_offset=ask[1], pull=pull):
        assert asyncio.run(start("T")) == begins
        assert asyncio.run(start("%RETRY%g")) == 0
    assert [(header.group, header.topic, header.suspend_ms) for header in pulled] == [("g", "T", 0)] * (not may_ask)


def test_a_slave_that_becomes_the_master_is_told_again() -> None:
    """Over the same connection: as it was elected it took its master's table, which had not the last offsets."""
    routes = mock.Mock()
    instance = mock.Mock(routes=routes)
    peer = instance.peer_in_use.return_value
    store = BrokerOffsets(instance, "g")
    routes.master_of.return_value = None
    as_slave = store.place(QUEUE)
    # The same slave is told the same once.
    assert store.place(QUEUE) is as_slave
    routes.master_of.return_value = "127.0.0.1:10911"
    assert store.place(QUEUE) is peer is not as_slave
    instance.peer_in_use.return_value = None
    assert store.place(QUEUE) is None
