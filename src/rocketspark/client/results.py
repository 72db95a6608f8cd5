"""The results of sends and queries. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import ResponseCode


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
