"""`consume`: prints the messages of topics as they come. Rule: exactly the printed messages are committed; without a
format, one message is one line on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.message_forms import Format, as_json, as_text
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.streams import write, write_bytes
from rocketspark.cli.texts import AGO_S
from rocketspark.model.text import shown, whole_number

if TYPE_CHECKING:
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer
    from rocketspark.model import MessageQueue, ReceivedMessage

# A reader without a group commits nothing; brokers still need a name.
NO_GROUP = "rocketspark_tail"
# How often such a reader looks for queues that the topic got meanwhile.
FOLLOW_MS = 3000
# A poll waits so long: where nothing ends by itself, and where the end may be reached by messages that are left out.
POLL_MS, POLL_TO_END_MS = 1000, 50
# A member that has no queue of a topic for so long gets none: members share them anew every 20 s.
WITHOUT_QUEUES_S = 30.0
# Bytes of messages in the form to print that are kept before they are written.
WRITE_BYTES = 1 << 20


class Where(NamedTuple):
    """A place in each queue: `offset`, from the end if negative; or the first message stored at `time_ms` or later; or
    neither, the end.
    """

    offset: int | None = None
    time_ms: int | None = None

    async def of(self, consumer: AsyncPullConsumer, queue: MessageQueue) -> int:
        """Return the offset in a queue."""
        if self.time_ms is not None:
            return await consumer.offsets_for_time(queue, self.time_ms)
        end = await consumer.end_offset(queue)
        if self.offset is None:
            return end
        begin = await consumer.begin_offset(queue)
        return max(begin, end + self.offset if self.offset < 0 else min(self.offset, end))


FIRST, LAST = Where(offset=0), Where()


class Range(NamedTuple):
    """The options that say which messages are read."""

    start: Annotated[
        str,
        typer.Option(
            "-o",
            "--from",
            help="first (beginning), last (end), an offset, -N for each queue's last N, a time such as"
            " 2026-01-31T12:00 (local, or with +00:00), @ms since 1970, or 15m, 24h ago."
            " With --group: where queues begin that the group never read.",
        ),
    ] = "last"
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help="End before this, named as by --from: an offset, a time that may be to come, end as --exit."
        ),
    ] = None
    exit: Annotated[bool, typer.Option("-e", "--exit", help="End with what is there at the start.")] = False
    queue: Annotated[
        list[str] | None,
        typer.Option("-p", "--queue", help="Only this queue: its number, or broker/number; may be repeated."),
    ] = None
    tags: Annotated[str, typer.Option(help="Only these tags: 'TagA || TagB'.")] = "*"
    count_max: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Stop after so many messages.")] = None


class Form(NamedTuple):
    """The options that say how a message is printed."""

    format: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--format",
            help=r"As kcat's: %t topic, %p queue, %o offset, %k keys, %s body, %S its bytes, %T time stored, %h"
            r" properties, %g tag, %i id, %b broker; \n, \t, \0, \xHH. Bytes go unaltered into a pipe.",
        ),
    ] = None
    delimiter: Annotated[
        str | None, typer.Option("-D", "--delimiter", help=r"Print bodies alone, each with this behind it, such as \0.")
    ] = None
    key_delimiter: Annotated[
        str | None, typer.Option("-K", "--key-delimiter", help="Print keys and this before each body.")
    ] = None
    json: Json = False

    def printed(self) -> Callable[[ReceivedMessage], bytes | str]:
        """Return what makes of a message what is printed. Raises BadParameter."""
        text = self.format
        if sum((text is not None, self.json, (self.delimiter, self.key_delimiter) != (None, None))) > 1:
            raise typer.BadParameter("give one of --format, --json and delimiters", param_hint="--format")
        if text is None and (self.delimiter, self.key_delimiter) != (None, None):
            before, behind = self.key_delimiter, r"\n" if self.delimiter is None else self.delimiter
            key = "" if before is None else "%k" + before.replace("%", "%%")
            text = f"{key}%s{behind.replace('%', '%%')}"
        if text is None:
            line = as_json if self.json else as_text
            return lambda message: line(message) + "\n"
        try:
            return Format(text, terminal=sys.stdout.isatty())
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--format" if self.format is not None else "-D, -K") from None


RANGE, FORM = Range(), Form()


def consume(
    topic: Annotated[list[str], typer.Argument(help="The topic to read; several too.", show_default=False)],
    *,
    which: Range = RANGE,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit what was printed.")
    ] = None,
    form: Form = FORM,
    at: ClusterAccess = HERE,
) -> None:
    """Print the messages of topics as they come, until Ctrl-C.

    With --json each message is one line of JSON; a body that is no UTF-8 text stands there as body_base64.

    Example: `rocketspark consume numbers --from first --json`

    Example: `rocketspark consume orders bills --group billing`
    """
    from rocketspark.cli.serving.serve import loop_factory

    start = where(which.start)
    until = LAST if which.exit else None if which.until is None else where(which.until, "--until")
    if which.exit and which.until is not None:
        raise typer.BadParameter("give one of --exit and --until", param_hint="--exit")
    if group is not None:
        if which.queue:
            raise typer.BadParameter("a group's members share the queues; leave out --group", param_hint="--queue")
        if until not in (None, LAST):
            raise typer.BadParameter("with --group there is --exit alone", param_hint="--until")
        if start.offset not in (None, 0):
            raise typer.BadParameter("with --group it is first, last or a time", param_hint="--from")
    topics = list(dict.fromkeys(topic))
    printing = Printing(form.printed(), which.count_max)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Blocked it is ignored as well, and the runner has its handler, which SIGTERM calls: what is printed is noted.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if group is None:
            runner.run(_tail(topics, start, until, which, at, printing))
        else:
            runner.run(_join(topics, start, until, group, which.tags, at, printing))


async def _tail(
    topics: list[str], start: Where, until: Where | None, which: Range, at: ClusterAccess, printing: Printing
) -> None:
    """Read every queue from where the user wants it, in no group."""
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer

    options: dict[str, Any] = at.client_options() | {"auto_commit": False, "route_interval_ms": FOLLOW_MS}
    # Queues that come later are read from what was stored since this began.
    now_ms = int(time.time() * 1000)
    later: Any = now_ms if start.time_ms is None else start.time_ms
    if start.offset is not None and start.offset >= 0:
        later = "first"
    async with AsyncPullConsumer(at.namesrv, NO_GROUP, consume_from=later, **options) as consumer:
        queues = _chosen(which.queue, await _queues(consumer, topics))
        ends = Ends(consumer, until, cuts=True)
        if until is not None:
            await ends.fix(queues)
        await consumer.assign(queues, which.tags)
        for queue in queues:
            await consumer.seek(queue, await start.of(consumer, queue))
        following = asyncio.ensure_future(
            _follow(consumer, topics, which.tags, every=until is None and not which.queue)
        )
        try:
            await printing.run(consumer, ends, least=start.offset or 0)
        finally:
            following.cancel()


async def _queues(consumer: AsyncPullConsumer, topics: list[str]) -> list[MessageQueue]:
    """Return the queues of topics; raises RouteNotFound for one that is not there."""
    return [queue for topic in topics for queue in await consumer.queues(topic)]


async def _follow(consumer: AsyncPullConsumer, topics: list[str], tags: str, *, every: bool) -> None:
    """Read queues too that topics get while they are read: more of them, or those of a broker that comes back."""
    from rocketspark.errors import RocketSparkError

    while every:
        await asyncio.sleep(FOLLOW_MS / 1000)
        for topic in topics:
            # It is looked again. A topic that was deleted does not keep the others from it.
            with contextlib.suppress(RocketSparkError):
                found, read = await consumer.queues(topic), set(consumer.assignment())
                if not read.issuperset(found):
                    await consumer.assign(sorted(read.union(found)), tags)


async def _join(
    topics: list[str], start: Where, until: Where | None, group: str, tags: str, at: ClusterAccess, printing: Printing
) -> None:
    """Read the share of a member of a group, and commit."""
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer

    begin: Any = "first" if start.offset is not None else "last" if start.time_ms is None else start.time_ms
    async with AsyncPullConsumer(at.namesrv, group, consume_from=begin, **at.client_options()) as consumer:
        ends = Ends(consumer, until, cuts=False)
        queues = await _queues(consumer, topics)
        if until is not None:
            await ends.fix(queues)
        for topic in topics:
            consumer.subscribe(topic, tags)
        await printing.run(consumer, ends)


class Ends:
    """Where each queue ends, if it does. Those of a time that is to come are known once it has come.

    `cuts`: what lies behind the end is not printed; a group's member prints all that it was given, as it commits that.
    """

    def __init__(self, consumer: AsyncPullConsumer, until: Where | None, *, cuts: bool) -> None:
        self._consumer = consumer
        self._until = until
        self._cuts = cuts
        self._offsets: dict[MessageQueue, int] | None = None
        self._queues: list[MessageQueue] = []
        self._since_s = time.monotonic()

    @property
    def are_awaited(self) -> bool:
        """Whether the end of reading may come without a message."""
        return self._until is not None

    async def fix(self, queues: list[MessageQueue]) -> None:
        """Take the ends of these queues as they are now, unless the time has not come yet."""
        assert self._until is not None
        self._queues = queues
        if self._until.time_ms is None or self._until.time_ms <= time.time() * 1000:
            self._offsets = {queue: await self._until.of(self._consumer, queue) for queue in queues}

    def comes_after(self, message: ReceivedMessage) -> bool:
        """Tell whether a message stands behind the end, and is not to be printed."""
        if self._until is None or not self._cuts:
            return False
        if self._offsets is None:
            assert self._until.time_ms is not None
            return message.store_time_ms >= self._until.time_ms
        end = self._offsets.get(message.queue)
        return end is not None and message.queue_offset >= end

    async def are_reached(self) -> bool:
        """Tell whether all is read: by a group's member, of those queues that it has, or that it gets none."""
        if self._until is None:
            return False
        if self._offsets is None:
            await self.fix(self._queues)
            return False
        read = self._consumer.assignment()
        if {queue.topic for queue in read}.issuperset(queue.topic for queue in self._queues):
            self._since_s = time.monotonic()
        elif time.monotonic() < self._since_s + WITHOUT_QUEUES_S:
            return False
        elif not read:
            print("other members of the group have all queues", file=sys.stderr)
            return True
        return all([await self._consumer.position(queue) >= self._offsets.get(queue, 0) for queue in read])


class Printing:
    """Prints what a consumer reads, each message in a form, up to a count."""

    def __init__(self, form: Callable[[ReceivedMessage], bytes | str], count: int | None) -> None:
        self._form = form
        self._left = count

    async def run(self, consumer: AsyncPullConsumer, ends: Ends, least: int = 0) -> None:
        """Print until the count or the ends are reached. `least`: the lowest offset of interest."""
        timeout_ms = POLL_TO_END_MS if ends.are_awaited else POLL_MS
        while self._left != 0 and not await ends.are_reached():
            messages = await consumer.poll(timeout_ms, count_max=min(self._left or 1000, 1000))
            # Any error of this ends the consumer, without a commit of messages that were not written.
            self._print([m for m in messages if m.queue_offset >= least and not ends.comes_after(m)])

    def _print(self, messages: list[ReceivedMessage]) -> None:
        if self._left is not None:
            self._left -= len(messages)
        made: list[Any] = []
        size = 0
        for message in messages:
            made.append(self._form(message))
            size += len(made[-1])
            if size >= WRITE_BYTES:
                _write(made)
                made, size = [], 0
        if made:
            _write(made)


def _write(made: list[Any]) -> None:
    if isinstance(made[0], str):
        write("".join(made))
    else:
        write_bytes(b"".join(made))


def _chosen(texts: list[str] | None, queues: list[MessageQueue]) -> list[MessageQueue]:
    """Return the queues that are named, each by its number, on every broker, or as broker/number; all if none is."""
    if not texts:
        return queues
    chosen: set[MessageQueue] = set()
    for text in texts:
        broker, slash, number = text.rpartition("/")
        found = {q for q in queues if q.queue_id == whole_number(number) and (not slash or q.broker_name == broker)}
        if not found:
            there = ", ".join(f"{shown(q.broker_name)}/{q.queue_id}" for q in queues)
            text = f"{shown(text, characters_max=60)!r} is no queue of this topic, there are: {there}"
            raise typer.BadParameter(text, param_hint="--queue")
        chosen |= found
    return sorted(chosen)


def where(text: str, option: str = "--from") -> Where:
    """Parse the text of --from or --until. Raises BadParameter."""
    if text in ("first", "beginning"):
        return FIRST
    if text in ("last", "end"):
        return LAST
    if ago := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        return Where(time_ms=max(int((time.time() - int(ago[1]) * AGO_S[ago[2]]) * 1000), 0))
    if text.startswith("@") and (ms := whole_number(text[1:])) is not None:
        return Where(time_ms=ms)
    if (offset := whole_number(text, low=-(1 << 62), high=1 << 62)) is not None and not _reads_as_date(text):
        return Where(offset=offset)
    try:
        if offset is not None:
            raise ValueError
        return Where(time_ms=max(int(datetime.fromisoformat(text).timestamp() * 1000), 0))
    except (ValueError, OverflowError, OSError):
        needed = "first, last, an offset, -N or a time such as 2026-01-31T12:00 is needed"
        if offset is not None:
            needed = f"a date or an offset? Write {text[:4]}-{text[4:6]}-{text[6:]}, or 0{text} for the offset"
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r}: {needed}", param_hint=option) from None


def _reads_as_date(text: str) -> bool:
    return len(text) == 8 and re.fullmatch(r"(19|20)[0-9]{2}(0[1-9]|1[0-2])([0-2][0-9]|3[01])", text) is not None
