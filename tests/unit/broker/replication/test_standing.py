"""Whom a master that leaves hands its office to, and how long it waits for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.broker.replication.standing import all_copied, heirs

pytestmark = pytest.mark.shows("hand-over with one of three away")


def slave(number: int | None, acked: int, *, is_open: bool = True) -> Any:
    return SimpleNamespace(is_open=is_open, link=SimpleNamespace(replica_id=number, acked=acked))


def of(*slaves: Any) -> tuple[Any, Any]:
    return SimpleNamespace(written_position=100), SimpleNamespace(connections=list(slaves))


async def is_waiting(task: asyncio.Task[Any]) -> bool:
    return not (await asyncio.wait([task], timeout=0.05))[0]


def test_one_that_holds_all_is_waited_for_whoever_else_of_the_set_is_away() -> None:
    async def main() -> None:
        behind = slave(2, 90)
        store, listener = of(behind, slave(4, 100), slave(3, 100, is_open=False))
        task = asyncio.create_task(heirs(store, listener, {2, 3}, 60))
        assert await is_waiting(task)
        behind.link.acked = 100
        assert await task == [2, 3]

    asyncio.run(main())


def test_the_best_copies_come_first_and_nobody_is_waited_for_in_vain() -> None:
    async def main() -> None:
        assert await heirs(*of(slave(2, 90), slave(4, 100)), {2, 3, 4}, 60) == [4, 2, 3]
        assert await heirs(*of(slave(2, 90)), {2, 3}, 0) == [2, 3]
        # Not connected, or not known how far: nobody can say when.
        assert await heirs(*of(slave(2, -1)), {2}, 60) == [2]

    asyncio.run(main())


def test_by_hand_each_slave_that_is_connected_is_waited_for() -> None:
    async def main() -> None:
        behind = slave(None, 90)
        store, listener = of(behind, slave(None, 100), slave(None, -1))
        task = asyncio.create_task(all_copied(store, listener))
        assert await is_waiting(task)
        behind.is_open = False
        await task

    asyncio.run(main())
