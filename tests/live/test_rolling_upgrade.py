"""Both brokers of a pair stopped by SIGTERM's way and started again, one after the other, while messages are sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.support import run, until
from tests.live.test_controller_mode import Group, group
from tests.live.test_replication import producer

from rocketspark.model import Message

pytestmark = pytest.mark.shows(
    "a master that ends hands over: elected first, or waits for its slaves up to 5 s; both of a pair "
    "restarted in either order under load"
)


def settled(g: Group) -> bool:
    """Tell whether the slave copies, is in sync, and nothing else is being asked of the controller."""
    master = g.master()
    found = master.replication.controlled.in_sync if master is not None else None
    if found is None or len(found.set.members) != 2 or found.set.wanted is not None:
        return False
    asks = found._asking is not None and not found._asking.done()
    return not asks and all(broker is master or broker.role.is_copying() for broker in g.brokers.values())


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_nothing_is_lost_or_repeated(tmp_path: Path, order: tuple[int, int]) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address, retries=50, send_timeout_ms=30_000) as out:
            await g.start(1)
            await until(g.master)
            await g.start(2)
            await g.in_sync(2)
            stop, sent = asyncio.Event(), 0

            async def send() -> None:
                nonlocal sent
                while not stop.is_set():
                    await out.send(Message(topic="T", body=b"%d" % sent))
                    sent += 1

            sender = asyncio.create_task(send())
            for number in order:
                before = sent
                await until(lambda: sent > before + 20)  # noqa: B023
                await g.stop(number)
                # A master that ends hands over first, so there is another one while it is away.
                await until(g.master)
                await g.start(number)
                await until(lambda: settled(g))
            stop.set()
            await sender
            one, two = g.brokers[1].store, g.brokers[2].store
            await until(lambda: one.written_position == two.written_position)
            for store in (one, two):
                bodies = sorted(int(r.body) for r in store.iterate(0) if r.topic == b"T")
                assert bodies == list(range(sent))

    run(main())
