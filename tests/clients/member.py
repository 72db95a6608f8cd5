"""A push consumer as a process of its own, for tests that kill it.

Rule: a line per message, written before it counts as consumed; it leaves when its input ends.

Arguments: NameServer, group, topic, backlog (messages per queue), ordered (0 or 1).
"""

from __future__ import annotations

import os
import sys

from rocketspark.client import PushConsumer
from rocketspark.model import ReceivedMessage


def note(message: ReceivedMessage) -> None:
    # One write: the lines of several threads do not mix.
    os.write(1, b"%d %d\n" % (message.queue_id, message.queue_offset))


def main() -> None:
    namesrv, group, topic, process_queue, ordered = sys.argv[1:]
    consumer = PushConsumer(
        namesrv,
        group,
        consume_from="first",
        ordered=ordered == "1",
        threads=4,
        pull_count_max=int(process_queue) // 2,
        backlog_count_max=int(process_queue),
        rebalance_interval_ms=500,
        commit_interval_ms=200,
    )
    consumer.subscribe(topic)
    consumer.listen(note)
    with consumer:
        sys.stdin.read()


if __name__ == "__main__":
    main()
