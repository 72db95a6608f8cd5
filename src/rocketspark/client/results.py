"""The results of sends and queries. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message.message_ids import joined_ids

T = TypeVar("T")


class SendStatus(StrEnum):
    """The status of a stored message: how safe it is. All of them mean that it is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class QueryResult(list[ReceivedMessage]):
    """The messages that a query found.

    `index_time_ms`, `index_position`: how far the broker with the newest index had come. A message that was stored
    later may be missing (rule: QueryResult, 5.x).
    """

    def __init__(
        self, messages: Iterable[ReceivedMessage] = (), *, index_time_ms: int = 0, index_position: int = 0
    ) -> None:
        super().__init__(messages)
        self.index_time_ms = index_time_ms
        self.index_position = index_position


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: where the message is stored.

    `message_id` is the producer's unique id, `offset_message_id` the broker's (both comma separated for a batch);
    `queue_offset` is that of the first message of a batch; `recall_handle` takes back a timer message.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


def offset_ids(result: SendResult, count: int) -> list[str]:
    """Return the broker's id of each of the `count` messages of a batch."""
    # A batch queue's broker gives one for all.
    ids = result.offset_message_id.split(",")
    return ids if len(ids) == count else [result.offset_message_id] * count


class RowsOutcome(NamedTuple):
    """What became of the rows [at, end) of a `send_many`, which were sent together: a result, or an error."""

    at: int
    end: int
    result: SendResult | None
    error: BaseException | None


class SendManyResult:
    """The results of a `send_many` as columns: element i is of row i. A column is made when it is asked for.

    Columns of numbers are numpy arrays, the others lists; a row that was not stored, as far as is known, has an error,
    and -1 or None in the other columns.
    """

    def __init__(
        self,
        count: int,
        outcomes: Sequence[RowsOutcome],
        ids: tuple[str, int] = ("", 0),
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """`ids`: what the unique ids begin with, and the number of the first; `order`: the numbers of the rows as they
        were sent.
        """
        self._count = count
        self.outcomes = outcomes
        self._prefix, self._first = ids
        self._order = order

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<SendManyResult of {self._count} rows, {int(self.failed.sum())} failed>"

    def _rows(self, outcome: RowsOutcome) -> slice | NDArray[np.int64]:
        """Return the numbers of an outcome's rows."""
        rows = slice(outcome.at, outcome.end)
        return rows if self._order is None else self._order[rows]

    def _in_order(self, column: list[T]) -> list[T]:
        """Return a column that is in the order in which rows were sent, in their own."""
        if self._order is None:
            return column
        found = column.copy()
        for row, value in zip(self._order.tolist(), column, strict=True):
            found[row] = value
        return found

    def _column(self, of: Callable[[RowsOutcome], T]) -> list[T]:
        found: list[T] = []
        for outcome in self.outcomes:
            found += [of(outcome)] * (outcome.end - outcome.at)
        return self._in_order(found)

    @cached_property
    def failed(self) -> NDArray[np.bool_]:
        """Whether each row has an error. What it masks can be sent again: rows of one sharding key keep their order."""
        found = np.zeros(self._count, bool)
        for outcome in self.outcomes:
            found[self._rows(outcome)] = outcome.error is not None
        return found

    @cached_property
    def errors(self) -> list[BaseException | None]:
        """The error of each row, None for one that is stored. Rows that were sent together share one."""
        return self._column(lambda outcome: outcome.error)

    @cached_property
    def statuses(self) -> list[SendStatus | None]:
        """The status of each row."""
        return self._column(lambda outcome: outcome.result.status if outcome.result else None)

    @cached_property
    def queues(self) -> list[MessageQueue | None]:
        """The queue of each row."""
        return self._column(lambda outcome: outcome.result.queue if outcome.result else None)

    @cached_property
    def queue_offsets(self) -> NDArray[np.int64]:
        """The offset of each row in its queue."""
        found = np.full(self._count, -1, np.int64)
        for outcome in self.outcomes:
            if outcome.result is not None:
                first = outcome.result.queue_offset
                found[self._rows(outcome)] = np.arange(first, first + outcome.end - outcome.at)
        return found

    @cached_property
    def message_ids(self) -> list[str]:
        """The producer's unique id of each row, also of one that failed."""
        ids = joined_ids(self._prefix, self._first, self._count)
        return self._in_order(ids.split(",") if ids else [])

    @cached_property
    def offset_message_ids(self) -> list[str | None]:
        """The broker's id of each row."""
        found: list[str | None] = []
        for at, end, result, _ in self.outcomes:
            found += offset_ids(result, end - at) if result else [None] * (end - at)
        return self._in_order(found)

    @cached_property
    def recall_handles(self) -> list[str | None]:
        """What `recall` takes, of each row with a delay."""
        return self._column(lambda outcome: outcome.result.recall_handle if outcome.result else None)

    def raise_for_errors(self) -> None:
        """Raise the error of the first row that failed, with a note that says how many did; return if none did."""
        for row, error in enumerate(self.errors):
            if error is not None:
                if not hasattr(error, "__notes__"):
                    error.add_note(f"row {row} of {self._count}; {int(self.failed.sum())} rows failed")
                raise error
