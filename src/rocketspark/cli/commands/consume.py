"""`consume`: tails a topic. Rule: one message is one line on stdout, and what was printed is what is committed."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.options import NAMESRV_DEFAULT, Json, Namesrv

if TYPE_CHECKING:
    from rocketspark.client.membership import ConsumeFrom
    from rocketspark.model import ReceivedMessage

# A reader without a group commits nothing; brokers need a name all the same.
NO_GROUP = "rocketspark_tail"


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
    namesrv: Namesrv = NAMESRV_DEFAULT,
    json: Json = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C.

    With --json each message is one line of JSON; a body that is no UTF-8 text stands there as body_base64.

    Example: `rocketspark consume numbers --from first --json`
    """
    from rocketspark.cli.serve import loop_factory

    where = _where(start)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if group is None:
            runner.run(_tail(topic, where, count, tags, namesrv, json))
        else:
            runner.run(_join(topic, where, count, group, tags, namesrv, json))


async def _tail(topic: str, where: ConsumeFrom, count: int | None, tags: str, namesrv: str, as_json: bool) -> None:
    """Read every queue from where the user wants it, in no group."""
    from rocketspark.client.pull_consumer import AsyncPullConsumer

    async with AsyncPullConsumer(namesrv, NO_GROUP, auto_commit=False) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues, tags)
        for queue in queues:
            if where == "first":
                await consumer.seek_to_begin(queue)
            elif where == "last":
                await consumer.seek_to_end(queue)
            else:
                await consumer.seek_to_time(queue, where)
        await _print(consumer, count, as_json)


async def _join(
    topic: str, where: ConsumeFrom, count: int | None, group: str, tags: str, namesrv: str, as_json: bool
) -> None:
    """Read the share of a member of a group, and commit."""
    from rocketspark.client.pull_consumer import AsyncPullConsumer

    async with AsyncPullConsumer(namesrv, group, consume_from=where) as consumer:
        await consumer.queues(topic)  # Says so if there is no such topic.
        consumer.subscribe(topic, tags)
        await _print(consumer, count, as_json)


async def _print(consumer: Any, count: int | None, as_json: bool) -> None:
    line_of = _as_json if as_json else _as_text
    left = count
    while left is None or left > 0:
        messages = await consumer.poll(count_max=1000 if left is None else min(left, 1000))
        if messages and not _write("".join(line_of(message) + "\n" for message in messages)):
            return
        if left is not None:
            left -= len(messages)


def _write(text: str) -> bool:
    """Print at once; returns False if the reader, such as `head`, has gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python's own flush at exit must not complain about it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _where(text: str) -> ConsumeFrom:
    """first, last, or a time in ms."""
    if text == "first" or text == "last":
        return text  # type: ignore[return-value]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: first, last or a time such as 2026-01-31T12:00 is needed", param_hint="--from"
        ) from None


def _as_text(message: ReceivedMessage) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(message.store_time_ms / 1000))
    place = f"{message.broker_name}/{message.queue_id}/{message.queue_offset}"
    marks = " ".join(f"[{mark}]" for mark in (message.tag, *message.keys) if mark)
    body = message.body.decode("utf-8", "backslashreplace").replace("\r", "\\r").replace("\n", "\\n")
    return " ".join(part for part in (clock, place, marks, body) if part)


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
    return msgspec.json.encode(fields).decode()
