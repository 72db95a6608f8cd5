"""Pops by hand, on ours and on the official broker: what is given out and what lies in the retry topic, no consumer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.java.apache import Answer, ask
from tests.java.one_store import stored_records

from rocketspark.protocol.message import properties, record
from rocketspark.protocol.pop_answers import ReceiptHandle, parse_start_offsets

TOPIC, GROUP = "flights", "crews"
RETRY = "%RETRY%crews_flights"
INVISIBLE_MS = 2000
# Of the broker: the retry topic is read last.
CONFIG: dict[str, Any] = {"popFromRetryProbability": 0}


class HasBroker(Protocol):
    broker: str


def good(answer: Answer) -> Answer:
    assert answer.code == 0, answer
    return answer


def prepare(server: HasBroker) -> None:
    topic = {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
    more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    good(ask(server.broker, 17, ext_fields=topic | more))
    good(ask(server.broker, 200, json.dumps({"groupName": GROUP, "consumeEnable": True}).encode()))


def send(server: HasBroker, *bodies: str) -> None:
    for body in bodies:
        ext = {
            "producerGroup": "P",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(int(time.time() * 1000)),
            "flag": "0",
            "properties": f"UNIQ_KEY\x01{body}\x02WAIT\x01true\x02",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        good(ask(server.broker, 10, body.encode(), ext))


def pop(server: HasBroker, count: int, invisible_ms: int = INVISIBLE_MS) -> list[tuple[str, ReceiptHandle]]:
    """(body, handle) of each message of the topic's own queue; what comes again is acknowledged."""
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "maxMsgNums": str(count),
        "invisibleTime": str(invisible_ms),
        "pollTime": "0",
        "bornTime": str(int(time.time() * 1000)),
        "initMode": "0",
        "order": "false",
    }
    answer = ask(server.broker, 200050, ext_fields=ext)
    if answer.code == 210:
        return []
    told = good(answer).ext_fields
    starts = parse_start_offsets(told["startOffsetInfo"])
    found = []
    for r in record.decode_all(answer.body):
        own = properties.find(r.properties, b"POP_CK")
        if own is not None:
            again = ReceiptHandle.decode(own.decode())
            good(ask(server.broker, 200051, ext_fields=of(again) | {"topic": RETRY}))
            continue
        handle = ReceiptHandle(
            start_offset=starts["0", 0],
            pop_time_ms=int(told["popTime"]),
            invisible_time_ms=int(told["invisibleTime"]),
            revive_queue_id=int(told["reviveQid"]),
            retry_flag="0",
            broker_name="broker-a",
            queue_id=0,
            queue_offset=r.queue_offset,
        )
        found.append((r.body.decode(), handle))
    return found


def of(handle: ReceiptHandle) -> dict[str, str]:
    named = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "extraInfo": handle.encode()}
    return named | {"offset": str(handle.queue_offset)}


def ack(server: HasBroker, *handles: ReceiptHandle) -> None:
    for handle in handles:
        good(ask(server.broker, 200051, ext_fields=of(handle)))


def change(server: HasBroker, handle: ReceiptHandle, invisible_ms: int) -> ReceiptHandle:
    told = good(ask(server.broker, 200053, ext_fields=of(handle) | {"invisibleTime": str(invisible_ms)})).ext_fields
    return ReceiptHandle(
        start_offset=handle.queue_offset,
        pop_time_ms=int(told["popTime"]),
        invisible_time_ms=int(told["invisibleTime"]),
        revive_queue_id=int(told["reviveQid"]),
        retry_flag="0",
        broker_name="broker-a",
        queue_id=0,
        queue_offset=handle.queue_offset,
    )


def retries(server: HasBroker) -> list[record.Record]:
    """What lies in the retry topic."""
    return stored_records(server.broker, RETRY, 0, "TOOLS_CONSUMER")


class TooSlowError(AssertionError):
    """A message came back before it was acknowledged: nothing that follows says anything."""


@contextmanager
def while_away() -> Iterator[None]:
    """What is popped in here is acknowledged in here, while it is away."""
    begun = time.monotonic()
    yield
    if time.monotonic() - begun > INVISIBLE_MS / 1000 - 0.1:
        raise TooSlowError(f"not within {INVISIBLE_MS} ms")


def fly(server: HasBroker, mark: str) -> list[str]:
    """Pop ten messages in four ways and acknowledge some; returns those that are to come again.

    Raises:
        TooSlowError: the machine took longer than messages are away.
    """
    send(server, *(f"{mark}{number}" for number in range(10)))
    with while_away():
        first = pop(server, 4)
        ack(server, first[0][1], first[2][1])
    with while_away():
        second = pop(server, 3)
        ack(server, *(handle for _, handle in second))
    assert [body for body, _ in first + second] == [f"{mark}{number}" for number in range(7)]
    with while_away():
        third = pop(server, 2)
        ack(server, change(server, third[0][1], INVISIBLE_MS))
    with while_away():
        # Its time is the longest: what comes back too early does so before.
        ((last, handle),) = pop(server, 1)
        change(server, handle, 2 * INVISIBLE_MS)
    return [f"{mark}1", f"{mark}3", f"{mark}8", last]


def are_back(server: HasBroker, bodies: list[str]) -> bool:
    """Whether all have come; they wait in several queues, each of which is looked through by itself."""
    return {r.body.decode() for r in retries(server)} >= set(bodies)
