"""`produce`: lines of stdin or of a file, or whole files, become messages. Rule: results on stdout, progress on stderr;
whatever ends it, what is under way is answered first and the count is told.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import typer

from rocketspark.cli.commands.message_options import MessageOptions
from rocketspark.cli.operate import print_json
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.streams import lines, parts, unescaped, write_bytes
from rocketspark.errors import MessageIllegal, NotSent, RocketSparkError, UsageError
from rocketspark.model.text import shown, whole_number

if TYPE_CHECKING:
    from rocketspark.cli.message_lines import Lines
    from rocketspark.client.sync import Producer
    from rocketspark.model import Message, MessageQueue

# Messages sent and not yet answered: enough to keep a broker busy, few enough to stop soon after an error.
IN_FLIGHT_MAX = 1024
# Messages of one sharding key or lite topic: each waits until the one before it is answered, and its time runs while it
# waits.
OF_A_KEY_MAX = 4
# Bad lines that are told one by one.
TOLD_MAX = 20
# A line has a key beside its body, or JSON, which may need six letters for a byte.
_KEY_BYTES_MAX, _JSON_FACTOR = 1 << 16, 6


class Input(NamedTuple):
    """The options that say what a message is."""

    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read lines from here, not from stdin.")] = None
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line is a JSON object, as `consume --json` prints it.")
    ] = False
    delimiter: Annotated[
        str | None,
        typer.Option(
            "-D", "--delimiter", help=r"What parts messages, instead of the end of a line; \n, \t, \0, \xHH are known."
        ),
    ] = None
    key_delimiter: Annotated[
        str | None, typer.Option("-K", "--key-delimiter", help="What parts a message's key from its body.")
    ] = None


class Pace(NamedTuple):
    """The options that say how many messages are sent, how fast, and what happens to bad and to sent ones."""

    rate: Annotated[float | None, typer.Option(min=0.001, help="Send at most so many messages a second.")] = None
    count_max: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Stop after so many messages.")] = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be sent as it is, and say so, instead of ending.")
    ] = False
    tee: Annotated[
        bool, typer.Option("-T", "--tee", help="Print what is sent on stdout too, unaltered, as `tee` does.")
    ] = False


INPUT, FIELDS, PACE = Input(), MessageOptions(), Pace()


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to send to.", show_default=False)],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files, each of which is one message; - is all of stdin.", show_default=False),
    ] = None,
    *,
    given: Input = INPUT,
    fields: MessageOptions = FIELDS,
    queue: Annotated[
        str | None, typer.Option("-p", "--queue", help="Send to this queue: its number, or broker/number.")
    ] = None,
    pace: Pace = PACE,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketspark_producer",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send each line of stdin, or of a file, as one message; empty lines are left out. Or send whole files.

    Ctrl-C and SIGTERM end it after what is under way; the last line says how many messages were sent.

    Example: `seq 1000 | rocketspark produce numbers --tag demo`
    """
    from rocketspark.cli.message_lines import Lines
    from rocketspark.client.sync import Producer
    from rocketspark.client.validators import check_target

    check_target(topic)
    delimiter, key_delimiter = (
        _delimiter(name, text)
        for name, text in (("--delimiter", given.delimiter), ("--key-delimiter", given.key_delimiter))
    )
    if files and any((given.file, given.jsonl, delimiter, key_delimiter)):
        raise typer.BadParameter("a file is one message: -f reads lines, --jsonl and delimiters are for lines")
    if pace.tee and json:
        raise typer.BadParameter("stdout has what is sent; leave out --json", param_hint="--tee")
    if given.jsonl and key_delimiter is not None:
        raise typer.BadParameter("a line of JSON names its own keys", param_hint="--key-delimiter")
    of_lines = Lines(topic, fields.values(), jsonl=given.jsonl, key_delimiter=key_delimiter)
    with (
        _opened(files, given, delimiter) as source,
        Producer(at.namesrv, group, **at.client_options()) as producer,
        Stop() as stop,
    ):
        # While a route is asked for, later messages may overtake those that wait for it; a new topic has none yet.
        absent: NotSent | None = None
        try:
            producer.queues(topic)
        except NotSent as e:
            absent = e
        except RocketSparkError:
            pass
        sending = Sender(producer, None if queue is None else queue_of(queue, producer.queues(topic)))
        try:
            with _progress(given.file) as advance:
                told = (
                    _teed(b"" if files else b"\n" if delimiter is None else delimiter, advance) if pace.tee else advance
                )
                _send(source, of_lines, sending, stop, pace, told)
        except KeyboardInterrupt:
            if not stop.asked:
                raise
        finally:
            sending.finish()
            _report(sending, topic, json)
    # Without a message nothing else tells that there is no server.
    if (error := sending.error or (None if sending.sent else absent)) is not None:
        raise error
    if stop.asked:
        raise KeyboardInterrupt


def _send(
    source: Iterator[Part],
    of_lines: Lines,
    sending: Sender,
    stop: Stop,
    pace: Pace,
    advance: Callable[[bytes, int], None],
) -> None:
    """Send all parts that become messages. Raises UsageError for the first that does not, unless it is skipped."""
    begun_s, passed = time.monotonic(), 0
    while (pace.count_max is None or passed < pace.count_max) and (
        part := stop.waiting(lambda: next(source, None))
    ) is not None:
        if part.data == b"":
            sending.empty += 1
            continue
        try:
            if part.data is None:
                raise MessageIllegal(part.too_long)
            message = of_lines.message(part.data)
            if pace.rate is not None:
                pause_s = begun_s + passed / pace.rate - time.monotonic()
                if pause_s > 0:
                    stop.waiting(lambda pause_s=pause_s: time.sleep(pause_s))  # type: ignore[misc]
            if stop.asked:
                return
            sending.send(part.place, message)
        except MessageIllegal as e:
            if not pace.skip_bad:
                raise UsageError(f"{part.place}{_said(e)}; mend it, or leave such out by --skip-bad") from None
            sending.skip(part.place, e)
            continue
        passed += 1
        advance(part.data, sending.sent)


def _teed(end: bytes, advance: Callable[[bytes, int], None]) -> Callable[[bytes, int], None]:
    """Return `advance` with what prints each message on stdout, and `end` behind it."""

    def told(data: bytes, sent: int) -> None:
        write_bytes(data + end)
        advance(data, sent)

    return told


def _said(error: Exception) -> str:
    text = str(error)
    return f" {text}" if text.startswith("is longer") else f": {text}"


class Part(NamedTuple):
    """What is to become a message: `place` names it for people; `data` is None if it is `too_long`."""

    place: str
    data: bytes | None
    too_long: str = ""


class Stop:
    """Ctrl-C and SIGTERM while messages are sent: what waits for input ends at once, a send goes on. `asked`: one came.
    The second ends everything.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waits = False
        self._before: Any = None

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is signal.SIG_IGN:
                # As scripts have it in the background: SIGTERM calls the handler all the same.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._waits:
            raise KeyboardInterrupt

    def waiting(self, act: Callable[[], Any]) -> Any:
        """Return what `act` returns. Raises KeyboardInterrupt as soon as one is asked for, or was before."""
        self._waits = True
        try:
            if self.asked:
                raise KeyboardInterrupt
            return act()
        finally:
            self._waits = False


class Sender:
    """Sends messages, with a bound on those not answered yet, and counts them. `error`: the first failure; after it no
    message is sent.
    """

    def __init__(self, producer: Producer, queue: MessageQueue | None = None) -> None:
        self._producer = producer
        self._queue = queue
        self._room = threading.Semaphore(IN_FLIGHT_MAX)
        self._started_s = time.monotonic()
        self.sent = 0
        self.failed = 0
        self.empty = 0
        self.skipped = 0
        self.seconds = 0.0
        self.error: BaseException | None = None

    def send(self, place: str, message: Message) -> None:
        """Send one message once there is room. Raises MessageIllegal, and the error of an earlier message."""
        room = IN_FLIGHT_MAX // OF_A_KEY_MAX if message.sharding_key or message.lite_topic else 1
        for _ in range(room):
            self._room.acquire()
        try:
            if self.error is not None:
                raise self.error
            future = self._producer.send_future(message, queue=self._queue)
        except BaseException:
            self._room.release(room)
            raise
        future.add_done_callback(lambda future: self._done(future, place, room))

    def _done(self, future: Future[Any], place: str, room: int) -> None:
        error = future.exception()
        if error is None:
            self.sent += 1
        else:
            self.failed += 1
            if self.error is None:
                self.error = RocketSparkError(f"{place}: {error}") if isinstance(error, RocketSparkError) else error
        self._room.release(room)

    def skip(self, place: str, error: MessageIllegal) -> None:
        """Count a message that is left out, and print why for the first few."""
        self.skipped += 1
        if self.skipped <= TOLD_MAX:
            more = "; further ones are only counted" if self.skipped == TOLD_MAX else ""
            print(f"skipped {place}{shown(_said(error), characters_max=500)}{more}", file=sys.stderr)

    def finish(self) -> None:
        """Wait until the broker has answered every message."""
        for _ in range(IN_FLIGHT_MAX):
            self._room.acquire()
        self.seconds = time.monotonic() - self._started_s


def queue_of(text: str, queues: list[MessageQueue]) -> MessageQueue:
    """Return the one of a topic's queues that is named, by its number or as broker/number. Raises BadParameter."""
    broker, slash, number = text.rpartition("/")
    found = [q for q in queues if q.queue_id == whole_number(number) and (not slash or q.broker_name == broker)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{shown(q.broker_name)}/{q.queue_id}" for q in found or queues)
    why = "names several queues, write one of" if found else "is no queue of this topic, there are"
    raise typer.BadParameter(f"{shown(text, characters_max=60)!r} {why}: {there}", param_hint="--queue")


def _delimiter(name: str, text: str | None) -> bytes | None:
    try:
        found = None if text is None else unescaped(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=name) from None
    if found == b"":
        raise typer.BadParameter(r"it is empty; \0 is the byte zero", param_hint=name)
    return found


@contextmanager
def _opened(files: list[Path] | None, given: Input, delimiter: bytes | None) -> Iterator[Iterator[Part]]:
    if files:
        yield _of_files(files)
    elif given.file is not None:
        with given.file.open("rb") as source:
            yield _of_stream(source, given, delimiter)
    else:
        if sys.stdin.isatty():
            print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
        yield _of_stream(sys.stdin.buffer, given, delimiter)


def _of_stream(source: BinaryIO, given: Input, delimiter: bytes | None) -> Iterator[Part]:
    from rocketspark.client.validators import BODY_BYTES_MAX

    bytes_max = BODY_BYTES_MAX * (_JSON_FACTOR if given.jsonl else 1)
    if given.jsonl or given.key_delimiter is not None:
        bytes_max += _KEY_BYTES_MAX
    noun = "line" if delimiter is None else "message"
    what = "that a message may have" if bytes_max == BODY_BYTES_MAX else "that is read of one"
    too_long = f"is longer than {bytes_max} bytes, the most {what}"
    found = lines(source, bytes_max) if delimiter is None else parts(source, delimiter, bytes_max)
    for number, data in enumerate(found, 1):
        yield Part(f"{noun} {number}", data, too_long)


def _of_files(files: list[Path]) -> Iterator[Part]:
    from rocketspark.client.validators import BODY_BYTES_MAX

    for file in files:
        if str(file) == "-":
            data = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
        else:
            with file.open("rb") as source:
                data = source.read(BODY_BYTES_MAX + 1)
        yield Part(str(file), data)


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[bytes, int], None]]:
    """Yield the function to call after each line with it and the messages stored so far."""
    if not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        yield lambda line, sent: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[sent]:,} messages"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=file.stat().st_size if file else None, sent=0)
        yield lambda line, sent: progress.update(task, advance=len(line), sent=sent)


def _report(sending: Sender, topic: str, as_json: bool) -> None:
    rate = sending.sent / sending.seconds if sending.seconds else 0.0
    if as_json:
        result = {
            "topic": topic,
            "sent": sending.sent,
            "failed": sending.failed,
            "empty": sending.empty,
            "skipped": sending.skipped,
            "seconds": round(sending.seconds, 3),
            "messages_per_second": round(rate),
        }
        print_json(result)
        return
    left_out = f", {sending.empty:,} empty lines left out" if sending.empty else ""
    skipped = f", {sending.skipped:,} bad ones skipped" if sending.skipped else ""
    failed = f", {sending.failed:,} failed" if sending.failed else ""
    took = f"{sending.seconds:.2f} s ({rate:,.0f}/s)"
    print(f"sent {sending.sent:,} messages to {shown(topic)} in {took}{failed}{skipped}{left_out}", file=sys.stderr)
