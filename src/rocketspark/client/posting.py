"""A send without a task: what it is, and who waits for its reply."""

from __future__ import annotations

import asyncio
from typing import Protocol

from rocketspark.client import requests
from rocketspark.client.autobatch import Outcome
from rocketspark.client.delivery import Tried, result_of
from rocketspark.client.outgoing import Outgoing
from rocketspark.client.results import SendResult
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.transport.messages import Reply


class Posting(Outcome, Protocol):
    """A send without a task. `gathers`: it may go with others; `given_up`: nobody waits, it is not sent again.

    `began_s`, `end_s`: monotonic; `task`: what sends it again, if anything does.
    """

    out: Outgoing
    wait_store_ok: bool
    gathers: bool
    began_s: float
    end_s: float
    attempts: int
    given_up: bool
    task: asyncio.Task[None] | None

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """It has ended."""


class Poster(Protocol):
    """Who posts: a producer."""

    def settle(self, posting: Posting, result: SendResult | None, error: BaseException | None = None) -> None:
        """It has ended."""

    def post_again(self, posting: Posting, tried: Tried) -> None:
        """Its attempt failed."""


class Posted:
    """Waits for the reply to a posting's one attempt."""

    __slots__ = ("_posting", "_producer", "queue")

    def __init__(self, producer: Poster, posting: Posting) -> None:
        self._producer = producer
        self._posting = posting
        self.queue: MessageQueue | None = None

    def done(self) -> bool:
        return False

    def set_result(self, reply: Reply, /) -> None:
        assert self.queue is not None
        try:
            result = result_of(self._posting.out, self.queue, *requests.stored(reply))
        except RocketSparkError as e:
            self.set_exception(e)
        else:
            self._producer.settle(self._posting, result)

    def set_exception(self, exception: BaseException, /) -> None:
        assert self.queue is not None
        assert isinstance(exception, RocketSparkError)
        self._producer.post_again(self._posting, Tried(self.queue, exception, self._posting.began_s))
