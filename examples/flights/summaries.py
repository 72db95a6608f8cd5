"""The summary messages: what they hold, and the consumer group that reads them back."""

from __future__ import annotations

import threading

import msgspec

from rocketspark import PushConsumer, ReceivedMessage

SUMMARIES_TOPIC = "flight-delays"
GROUP = "flight-delays-readers"
LATE_MINUTES = 15


class Summary(msgspec.Struct, frozen=True):
    """The departures of one carrier in one month; `late`: more than LATE_MINUTES behind plan."""

    carrier: str
    month: int
    flights: int
    departed: int
    delay_minutes: int
    late: int

    @property
    def mean_delay_minutes(self) -> float:
        """Mean delay of the flights that departed."""
        return self.delay_minutes / self.departed if self.departed else 0.0


def consume(namesrv: str, run: str, count: int, *, timeout_s: float = 60) -> list[Summary]:
    """Read the summaries of this run until there are `count`, or time is up; ordered by carrier and month."""
    found: dict[tuple[str, int], Summary] = {}
    complete = threading.Event()

    def read(message: ReceivedMessage) -> None:
        # The topic may still hold the summaries of other runs.
        if message.properties.get("run") != run:
            return
        summary = msgspec.json.decode(message.body, type=Summary)
        found[summary.carrier, summary.month] = summary
        if len(found) >= count:
            complete.set()

    consumer = PushConsumer(namesrv, GROUP, consume_from="first")
    consumer.subscribe(SUMMARIES_TOPIC)
    consumer.listen(read)
    with consumer:
        complete.wait(timeout_s)
    return sorted(found.values(), key=lambda s: (s.carrier, s.month))
