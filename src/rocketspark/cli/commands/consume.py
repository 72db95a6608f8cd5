"""`consume`: prints the messages of a topic as they come. Rule: one message is one line on stdout, and exactly the
printed messages are committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.streams import write
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.client.consumer.offsets import ConsumeFrom
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer
    from rocketspark.model import ReceivedMessage

# A reader without a group commits nothing; brokers still need a name.
NO_GROUP = "rocketspark_tail"
# How often such a reader looks for queues that the topic got meanwhile.
FOLLOW_MS = 3000


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.", show_default=False)],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="first, last, or a time such as 2026-01-31T12:00 (local, or with +00:00)."
            " With --group: where queues begin that the group never read.",
        ),
    ] = "last",
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Stop after so many messages.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit what was printed.")
    ] = None,
    tags: Annotated[str, typer.Option(help="Only these tags: 'TagA || TagB'.")] = "*",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C.

    With --json each message is one line of JSON; a body that is no UTF-8 text stands there as body_base64.

    Example: `rocketspark consume numbers --from first --json`
    """
    from rocketspark.cli.serving.serve import loop_factory

    where = _where(start)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Blocked it is ignored as well, and the runner has its handler, which SIGTERM calls: what is printed is noted.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if group is None:
            runner.run(_tail(topic, where, count, tags, at, json))
        else:
            runner.run(_join(topic, where, count, group, tags, at, json))


async def _tail(topic: str, where: ConsumeFrom, count: int | None, tags: str, at: ClusterAccess, as_json: bool) -> None:
    """Read every queue from where the user wants it, in no group."""
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer

    options: dict[str, Any] = at.client_options() | {"auto_commit": False, "route_interval_ms": FOLLOW_MS}
    # Queues that come later are read from what was stored since this began.
    begin = int(time.time() * 1000) if where == "last" else where
    async with AsyncPullConsumer(at.namesrv, NO_GROUP, consume_from=begin, **options) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues, tags)
        for queue in queues:
            if where == "first":
                await consumer.seek_to_beginning(queue)
            elif where == "last":
                await consumer.seek_to_end(queue)
            else:
                await consumer.seek_to_time(queue, where)
        following = asyncio.ensure_future(_follow(consumer, topic, tags))
        try:
            await _print(consumer, count, as_json)
        finally:
            following.cancel()


async def _follow(consumer: AsyncPullConsumer, topic: str, tags: str) -> None:
    """Read queues too that the topic gets while it is read: more of them, or those of a broker that comes back."""
    from rocketspark.errors import RocketSparkError

    while True:
        await asyncio.sleep(FOLLOW_MS / 1000)
        with contextlib.suppress(RocketSparkError):  # It is looked again.
            found, read = await consumer.queues(topic), set(consumer.assignment())
            if not read.issuperset(found):
                await consumer.assign(sorted(read.union(found)), tags)


async def _join(
    topic: str, where: ConsumeFrom, count: int | None, group: str, tags: str, at: ClusterAccess, as_json: bool
) -> None:
    """Read the share of a member of a group, and commit."""
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer

    async with AsyncPullConsumer(at.namesrv, group, consume_from=where, **at.client_options()) as consumer:
        await consumer.queues(topic)  # Says so if there is no such topic.
        consumer.subscribe(topic, tags)
        await _print(consumer, count, as_json)


async def _print(consumer: Any, count: int | None, as_json: bool) -> None:
    line_of = _as_json if as_json else _as_text
    left = count
    while left is None or left > 0:
        messages = await consumer.poll(count_max=1000 if left is None else min(left, 1000))
        if messages:
            # Any error of this ends the consumer, without a commit of messages that were not written.
            write("".join(line_of(message) + "\n" for message in messages))
        if left is not None:
            left -= len(messages)


def _where(text: str) -> ConsumeFrom:
    """Parse first, last, or a time in ms."""
    if text == "first" or text == "last":
        return text  # type: ignore[return-value]
    try:
        return max(int(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{shown(text, characters_max=60)!r}: first, last or a time such as 2026-01-31T12:00 is needed",
            param_hint="--from",
        ) from None


def _as_text(message: ReceivedMessage) -> str:
    place = f"{shown(message.broker_name)}/{message.queue_id}/{message.queue_offset}"
    marks = " ".join(f"[{shown(mark)}]" for mark in (message.tag, *message.keys) if mark)
    body = message.body.decode("utf-8", "backslashreplace")
    # Whole, but for what would move the cursor; tabs part columns.
    text = "\t".join(shown(part, characters_max=len(part)) for part in body.split("\t"))
    return " ".join(part for part in (_clock(message.store_time_ms), place, marks, text) if part)


def _clock(ms: int) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(ms / 1000))
    except (ValueError, OverflowError, OSError):
        return "--:--:--"  # No time that a calendar has.


def _as_json(message: ReceivedMessage) -> str:
    import msgspec

    fields: dict[str, Any] = {
        name: getattr(message, name)
        for name in (
            *("topic", "broker_name", "queue_id", "queue_offset", "message_id", "offset_message_id", "tag", "keys"),
            *("properties", "born_time_ms", "born_host", "store_time_ms", "store_host", "reconsume_times", "flag"),
        )
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        # msgspec writes bytes as base64.
        fields["body_base64"] = message.body
    return shown_json(msgspec.json.encode(fields))
