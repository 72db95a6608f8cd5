"""What clients ask for: a batch of half messages, the end of a range of them.

Rule: a part that is not of the plainest form goes one by one, with the same outcome. One call holds the loop for some
milliseconds at most.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.broker.messages.half_batches.batched_halves import too_many
from rocketspark.broker.messages.put_message import AcceptedBatch, pairs_of
from rocketspark.broker.messages.send_rules import items_of
from rocketspark.broker.messages.transactions import HALF_GONE, Transactions
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.protocol.headers import EndTransactionHeader

# Ends carried out in one turn of the loop: together, some 2 us each; one by one, 20 to 100 us each.
TOGETHER_MAX = 2048
SINGLE_MAX = 64
# After so long others have their turn, whatever is left: a message may be of some MB, or take a search of the index.
SINGLE_S = 0.005
_RANGE_COST = _SINGLE_COST = 32
# Bytes that cost as much as a message.
_COST_BYTES = 1024
# Messages ended before the loop serves others, or work that costs as much.
TURN = 2048
# Half messages of a batch that go one by one in one turn: some 20 us each.
SINGLE_BATCH_MAX = 1024
# And their properties together, counted by what ends one.
SINGLE_PROPERTIES_MAX = 1 << 15


class EndedRange(NamedTuple):
    """What became of the first `done` messages of a range; `gone`: offsets of those that cannot be committed.

    `end`: the physical offset that must be on the disk before the commits are safe, None without any; `cost`: the work
    that it was, in messages that end together.
    """

    done: int
    gone: list[int]
    end: int | None
    cost: int = 0


class HalfRanges:
    """Batches and ranges of one broker's half messages."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._batched = transactions.batched

    def prepare(
        self, topic: str, queue_id: int, body: bytes, sys_flag: int, born_time_ms: int, born_host: bytes
    ) -> AcceptedBatch:
        """Store the messages of a batch as half messages, at consecutive offsets of the half queue.

        Raises ServerError as `Transactions.prepare`; those before the message that it is about may be stored then, and
        are asked for as any whose producer says nothing more. Code 3, with nothing stored, for a batch that would hold
        the loop for long.
        """
        found = self._batched.prepare(topic, queue_id, body, sys_flag, born_time_ms, born_host, now_ms())
        if found is not None:
            self._transactions.note_batch(found)
            return found.accepted
        items = items_of(body)
        if len(items) > SINGLE_BATCH_MAX or body.count(b"\2") > SINGLE_PROPERTIES_MAX:
            raise too_many(len(items), SINGLE_BATCH_MAX)
        placed = [
            self._transactions.prepare(
                *(topic, queue_id, item.body, item.properties, pairs_of(item.properties)),
                *(item.flag, sys_flag, born_time_ms, born_host),
            )
            for item in items
        ]
        return AcceptedBatch([position for position, _, _ in placed], placed[0][1], placed[-1][2])

    def end(self, topic: str, group: str, outcome: int, first: int, positions: NDArray[np.int64]) -> EndedRange:
        """Commit or roll back half messages at consecutive offsets of the half queue, from `first` on.

        It may end fewer than all: call it for the rest once others had their turn. `positions`: their physical offsets.
        What ended before stays as it is. Raises ServerError as `Transactions.end` for the first of them.
        """
        ended = self._batched.end(topic, group, outcome, first, positions[:TOGETHER_MAX])
        if ended is None:
            return self._end_single(topic, group, outcome, first, positions[:SINGLE_MAX].tolist())
        offsets = range(first, first + ended.done)
        if not ended.before:
            self._transactions.note_ended(range(ended.first, ended.first + ended.done))
        cost = ended.done + _RANGE_COST + ended.bytes // _COST_BYTES
        return EndedRange(ended.done, list(offsets) if ended.gone else [], ended.end, cost)

    def _end_single(self, topic: str, group: str, outcome: int, first: int, positions: list[int]) -> EndedRange:
        gone: list[int] = []
        end: int | None = None
        until = perf_counter() + SINGLE_S
        for done, position in enumerate(positions):
            if done and perf_counter() >= until:
                return EndedRange(done, gone, end, TURN)
            header = EndTransactionHeader(
                topic=topic, producer_group=group, half_offset=first + done, physical_offset=position, outcome=outcome
            )
            try:
                told = self._transactions.end(header, same_topic=True)
            except ServerError as e:
                if HALF_GONE in (e.remark or ""):
                    gone.append(first + done)
                    continue
                if not done:
                    raise
                return EndedRange(done, gone, end, done * _SINGLE_COST)  # The next call raises it.
            end = end if told is None else told
        return EndedRange(len(positions), gone, end, len(positions) * _SINGLE_COST)
