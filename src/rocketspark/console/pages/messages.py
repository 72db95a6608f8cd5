"""Messages of a topic: searched by time, key, tag, text and JSON in bodies, seen as they come, taken as a file.

Rule: a search goes on in steps, each of which looks at a bounded number of messages; the page says how far it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.responses import RedirectResponse, Response

from rocketspark.admin.messages.search import FoundMessages, SearchProgress
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.call import Call
from rocketspark.console.content import asked, exports
from rocketspark.console.content.asked import Asked, Place
from rocketspark.console.content.event_streams import EventStream
from rocketspark.console.content.shown_body import preview
from rocketspark.console.drawing import time
from rocketspark.console.routes import page
from rocketspark.errors import RocketSparkError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import shown

# Messages of one step of a search: looked at, and shown.
STEP, ROWS = 2_000, 50
# Of the bodies of one step, but for the last one: they may inflate to a thousand times of what is stored.
STEP_BYTES_MAX = 32 << 20
# A whole search goes on by itself until it has looked at so many.
SCAN_MAX = 100_000
FILE_ROWS_MAX, FILE_BYTES_MAX = 5_000, 64 << 20
# Live: a look at a topic's ends takes two requests for each queue; all who watch leave half of the pace to others.
TAIL_ROWS = 100
TAIL_QUEUES_MAX, TAILS_MAX = 200, 20
TOO_MANY = f"{TAILS_MAX} pages watch messages already: stop one"


class Step(NamedTuple):
    """What one step of a search found. `left`: how many messages are still to be looked at; `next`: the address of the
    next step, "" at the end; `goes_on`: it is asked for at once, not when somebody wants it.
    """

    rows: Sequence[ReceivedMessage]
    looked_at: int
    left: int
    next: str
    goes_on: bool


async def messages(call: Call) -> Response:
    """Show the form, and the first step of what it asks for."""
    wanted = asked.asked_of(call.request.query_params.multi_items())
    if call.query("id").strip():
        return RedirectResponse(_found_by_id(call, wanted.topic), 303)
    if wanted.topic and (queue := call.query("queue").strip()):
        place = asked.place_of(wanted.topic, f"{queue}/{call.query('offset').strip() or 0}")
        return RedirectResponse(_link("/message", topic=wanted.topic, at=place.text()), 303)
    topics = await call.attempt(call.read("topics", lambda admin: admin.list_topics()))
    async with call.console.looking:
        step = await call.attempt(_step(call, wanted)) if wanted.topic else None
        return call.page(
            "messages.html", wanted=wanted, topics=topics, step=step, preview=preview, place=asked.place_in
        )


def _found_by_id(call: Call, topic: str) -> str:
    return _link("/message", id=call.query("id").strip(), topic=topic)


def _link(path: str, **arguments: str) -> str:
    return f"{path}?{urlencode({name: text for name, text in arguments.items() if text})}"


async def more(call: Call) -> Response:
    """Show the next step of a search."""
    wanted = asked.asked_of(call.request.query_params.multi_items())
    async with call.console.looking:
        step = await _step(call, wanted)
        return call.part("message_rows.html", wanted=wanted, step=step, preview=preview, place=asked.place_in)


async def _step(call: Call, wanted: Asked) -> Step:
    search = wanted.search
    total = 0

    def tell(progress: SearchProgress) -> None:
        nonlocal total
        total = progress.total

    async def find(admin: AsyncAdmin) -> FoundMessages:
        return await admin.find_messages(
            wanted.topic,
            search,
            newest_first=wanted.newest_first,
            limit=ROWS,
            scan_max=STEP,
            bytes_max=STEP_BYTES_MAX,
            queues=list(wanted.starts) if wanted.starts else None,
            starts=wanted.starts,
            on_progress=tell,
        )

    found = await call.ask(find)
    seen = wanted.seen + found.looked_at
    after = wanted._replace(starts=found.next_offsets, seen=seen)
    is_over = not found.stopped or not found.next_offsets
    return Step(
        found.messages,
        seen,
        max(0, total - found.looked_at),
        "" if is_over else after.address("/messages/more"),
        found.stopped == "scan_max" and len(found.messages) < ROWS and seen < SCAN_MAX,
    )


# -- as a file ---------------------------------------------------------------------------------------------------------


async def export(call: Call) -> Response:
    """Answer with a file of the messages that are picked, or of all that the search finds."""
    pairs = call.request.query_params.multi_items()
    wanted = asked.asked_of((name, text) for name, text in pairs if name not in ("at", "seen"))
    kind = call.query("kind", "jsonl")
    places = [asked.place_of(wanted.topic, text) for name, text in pairs if name == "pick"]
    if len(places) > asked.PICKS_MAX:
        raise UsageError(
            f"{len(places)} messages are picked: {asked.PICKS_MAX} at most, or none for all that are found"
        )

    async def make() -> tuple[bytes, str, str]:
        found = await call.ask(lambda admin: _picked(admin, places) if places else _all(admin, wanted))
        if sum(len(m.body) for m in found) > FILE_BYTES_MAX:
            raise UsageError(f"these messages have more than {FILE_BYTES_MAX >> 20} MiB: save fewer at a time")
        data = await asyncio.to_thread(exports.file_of, found, kind)
        return data, f"{wanted.topic}.{kind}", exports.MEDIA_TYPES[kind]

    return await call.console.downloads.answer(call.who, make)


async def _picked(admin: AsyncAdmin, places: Sequence[Place]) -> list[ReceivedMessage]:
    wanted = set(places)
    found: dict[Place, ReceivedMessage] = {}
    left = FILE_BYTES_MAX
    for queue, first, end in asked.runs_of(places):
        came = await admin.find_messages(
            queue.topic,
            queues=[queue],
            starts={queue: first},
            limit=end - first,
            scan_max=end - first,
            # One more tells that it is too much.
            bytes_max=max(left, 0) + 1,
        )
        found |= {Place(queue, m.queue_offset): m for m in came.messages}
        left -= sum(len(m.body) for m in came.messages)
        if left < 0:
            break
    return [found[place] for place in places if place in wanted and place in found]


async def _all(admin: AsyncAdmin, wanted: Asked) -> list[ReceivedMessage]:
    kept: list[ReceivedMessage] = []
    starts, seen, size = None, 0, 0
    while True:
        found = await admin.find_messages(
            wanted.topic,
            wanted.search,
            newest_first=wanted.newest_first,
            limit=ROWS,
            scan_max=STEP,
            bytes_max=STEP_BYTES_MAX,
            queues=list(starts) if starts else None,
            starts=starts,
        )
        kept += found.messages
        starts, seen = found.next_offsets, seen + found.looked_at
        size += sum(len(m.body) for m in found.messages)
        if not found.stopped or not starts or seen >= SCAN_MAX or len(kept) >= FILE_ROWS_MAX or size > FILE_BYTES_MAX:
            return kept[:FILE_ROWS_MAX]


# -- as they come ------------------------------------------------------------------------------------------------------


async def tail(call: Call) -> Response:
    """Show a page that fills with the messages that come."""
    return call.page("tail.html", topic=call.query("topic"), tag=call.query("tag"))


async def tail_events(call: Call) -> Response:
    """Answer with the messages that come, each an event."""
    topic, tag = call.query("topic"), call.query("tag")
    if call.console.tails >= TAILS_MAX:
        raise UsageError(TOO_MANY)
    state = await call.ask(lambda admin: admin.show_topic(topic))
    if len(state.queues) > TAIL_QUEUES_MAX:
        raise UsageError(f"topic {shown(topic)} has {len(state.queues)} queues: {TAIL_QUEUES_MAX} can be watched")
    starts = {each.queue: each.max_offset for each in state.queues}
    return EventStream(_tail(call, topic, tag, starts))


async def _tail(call: Call, topic: str, tag: str, starts: dict[MessageQueue, int]) -> AsyncGenerator[bytes]:
    wanted = Asked(topic, {"tag": tag} if tag else {}, newest_first=False)
    if call.console.tails >= TAILS_MAX:
        # Others began while the topic was looked at.
        yield _event("trouble", {"text": TOO_MANY})
        return
    closing = asyncio.ensure_future(call.console.closing.wait())
    call.console.tails += 1
    try:
        yield b"retry: 3000\nevent: ready\ndata: {}\n\n"
        while not closing.done() and not call.is_over:
            try:
                async with call.console.looking:
                    found = await call.ask(partial(_next, wanted=wanted, starts=starts))
                    starts, rows = found.next_offsets, [_event("came", _row(m)) for m in found.messages]
                    del found
            except RocketSparkError as e:
                rows = []
                yield _event("trouble", {"text": shown(str(e))})
                if e.no_permission:
                    # Who lost the right would be refused each second, which fills the brokers' audits.
                    return
            for row in rows:
                yield row
            yield b": still here\n\n"
            most = 4 * len(starts) * call.console.tails / call.console.settings.requests_per_second
            await asyncio.wait({closing}, timeout=max(1.0, most))
    finally:
        closing.cancel()
        call.console.tails -= 1


async def _next(admin: AsyncAdmin, wanted: Asked, starts: dict[MessageQueue, int]) -> FoundMessages:
    return await admin.find_messages(
        wanted.topic,
        wanted.search,
        queues=list(starts),
        starts=starts,
        limit=TAIL_ROWS,
        scan_max=STEP,
        bytes_max=STEP_BYTES_MAX,
    )


def _row(message: ReceivedMessage) -> dict[str, str]:
    place = asked.place_in(message)
    return {
        "time": time(message.store_time_ms),
        "place": shown(place),
        "tag": shown(message.tag or ""),
        "keys": shown(" ".join(message.keys)),
        "body": preview(message.body),
        "to": _link("/message", topic=message.read_from or message.topic, at=place),
    }


def _event(kind: str, data: dict[str, str]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))


ROUTES = (
    page("/messages", messages),
    page("/messages/more", more),
    page("/messages/export", export),
    page("/messages/tail", tail),
    page("/messages/tail/events", tail_events),
)
