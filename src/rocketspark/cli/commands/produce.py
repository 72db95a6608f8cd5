"""`produce`: every line of stdin or of a file becomes a message. Rule: results on stdout, progress on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import print_json
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.streams import lines
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.client.sync import Producer

# Lines sent and not yet answered: enough to keep a broker busy, few enough to stop soon after an error.
IN_FLIGHT_MAX = 1024
# Lines of one sharding key: each waits until the one before it is answered, and its time runs while it waits.
OF_A_KEY_MAX = 4


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to send to.", show_default=False)],
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read lines from here, not from stdin.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key of every message; may be repeated.")] = None,
    property: Annotated[
        list[str] | None, typer.Option("--property", help="Property of every message, name=value; may be repeated.")
    ] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="Keeps the messages in order: all go to the queue of this key.")
    ] = None,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketspark_producer",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send each line of stdin, or of a file, as one message; empty lines are left out.

    Example: `seq 1000 | rocketspark produce numbers --tag demo`
    """
    from rocketspark.client.sync import Producer
    from rocketspark.client.validators import check_target

    check_target(topic)
    fields: dict[str, Any] = {
        "tag": tag,
        "keys": key or [],
        "properties": _properties(property or []),
        "sharding_key": sharding_key,
    }
    with _opened(file) as source, Producer(at.namesrv, group, **at.client_options()) as producer:
        sending = LineSender(producer, topic, fields)
        try:
            with _progress(file) as advance:
                for number, line in enumerate(source, 1):
                    try:
                        sending.send(line.rstrip(b"\r\n"))
                    except MessageIllegal as e:
                        raise UsageError(f"line {number}: {e}") from None
                    advance(len(line), sending.sent)
        finally:
            sending.finish()
            _report(sending, topic, json)
    if sending.error is not None:
        raise sending.error


class LineSender:
    """Sends lines as messages, with a bound on those not answered yet, and counts them. `error`: the first failure;
    after it no line is sent.
    """

    def __init__(self, producer: Producer, topic: str, fields: dict[str, Any]) -> None:
        self._producer = producer
        self._topic = topic
        self._fields = fields
        self._in_flight_max = OF_A_KEY_MAX if fields["sharding_key"] else IN_FLIGHT_MAX
        self._room = threading.Semaphore(self._in_flight_max)
        self._started_s = time.monotonic()
        self.sent = 0
        self.failed = 0
        self.empty = 0
        self.seconds = 0.0
        self.error: BaseException | None = None

    def send(self, body: bytes) -> None:
        """Send one line once there is room. Raises the error of an earlier line."""
        if not body:
            self.empty += 1
            return
        self._room.acquire()
        try:
            if self.error is not None:
                raise self.error
            future = self._producer.send_future(self._topic, body, **self._fields)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(self._done)

    def _done(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self.sent += 1
        else:
            self.failed += 1
            self.error = self.error or error
        self._room.release()

    def finish(self) -> None:
        """Wait until the broker has answered every line."""
        for _ in range(self._in_flight_max):
            self._room.acquire()
        self.seconds = time.monotonic() - self._started_s


def _properties(texts: list[str]) -> dict[str, str]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no name=value", param_hint="--property")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


@contextmanager
def _opened(file: Path | None) -> Iterator[Iterable[bytes]]:
    from rocketspark.client.validators import BODY_BYTES_MAX

    if file is not None:
        with file.open("rb") as source:
            yield lines(source, BODY_BYTES_MAX)
        return
    if sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    yield lines(sys.stdin.buffer, BODY_BYTES_MAX)


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[int, int], None]]:
    """Yield the function to call after each line with its bytes and the messages stored so far."""
    if not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        yield lambda line_bytes, sent: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[sent]:,} messages"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=file.stat().st_size if file else None, sent=0)
        yield lambda line_bytes, sent: progress.update(task, advance=line_bytes, sent=sent)


def _report(sending: LineSender, topic: str, as_json: bool) -> None:
    rate = sending.sent / sending.seconds if sending.seconds else 0.0
    if as_json:
        result = {
            "topic": topic,
            "sent": sending.sent,
            "failed": sending.failed,
            "empty": sending.empty,
            "seconds": round(sending.seconds, 3),
            "messages_per_second": round(rate),
        }
        print_json(result)
        return
    left_out = f", {sending.empty:,} empty lines left out" if sending.empty else ""
    failed = f", {sending.failed:,} failed" if sending.failed else ""
    took = f"{sending.seconds:.2f} s ({rate:,.0f}/s)"
    print(f"sent {sending.sent:,} messages to {shown(topic)} in {took}{failed}{left_out}", file=sys.stderr)
