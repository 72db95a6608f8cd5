"""Offsets of a consumer: to whom the last of them are told."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from rocketspark.client.consumer.offsets import OffsetCommits
from rocketspark.errors import NotSent
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows("last offsets at a slave")

QUEUE = MessageQueue("T", "broker-a", 0)


class Store:
    """What each broker was told; `route`: which one is. `is_back`: the master is, for who asks for the route."""

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
        puller = mock.Mock(queue=QUEUE, committed=0, committed_at=None, leaving=False)
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
