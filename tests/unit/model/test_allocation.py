"""Shares of queues: nobody's queue is forgotten, and no member has much more than another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.model import MessageQueue
from rocketspark.model.allocation import ALL_QUEUES, BROKER_STRATEGIES, pop_share

pytestmark = pytest.mark.shows(
    "QUERY_ASSIGNMENT, SET_ and GET_ALL_MESSAGE_REQUEST_MODE: strategies, shares, modes, odd questions",
)

_names = st.sampled_from(sorted(BROKER_STRATEGIES))


@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 12), st.integers(-2, 14), _names)
def test_every_queue_is_popped_by_as_many_members_as_asked(
    queue_count: int, broker_count: int, member_count: int, share_count: int, name: str
) -> None:
    queues = [MessageQueue("t", f"b{b}", q) for b in range(broker_count) for q in range(queue_count)]
    members = [f"c{n:02}" for n in range(member_count)]
    shares = [pop_share(BROKER_STRATEGIES[name], member, queues, members, share_count) for member in members]
    assert all(len(set(share)) == len(share) for share in shares)
    if share_count <= 0 or share_count >= member_count - 1:
        assert all(s == [MessageQueue("t", f"b{b}", ALL_QUEUES) for b in range(broker_count)] for s in shares)
        return
    popped = {queue: sum(queue in share for share in shares) for queue in queues}
    if member_count <= len(queues):
        # The member itself and the `share_count` before it.
        assert set(popped.values()) == {share_count + 1}
    else:
        assert min(popped.values()) >= 1
        assert max(popped.values()) - min(popped.values()) <= 1
        assert all(len(share) == 1 for share in shares)


@given(st.integers(0, 20), st.integers(1, 12), _names)
def test_every_queue_is_pulled_by_one_member(queue_count: int, member_count: int, name: str) -> None:
    queues = [MessageQueue("t", "b", q) for q in range(queue_count)]
    members = [f"c{n:02}" for n in range(member_count)]
    shares = [BROKER_STRATEGIES[name](member, queues, members) for member in members]
    assert sorted(q for share in shares for q in share) == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert BROKER_STRATEGIES[name]("stranger", queues, members) == []
