"""The arithmetic of logical queues, beside a model that keeps their messages in plain lists."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.protocol.json import java_json, static_topics
from rocketspark.protocol.json.static_topics import MappingDetail, MappingItem, MappingTable, logical_reply

pytestmark = pytest.mark.shows(
    "static topics: mapping file, 513, 21, 351, registration and route; what contradicts a mapping is refused",
    "sends, pulls (held ones too), bounds, times and committed offsets by logical queue, also after a queue "
    "moved: asked of the broker that holds the part",
)


def item(
    gen: int, logic_offset: int, *, bname: str = "a", queue_id: int = 0, start: int = 0, end: int = -1
) -> MappingItem:
    return MappingItem(
        gen=gen, queue_id=queue_id, bname=bname, logic_offset=logic_offset, start_offset=start, end_offset=end
    )


def test_offsets_of_a_part_with_a_known_end() -> None:
    part = item(1, 100, start=7, end=27)
    assert [part.to_logical_loosely(n) for n in (0, 7, 8, 27, 28, 900)] == [100, 100, 101, 120, 120, 120]
    assert [part.to_logical(n) for n in (0, 7, 8, 28)] == [100, 100, 101, 121]
    assert [part.to_physical(n) for n in (99, 100, 120)] == [6, 7, 27]
    assert (part.is_ended, part.logical_end) == (True, 120)
    undecided = item(2, -1)
    assert (undecided.is_decided, undecided.is_ended, undecided.to_logical_loosely(5)) == (False, False, -1)
    assert item(0, 5, start=3, end=3).is_ended is False


def test_which_part_holds_an_offset() -> None:
    items = [item(0, 10), item(1, 50), item(2, -1)]
    assert [part.gen for n in (0, 10, 49, 50, 10**12) if (part := static_topics.part_of(items, n))] == [0, 0, 0, 1, 1]
    assert static_topics.part_of([item(0, -1)], 0) is None
    assert static_topics.next_part(items, items[0]) is items[1]
    assert static_topics.next_part(items, items[1]) is None
    assert static_topics.next_part(items[:2], items[1]) is None


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], ""),
        ([item(0, 0), item(1, 5)], ""),
        ([item(0, 0, end=4), item(1, 5), item(2, -1)], ""),
        ([item(-1, 0)], "negative"),
        ([item(0, 0, queue_id=-1)], "negative"),
        ([item(0, 0, start=-1)], "negative"),
        ([item(0, -1), item(1, 5)], "non-latest item has negative logic"),
        ([item(1, 0), item(1, 5)], "gen does not increase"),
        ([item(0, 0, start=5, end=4)], "smaller than the start"),
        ([item(0, 5), item(1, 5)], "base logic offset does not increase"),
        ([item(0, 0, end=5), item(1, 5)], "max logic offset does not increase"),
    ],
)
def test_what_is_wrong_with_parts(items: list[MappingItem], said: str) -> None:
    found = static_topics.wrong_parts(items)
    assert (said in found) if said else not found


def test_which_changes_are_allowed() -> None:
    old = [item(0, 0), item(1, 50, bname="b")]
    wrong = static_topics.wrong_change
    assert wrong(old, [*old, item(2, -1, bname="c")], same_epoch=False) == ""
    assert "leader is different" in wrong(old, [*old, item(2, -1, bname="c")], same_epoch=True)
    # The first may be cleaned away; a start may be decided, once.
    assert wrong(old, old[1:], same_epoch=True) == ""
    assert wrong([*old, item(2, -1)], [*old, item(2, 90)], same_epoch=True) == ""
    assert "logic offset of gen 1 changed" in wrong(old, [old[0], item(1, 51, bname="b")], same_epoch=False)
    assert "gen 1 moved" in wrong(old, [old[0], item(1, 50, bname="c")], same_epoch=False)
    assert "null or empty" in wrong(old, [], same_epoch=False)
    assert wrong([], old, same_epoch=True) == ""


def test_a_file_of_a_java_broker_is_read() -> None:
    text = (
        b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},"topicQueueMappingInfoMap":{"T":'
        b'{"bname":"a","currIdMap":{},"dirty":false,"epoch":1700000001000,"hostedQueues":{1:[{"bname":"a","endOffset":-1,'
        b'"gen":0,"logicOffset":0,"queueId":3,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}]},"scope":"__global__",'
        b'"topic":"T","totalQueues":2}}}'
    )
    table = java_json.decode(text, MappingTable)
    detail = table.topic_queue_mapping_info_map["T"]
    assert detail == MappingDetail(
        topic="T", bname="a", total_queues=2, epoch=1_700_000_001_000, hosted_queues={1: [item(0, 0, queue_id=3)]}
    )
    assert static_topics.info_of(detail).curr_id_map == {1: 3}
    assert static_topics.info_of(msgspec.structs.replace(detail, bname="b")).curr_id_map == {}


@dataclass
class Queue:
    """One part's broker queue: offsets from `low` to before `high` are there."""

    low: int
    high: int

    def pull(self, offset: int, count: int) -> tuple[int, int, int]:
        """Return code, number of messages and next offset, as a broker answers."""
        if offset < self.low:
            return 21, 0, self.low
        if offset > self.high:
            return 21, 0, self.high
        if offset == self.high:
            return 19, 0, offset
        taken = min(count, self.high - offset)
        return 0, taken, offset + taken


@st.composite
def logical_queues(draw: st.DrawFn) -> tuple[list[MappingItem], list[Queue]]:
    items, queues, start = [], [], draw(st.integers(0, 3))
    for gen in range(draw(st.integers(1, 4))):
        high = draw(st.integers(0, 12))
        items.append(item(gen * 2, start, bname=f"b{gen}"))
        queues.append(Queue(draw(st.integers(0, high)), high))
        block = draw(st.integers(2, 9))
        start = ((start + high) // block + 2) * block
    if draw(st.booleans()):
        items.append(item(20, -1))
        queues.append(Queue(0, 3))
    return items, queues


@given(logical_queues(), st.integers(1, 5), st.integers(0, 80))
def test_a_reader_that_follows_the_replies_gets_every_message_once(
    made: tuple[list[MappingItem], list[Queue]], count: int, offset: int
) -> None:
    items, queues = made
    assert not static_topics.wrong_parts(items)
    # Without the arithmetic of the module: each message with its logical offset.
    known = [(part, queue) for part, queue in zip(items, queues, strict=True) if part.logic_offset >= 0]
    messages = [part.logic_offset + n for part, queue in known for n in range(queue.low, queue.high)]
    end = known[-1][0].logic_offset + known[-1][1].high
    found: list[int] = []
    expected = [n for n in messages if n >= offset]
    for _ in range(200):
        part = static_topics.part_of(items, offset)
        assert part is not None
        asked = part.to_physical(offset)
        queue = queues[items.index(part)]
        code, taken, next_offset = queue.pull(asked, count)
        answer = logical_reply(
            items, part, asked, code=code, next_offset=next_offset, min_offset=queue.low, max_offset=queue.high
        )
        assert answer.delta == part.logic_offset or answer.code == 20
        if code == 0:
            found += [asked + n + answer.delta for n in range(taken)]
        assert answer.code != 20 or answer.next_offset > offset
        if answer.code == 19:
            assert answer.next_offset == end
            break
        offset = answer.next_offset
    else:
        raise AssertionError("the reader turns in circles")
    assert found == expected
