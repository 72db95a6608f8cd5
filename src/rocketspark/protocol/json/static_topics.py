"""Static topics: logical queues whose parts lie in queues of several brokers. Layout and arithmetic, no state.

Rules: LogicQueueMappingItem, TopicQueueMappingUtils and PullMessageProcessor, 5.5.0. A logical queue's parts are in the
order of their offsets; the last one takes the messages, its broker leads the queue. The start of a new last part is not
decided (-1) until the former leader takes no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import Body, DataVersion, QueueMapping, TopicConfig

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
GLOBAL_SCOPE = "__global__"


class MappingItem(Body):
    """One part of a logical queue: a queue of one broker.

    `logic_offset`: the part's first offset in the logical queue, -1 while that is not decided; `start_offset`,
    `end_offset`: those of the broker's queue, the end excluded and -1 while open.
    """

    gen: _Int = 0
    queue_id: _Int = 0
    bname: str = ""
    logic_offset: _Long = 0
    start_offset: _Long = 0
    end_offset: _Long = -1
    time_of_start: _Long = -1
    time_of_end: _Long = -1

    @property
    def is_decided(self) -> bool:
        """Tell whether it is known where the part begins in the logical queue."""
        return self.logic_offset >= 0

    @property
    def is_ended(self) -> bool:
        """Tell whether the part's end is known and lies after its start."""
        return self.end_offset > self.start_offset

    def to_logical(self, offset: int) -> int:
        """Return the offset in the logical queue for `offset` in the broker's queue; at least that of the part's
        start.
        """
        return self.logic_offset + max(offset - self.start_offset, 0)

    def to_logical_loosely(self, offset: int) -> int:
        """Return the offset in the logical queue for `offset` in the broker's queue, at most that of the part's end.

        -1 while it is not decided where the part begins.
        """
        if not self.is_decided:
            return -1
        if self.start_offset <= self.end_offset < offset:
            offset = self.end_offset
        return self.to_logical(offset)

    def to_physical(self, logical: int) -> int:
        """Return the offset in the broker's queue for one in the logical queue; it may be below 0 for one before the
        part.
        """
        return logical - self.logic_offset + self.start_offset

    @property
    def logical_end(self) -> int:
        """Return the logical offset at which the part ends; if its end is not known, that of its start."""
        return self.logic_offset + max(self.end_offset - self.start_offset, 0)


class MappingDetail(QueueMapping):
    """A static topic on one broker: the parts of each logical queue that it leads or led, by the queue's id."""

    hosted_queues: dict[_Int, list[MappingItem]] = {}


class MappingTable(Body):
    """topicQueueMapping.json: the static topics of one broker."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, MappingDetail] = {}


class TopicConfigAndMapping(TopicConfig):
    """Reply to GET_TOPIC_CONFIG (351): settings, and a static topic's mapping."""

    mapping_detail: MappingDetail | None = None


def info_of(detail: MappingDetail) -> QueueMapping:
    """Return what a broker tells NameServers of a static topic: the logical queues that it leads."""
    return QueueMapping(
        topic=detail.topic,
        scope=GLOBAL_SCOPE,
        total_queues=detail.total_queues,
        bname=detail.bname,
        epoch=detail.epoch,
        curr_id_map={
            queue_id: items[-1].queue_id
            for queue_id, items in detail.hosted_queues.items()
            if items and items[-1].bname == detail.bname
        },
    )


# -- parts of a queue -------------------------------------------------------------------------------------------------


def decided(items: Iterable[MappingItem]) -> list[MappingItem]:
    """Return the parts whose start is known."""
    return [item for item in items if item.is_decided]


def part_of(items: Sequence[MappingItem], logical: int) -> MappingItem | None:
    """Return the part that holds a logical offset, the first one for an offset before all; None without parts."""
    known = decided(items)
    for item in reversed(known):
        if logical >= item.logic_offset:
            return item
    return known[0] if known else None


def next_part(items: Sequence[MappingItem], current: MappingItem) -> MappingItem | None:
    """Return the part after `current`; None if there is none, or its start is not decided."""
    for at, item in enumerate(items[:-1]):
        if item.is_decided and item.gen == current.gen:
            following = items[at + 1]
            return following if following.is_decided else None
    return None


# -- checks -----------------------------------------------------------------------------------------------------------


def wrong_parts(items: Sequence[MappingItem]) -> str:
    """Return what is wrong with a logical queue's parts, "" if nothing is."""
    later: MappingItem | None = None
    last_offset = -1
    for item in reversed(items):
        if item.start_offset < 0 or item.gen < 0 or item.queue_id < 0:
            return "The field is illegal, should not be negative"
        if later is not None and item.logic_offset < 0:
            return "The non-latest item has negative logic offset"
        if later is not None and item.gen >= later.gen:
            return "The gen does not increase monotonically"
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            return "The endOffset is smaller than the start offset"
        if last_offset != -1 and item.logic_offset != -1:
            if item.logic_offset >= last_offset:
                return "The base logic offset does not increase monotonically"
            if item.logical_end >= last_offset:
                return "The max logic offset does not increase monotonically"
        later, last_offset = item, item.logic_offset
    return ""


def wrong_change(old: Sequence[MappingItem], new: Sequence[MappingItem], *, same_epoch: bool) -> str:
    """Return why the parts of a logical queue may not be replaced by others, as a text; "" if they may.

    Parts may be added and removed, but one that stays keeps its place. Within an epoch the leader stays the same.
    """
    if not old:
        return ""
    if not new:
        return "The new item list is null or empty"
    before = {item.gen: item for item in old}
    for item in new:
        known = before.get(item.gen)
        if known is None:
            continue
        if (known.bname, known.queue_id, known.start_offset) != (item.bname, item.queue_id, item.start_offset):
            return f"The item of gen {item.gen} moved: {known.bname}-{known.queue_id} to {item.bname}-{item.queue_id}"
        if known.logic_offset not in (-1, item.logic_offset):
            return f"The logic offset of gen {item.gen} changed: {known.logic_offset} to {item.logic_offset}"
    if same_epoch:
        first, second = old[-1], new[-1]
        if (first.gen, first.bname, first.queue_id, first.start_offset) != (
            second.gen,
            second.bname,
            second.queue_id,
            second.start_offset,
        ):
            return "The new leader is different but epoch equal"
    return ""


def wrong_update(old: MappingDetail, new: MappingDetail) -> str:
    """Return why a broker may not take a new mapping for the one it has, "" if it may."""
    if new.epoch < old.epoch:
        return f"Can't accept data with small epoch {new.epoch} < {old.epoch}"
    if new.scope != old.scope:
        return f"Can't accept data with unmatched scope {new.scope} != {old.scope}"
    same_epoch = new.epoch == old.epoch
    for queue_id, items in old.hosted_queues.items():
        given = new.hosted_queues.get(queue_id)
        if given is None:
            if same_epoch:
                return "Cannot accept equal epoch with null data"
        elif mistake := wrong_change(items, given, same_epoch=same_epoch):
            return mistake
    return ""


# -- pulls ------------------------------------------------------------------------------------------------------------


class PulledPart(NamedTuple):
    """The reply to a pull in logical offsets; `delta`: what has to be added to the offsets in the records."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    delta: int


def logical_reply(
    items: Sequence[MappingItem],
    current: MappingItem,
    asked: int,
    *,
    code: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
) -> PulledPart:
    """Translate a broker's reply to a pull of the part `current` into logical offsets. `asked`: the offset in the
    broker's queue that was pulled.

    At the end of a part that is not the last, the reader is sent on to the next part (PULL_RETRY_IMMEDIATELY). If
    messages were removed, it is sent to the part's first message; only in the first part the code is PULL_OFFSET_MOVED.
    """
    first = part_of(items, 0) or current
    answer, part = code, current
    if code != ResponseCode.SUCCESS:
        is_first, is_leader = first.gen == current.gen, items[-1].gen == current.gen
        if asked < min_offset:
            next_offset = min_offset
            answer = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
        elif asked >= max_offset and (is_first or not is_leader):
            following = next_part(items, current)
            if following is not None:
                part, answer = following, ResponseCode.PULL_RETRY_IMMEDIATELY
                next_offset = min_offset = max_offset = following.start_offset
            else:
                if is_leader and asked > max_offset and code == ResponseCode.PULL_OFFSET_MOVED:
                    next_offset = max_offset
                answer = ResponseCode.PULL_NOT_FOUND
        elif asked > max_offset and code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = max_offset
    if part.is_ended:
        next_offset = min(next_offset, part.end_offset)
    return PulledPart(
        int(answer),
        part.to_logical(next_offset),
        part.to_logical(max(part.start_offset, min_offset)),
        max(part.to_logical(max_offset), items[-1].logical_end),
        part.logic_offset - part.start_offset,
    )
