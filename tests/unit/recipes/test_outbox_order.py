"""Whatever fails, whoever is killed: every message goes out, each key in its order."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes.fake_producer import FakeProducer, anything, no_reply, refused

from rocketspark import Message
from rocketspark.recipes import AsyncOutbox, OutboxStore, State

pytestmark = pytest.mark.shows("`Outbox` and its command")

# Of each message: its sharding key, how often it fails, whether it is refused for good after that.
PLAN = st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 2), st.booleans())
PLANS = st.lists(PLAN, min_size=1, max_size=25)
# Claims of relays that were killed before they sent, and writes of outcomes that are lost with their relay.
KILLS = st.lists(st.integers(1, 5), max_size=3)
LOST = st.sets(st.integers(0, 12), max_size=4)


@settings(max_examples=25)
@given(plan=PLANS, kills=KILLS, lost=LOST, relays=st.integers(1, 3))
def test_every_message_goes_out_in_the_order_of_its_key(
    plan: list[tuple[str, int, bool]], kills: list[int], lost: set[int], relays: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(f"sqlite:///{Path(folder) / 'box.db'}", plan, kills, lost, relays))


async def check(url: str, plan: list[tuple[str, int, bool]], kills: list[int], lost: set[int], relays: int) -> None:
    store = OutboxStore(url)
    store.create_tables()
    left = {i: failures for i, (_, failures, _) in enumerate(plan)}

    def fails(message: Message) -> BaseException | None:
        i = int(message.body)
        if left[i]:
            left[i] -= 1
            return no_reply()
        return refused() if plan[i][2] else None

    producer = FakeProducer(fails)
    options: Any = {"relay": False, "backoff_ms": 1, "backoff_max_ms": 2, "poll_ms": 5, "lease_ms": 3_600_000}
    boxes = [AsyncOutbox(anything(producer), OutboxStore(url), **options) for _ in range(relays)]
    with store.database.transaction() as connection:
        for i, (key, _, _) in enumerate(plan):
            store.add(connection, boxes[0].prepare("T", b"%d" % i, f"k{i}", {"sharding_key": key}))
    # A lease of no time: it has ended when the next one looks.
    for count in kills:
        store.claim("killed", count, 0)
    for box in boxes:
        await box.start()
        lose(box, lost)
    async with asyncio.timeout(60):
        while store.count()[State.WAITING]:
            await asyncio.gather(*(box.relay_once() for box in boxes))
            # As if the leases of those that were killed had ended.
            store.database.create(["UPDATE rocketspark_outbox SET owned_until_ms = 0"])
    await asyncio.gather(*(box.close() for box in boxes))

    sent: defaultdict[int, list[str]] = defaultdict(list)
    first: list[int] = []
    for body, message_id in producer.sent:
        if int(body) not in sent:
            first.append(int(body))
        sent[int(body)].append(message_id)
    legal = [i for i, (_, _, refuse) in enumerate(plan) if not refuse]
    assert sorted(sent) == legal
    assert all(len(set(ids)) == 1 for ids in sent.values()), "an id changed"
    for key in "abc":
        order = [i for i in first if plan[i][0] == key]
        assert order == sorted(order)
    assert producer.collisions == []
    assert {int(e.message.body) for e in store.entries(State.PARKED)} == set(range(len(plan))) - set(legal)
    if not lost:
        assert all(len(ids) == 1 for ids in sent.values()), "sent twice though nothing was killed"
    store.close()


def lose(box: AsyncOutbox, lost: set[int]) -> None:
    """Some writes of outcomes never come to be, as if the relay had been killed after its sends."""
    settle, calls = box.store.settle, iter(range(1 << 30))

    def sometimes(owner: str, outcomes: Any) -> None:
        if next(calls) not in lost:
            settle(owner, outcomes)

    box.store.settle = sometimes  # type: ignore[method-assign]
