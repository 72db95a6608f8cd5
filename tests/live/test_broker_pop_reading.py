"""What a pop or a peek reads: how much, from which queues and retry topics, through filters that take their time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.live.pop_support import ack, messages, pop, pop_header, popped
from tests.live.support import GROUP, TOPIC, broker, connected, create, create_group, run, sent, until
from tests.live.test_broker_pop import HOLD, bodies_of, filled
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.broker.consumers import message_filters
from rocketspark.broker.pop import reading, revive
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import record


@pytest.mark.parametrize(
    ("settings", "chance", "order"),
    [
        ({}, 0, [b"V1", b"V2"]),
        ({"retry_topics_v2": True}, 0, [b"V1", b"V2"]),
        ({"retry_topics_v2": True}, 1, [b"V2", b"V1"]),
        ({"retry_topics_v2": True, "retry_topics_v1_read": False}, 0, [b"V2"]),
    ],
)
def test_retries_of_the_other_form_are_left_for_a_pop_that_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, bool], chance: int, order: list[bytes]
) -> None:
    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=100) as server, connected(server.address) as peer:
            await filled(peer, 0)
            # Retries last.
            monkeypatch.setattr(reading, "machine", like(machine, randrange=lambda below: 99))
            for form, name in ((b"V1", f"%RETRY%{GROUP}_{TOPIC}"), (b"V2", f"%RETRY%{GROUP}+{TOPIC}")):
                server.settings.retry_topics_v2 = form == b"V2"
                await sent(peer, form, TOPIC, 0)
                assert bodies_of(await popped(peer, count_max=1, invisible_time_ms=300)) == [form]
                await until(lambda name=name: server.store.queue_range(name, 0)[1] == 1)
            monkeypatch.setattr(reading, "machine", like(machine, randrange=lambda below: chance))
            for name, value in ({"retry_topics_v2": False} | settings).items():
                setattr(server.settings, name, value)
            found = [bodies_of(await popped(peer)) for _ in range(len(order) + 1)]
            assert found == [[body] for body in order] + [[]]

    run(main())


def test_a_shorter_interval_of_deliveries_holds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive, "LOOK_S", 0.05)

    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=300_000) as server, connected(server.address) as peer:
            await filled(peer, 1)
            assert len(await popped(peer, invisible_time_ms=300)) == 1
            server.settings.revive_interval_ms = 100
            assert bodies_of(messages(await pop(peer, **HOLD))) == [b"0"]

    run(main())


def test_each_pop_tells_how_many_are_left_in_all_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 12, queue_id=None)
            left = []
            for n in range(12):
                reply = await pop(peer, count_max=1)
                left.append(reply.header(headers.PopReply).rest_count)
                if n % 2:
                    # What is committed and what is only handed out are both gone.
                    (await ack(peer, messages(reply)[0])).raise_for_code("ack")
            assert left == [*range(11, -1, -1)]

    run(main())


@pytest.mark.parametrize("beside", [False, True], ids=["one-a-turn", "beside-the-loop"])
@pytest.mark.parametrize("queue_id", [0, -1])
def test_a_filter_that_takes_many_turns_finds_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool, queue_id: int
) -> None:
    if beside:
        monkeypatch.setattr(message_filters, "COST_MAX", 0)
    else:
        monkeypatch.setattr(message_filters, "machine", like(machine, perf_counter=itertools.count().__next__))

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 9, queue_id=None if queue_id < 0 else queue_id)
            wanted = {"expression": "n > 6", "expression_type": "SQL92"}
            found: list[bytes] = []
            while len(found) < 2:
                found += bodies_of(messages(await pop(peer, TOPIC, queue_id, **wanted, **HOLD)))
            assert sorted(found) == [b"7", b"8"]
            # One that finds nothing waits on, and hears of what comes.
            held = peer.ask(RequestCode.POP_MESSAGE, pop_header(TOPIC, queue_id, **wanted, **HOLD))
            await until(lambda: server._pop_state.waiting.total == 1)
            for body in (b"6", b"9"):
                await sent(peer, body, TOPIC, 0, pairs={"n": body.decode()})
            assert bodies_of(messages(await held)) == [b"9"]

    run(main())


def test_a_group_that_is_beyond_the_queues_end_begins_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 3)
            server._offsets.commit(GROUP, TOPIC, 0, 99)
            assert await popped(peer, TOPIC, 0) == []
            await sent(peer, b"next", TOPIC, 0)
            assert bodies_of(await popped(peer, TOPIC, 0)) == [b"next"]

    run(main())


def test_peeking_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 5)
            header = headers.PeekHeader(group=GROUP, topic=TOPIC, queue_id=-1, count_max=2)
            for _ in range(2):
                reply = (await peer.request(RequestCode.PEEK_MESSAGE, header)).raise_for_code("peek")
                assert reply.header(headers.PopReply).rest_count == 5
                assert server._pop_state.in_flight.count(TOPIC, GROUP, 0) == 0
            assert len(await popped(peer)) == 5
            empty = await peer.request(RequestCode.PEEK_MESSAGE, header)
            assert (empty.code, empty.remark) == (19, "NO_MESSAGE_IN_QUEUE")

    run(main())


def test_peeking_keeps_to_count_and_bytes_over_all_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer, 4, queue_id=None)

            async def peeked(count_max: int, queue_id: int = -1) -> bytes:
                header = headers.PeekHeader(group=GROUP, topic=TOPIC, queue_id=queue_id, count_max=count_max)
                reply = (await peer.request(RequestCode.PEEK_MESSAGE, header)).raise_for_code("peek")
                assert reply.header(headers.PopReply).rest_count == (4 if queue_id < 0 else 1)
                return bytes(reply.body)

            size = len(await peeked(1))
            assert [m.body for m in record.decode_all(await peeked(32, queue_id=2))] == [b"2"]
            assert [len(await peeked(count)) // size for count in (1, 3, 4, 32)] == [1, 3, 4, 4]
            for count in (1, 2, 3):
                server.settings.pull_bytes_max = count * size
                assert len(await peeked(32)) == count * size

    run(main())


def test_a_question_with_a_filter_that_is_new_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for number in range(2):
                header = headers.NotificationHeader(
                    group=GROUP, topic=TOPIC, queue_id=0, poll_time_ms=0, born_time_ms=0,
                    expression_type="SQL92", expression=f"a = {number}",
                )  # fmt: skip
                reply = await peer.request(RequestCode.NOTIFICATION, header)
                told = reply.raise_for_code("ask").header(headers.NotificationReply)
                assert bool(told.has_message) == bool(number)
                await sent(peer)

    run(main())


def test_what_was_acknowledged_of_a_pop_is_not_in_flight_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for _ in range(3):
                await sent(peer)
            for found in (await popped(peer))[:2]:
                (await ack(peer, found)).raise_for_code("ack")
            assert server._pops.count(TOPIC, GROUP, 0) == 1
        async with broker(tmp_path) as server:
            assert server._pops.count(TOPIC, GROUP, 0) == 1

    run(main())
