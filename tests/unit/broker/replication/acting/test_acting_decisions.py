"""What a slave decides about who has the lowest id, how it comes back, what leaves it and where to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.consumers.rebalance_locks import agreed, quorum
from rocketspark.broker.replication.acting import escape
from rocketspark.broker.replication.acting.acting_master import Course, Lowest, course, lowest
from rocketspark.broker.replication.acting.escape import (
    EscapeBridge,
    EscapeQueue,
    chosen,
    escape_queues,
    inner_group,
    outgoing,
)
from rocketspark.broker.replication.acting.way_back import Preparation, ReturnPlan, must_prepare, return_plan
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.json.bodies import BrokerDataBody, QueueDataBody, RouteBody
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.record import Record

pytestmark = pytest.mark.shows("who acts, who is waited for, what leaves and where to")

MEMBERS = st.dictionaries(st.integers(0, 4), st.sampled_from(["h:1", "h:2", "h:3", "h:4", "h:5"]))


@given(MEMBERS)
def test_the_lowest_id(members: dict[int, str]) -> None:
    found = lowest(members)
    assert found == (Lowest(min(members), members[min(members)]) if members else None)


@given(st.integers(1, 4), st.integers(0, 4), st.booleans(), st.booleans())
def test_a_slave_acts_only_as_the_lowest_without_any_sign_of_a_master(
    own: int, low: int, copying: bool, returning: bool
) -> None:
    found = course(own, low, copying=copying, returning=returning)
    assert (found is Course.FOLLOW) == (low == 0)
    assert (found is Course.STAND_BY) == (0 < low < own)
    assert (found is Course.ACT) == (low >= own and not copying and not returning)


@given(st.integers(0, 4), MEMBERS)
def test_who_is_waited_for(own: int, members: dict[int, str]) -> None:
    """A master waits for every other broker, a slave for the master alone, nobody for what it was itself."""
    found = return_plan(own, "h:1", members)
    others = {i: a for i, a in members.items() if i != own and a != "h:1"}
    if own == 0 and others:
        assert found == ReturnPlan(Preparation.TAKE_BACK, tuple(a for _, a in sorted(others.items())))
    elif own and 0 in others:
        assert found == ReturnPlan(Preparation.COPY, (others[0],))
    else:
        assert found == ReturnPlan(Preparation.NOTHING)


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"slave_acting_master": True, "replicas_total": 2}, True),
        ({"slave_acting_master": True, "replicas_total": 1}, False),
        ({"slave_acting_master": True, "replicas_total": 2, "skip_pre_online": True}, False),
        ({"replicas_total": 2}, False),
    ],
)
def test_when_a_broker_prepares(changes: dict[str, object], needed: bool) -> None:
    assert must_prepare(BrokerSettings(**changes)) is needed  # type: ignore[arg-type]


def kept(topic: str, body: bytes = b"x", **pairs: str) -> Record:
    """A record of this broker's log."""
    stored = record.encode(
        topic=topic.encode(),
        queue_id=0,
        queue_offset=3,
        position=1000,
        body=body,
        properties=properties.encode(pairs).encode(),
        flag=5,
        sys_flag=1,
        born_time_ms=1234,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_time_ms=5678,
        store_host=b"\x7f\0\0\1\0\0\0\2",
        reconsume_times=2,
    )
    return record.decode(stored)


def test_a_delayed_message_leaves_without_its_delay() -> None:
    parked = kept("SCHEDULE_TOPIC_XXXX", UNIQ_KEY="U", DELAY="3", REAL_TOPIC="T", REAL_QID="1", TAGS="A")
    found = outgoing(parked, "T", parked.properties, inner_group("a", 1))
    assert found is not None
    assert (found.topic, found.producer_group, found.body) == ("T", "InnerProducerGroup_a_1", b"x")
    assert (found.flag, found.sys_flag, found.born_time_ms, found.reconsume_times) == (5, 1, 1234, 2)
    assert properties.decode(found.properties.decode()) == {"UNIQ_KEY": "U", "TAGS": "A", "WAIT": "false"}
    header = found.header("b", 7)
    assert (header.topic, header.queue_id, header.broker_name) == ("T", 7, "b")


def test_a_timer_message_leaves_due_or_for_the_wheel_of_another_broker() -> None:
    wheel = "rmq_sys_wheel_timer"
    parked = kept(wheel, UNIQ_KEY="U", PGROUP="P", TIMER_DELAY_MS="5", TIMER_OUT_MS="900", REAL_TOPIC="T", REAL_QID="1")
    due = outgoing(parked, "T", parked.properties, "own")
    assert due is not None
    assert due.producer_group == "P"
    assert properties.decode(due.properties.decode()) == {
        "UNIQ_KEY": "U", "PGROUP": "P", "TIMER_OUT_MS": "900", "WAIT": "false",
    }  # fmt: skip
    rolled = outgoing(parked, wheel, parked.properties, "own")
    assert rolled is not None
    assert rolled.topic == "T"
    assert properties.decode(rolled.properties.decode()) == {
        "UNIQ_KEY": "U", "PGROUP": "P", "TIMER_DELIVER_MS": "900", "WAIT": "false",
    }  # fmt: skip
    recall = kept(wheel, TIMER_DEL_UNIQKEY="T+U", TIMER_OUT_MS="900", REAL_TOPIC="T", REAL_QID="1")
    assert outgoing(recall, wheel, recall.properties, "own") is None


def test_a_half_message_leaves_as_its_producer_sent_it() -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    stored = kept(half, UNIQ_KEY="U", PGROUP="P", TRAN_MSG="true", DELAY="2", REAL_TOPIC="T", REAL_QID="1")
    found = outgoing(stored, half, stored.properties, "own")
    assert found is not None
    assert (found.topic, found.producer_group, found.sys_flag) == ("T", "P", 1 | 4)
    # Its commit is delayed, as it was asked for.
    assert properties.decode(found.properties.decode()) == {
        "UNIQ_KEY": "U", "PGROUP": "P", "TRAN_MSG": "true", "DELAY": "2", "WAIT": "false",
    }  # fmt: skip
    nameless = kept(half, UNIQ_KEY="U", PGROUP="P")
    with pytest.raises(ServerError, match="names no topic"):
        outgoing(nameless, half, nameless.properties, "own")


def route(*rows: tuple[str, dict[int, str], int, int]) -> RouteBody:
    return RouteBody(
        broker_datas=[BrokerDataBody(broker_name=name, broker_addrs=addresses) for name, addresses, _, _ in rows],
        queue_datas=[QueueDataBody(name, 1, queues, perm) for name, _, queues, perm in rows],
    )


def test_messages_leave_to_writable_queues_of_other_masters() -> None:
    found = escape_queues(
        route(
            ("own", {0: "h:1"}, 2, 6),
            ("slave", {1: "h:2"}, 2, 6),
            ("acting", {0: "h:3"}, 2, 4),
            ("z", {0: "h:4", 1: "h:5"}, 1, 6),
            ("b", {0: "h:6"}, 2, 6),
        ),
        "own",
    )
    assert found == [EscapeQueue("b", "h:6", 0), EscapeQueue("b", "h:6", 1), EscapeQueue("z", "h:4", 0)]
    assert [chosen(found, turn) for turn in range(4)] == [*found, found[0]]
    assert chosen([], 3) is None


def test_a_bridge_is_drained_once_all_that_it_sent_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escape, "DRAIN_STEP_S", 9.0)

    async def main() -> None:
        nothing: Any = None
        bridge = EscapeBridge(nothing, nothing, nothing)
        answered = asyncio.Event()
        bridge._sends[nothing] = asyncio.ensure_future(answered.wait())
        draining = asyncio.ensure_future(bridge.drain())
        for _ in range(5):
            await asyncio.sleep(0)
        assert (draining.done(), bridge.is_open) == (False, False)
        answered.set()
        await draining

    asyncio.run(main())


@pytest.mark.shows("locks with `lockInStrictMode`")
@given(st.integers(1, 9), st.lists(st.sets(st.integers(0, 3)), max_size=5), st.sets(st.integers(0, 3)))
def test_locks_need_most_replicas(replicas: int, others: list[set[int]], own: set[int]) -> None:
    def queues(ids: set[int]) -> list[MessageQueue]:
        return [MessageQueue("T", "a", i) for i in sorted(ids)]

    found = agreed(queues(own), [queues(ids) for ids in others], quorum(replicas))
    assert found == [q for q in queues(own) if 1 + sum(q.queue_id in ids for ids in others) > replicas / 2]
