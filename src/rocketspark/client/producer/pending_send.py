"""Pending sends: sends without a task of their own, and the waiting for their reply."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from rocketspark.client.connection import client_api
from rocketspark.client.producer.accumulator import ResultTaker
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.send_attempts import FailedAttempt, result_of
from rocketspark.client.results import SendResult
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.transport.request_frames import Reply


class PendingSend(ResultTaker, Protocol):
    """A send without a task. `gathers`: it may go with others; `given_up`: no caller waits, it is not sent again.

    `sharding_key`, `queue`: what says where to, if anything does; `codes`: after which responses it is sent again, if
    not those of the producer.

    `began_s`, `end_s`: monotonic; `task`: what sends it again, if anything does.
    """

    out: PreparedMessage
    sharding_key: str | None
    queue: MessageQueue | None
    wait_store_ok: bool
    gathers: bool
    began_s: float
    end_s: float
    attempts: int
    codes: Collection[int] | None
    given_up: bool
    task: asyncio.Task[None] | None

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send with its outcome."""


class PendingSendOwner(Protocol):
    """The producer side of a pending send."""

    def settle(self, pending_send: PendingSend, result: SendResult | None, error: BaseException | None = None) -> None:
        """End a pending send with its outcome."""

    def post_again(self, pending_send: PendingSend, tried: FailedAttempt) -> None:
        """Send a pending send again, as its attempt failed."""


class PendingSendReply:
    """Waits for the reply to a pending send's one attempt."""

    __slots__ = ("_pending_send", "_producer", "queue")

    def __init__(self, producer: PendingSendOwner, pending_send: PendingSend) -> None:
        self._producer = producer
        self._pending_send = pending_send
        self.queue: MessageQueue | None = None

    def done(self) -> bool:
        return False

    def set_result(self, reply: Reply, /) -> None:
        assert self.queue is not None
        try:
            result = result_of(self._pending_send.out, self.queue, *client_api.stored(reply))
        except RocketSparkError as e:
            self.set_exception(e)
        else:
            self._producer.settle(self._pending_send, result)

    def set_exception(self, exception: BaseException, /) -> None:
        assert self.queue is not None
        assert isinstance(exception, RocketSparkError)
        self._producer.post_again(self._pending_send, FailedAttempt(self.queue, exception, self._pending_send.began_s))
