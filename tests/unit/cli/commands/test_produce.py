"""`produce`: how many lines are under way at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, cast

import pytest

from rocketspark.cli.commands.produce import IN_FLIGHT_MAX, OF_A_KEY_MAX, Sender
from rocketspark.client.sync import Producer
from rocketspark.model import Message

pytestmark = pytest.mark.shows("`produce --sharding-key` over a slow network")

LIMIT_S = 60


class Unanswered:
    """A producer whose sends are answered by the test."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def send_future(self, message: Message, **fields: Any) -> Future[Any]:
        self.futures.append(Future())
        return self.futures[-1]

    def wait_for(self, count: int) -> None:
        end_s = time.monotonic() + LIMIT_S
        while len(self.futures) < count and time.monotonic() < end_s:
            time.sleep(0.001)
        assert len(self.futures) >= count


@pytest.mark.parametrize(("key", "most"), [("k", OF_A_KEY_MAX), (None, IN_FLIGHT_MAX)])
def test_lines_of_a_sharding_key_wait_for_few_others(key: str | None, most: int) -> None:
    """Each of them is sent when the one before it was answered: of a thousand, the last would wait longer than a send
    may take.
    """
    producer, count = Unanswered(), most + 100
    sending = Sender(cast(Producer, producer))

    def send_all() -> None:
        for number in range(count):
            sending.send("line", Message("t", b"%d" % number, sharding_key=key))

    thread = threading.Thread(target=send_all)
    thread.start()
    for number in range(count):
        producer.wait_for(min(number + most, count))
        assert len(producer.futures) <= number + most
        producer.futures[number].set_result(None)
    thread.join(LIMIT_S)
    sending.finish()
    assert (sending.sent, sending.failed, sending.error) == (count, 0, None)
