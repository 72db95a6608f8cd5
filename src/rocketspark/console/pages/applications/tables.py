"""Tables of applications: outboxes, and the ids of processed messages. Rule: a database that fails fails alone."""

from __future__ import annotations

from typing import TypeVar

from starlette.responses import Response

from rocketspark import machine
from rocketspark.console.call import Call, Failed, together
from rocketspark.console.databases import ENTRIES_MAX, SCOPES_MAX, Place, Watched
from rocketspark.console.pages.applications.allowed import may_look
from rocketspark.console.routes import page
from rocketspark.recipes import State

T = TypeVar("T")


async def outboxes(call: Call) -> Response:
    """The outboxes: what waits, what is parked, what was sent."""
    await may_look(call)
    found = await _seen(call, call.console.outboxes)
    return call.page("outboxes.html", found=found, states=State, entries_max=ENTRIES_MAX)


async def ids(call: Call) -> Response:
    """The tables of ids: how many each group has recorded, and since when."""
    await may_look(call)
    found = await _seen(call, call.console.tables_of_ids)
    return call.page("deduplication.html", found=found, scopes_max=SCOPES_MAX, now_ms=machine.time_ns() // 1_000_000)


async def _seen(call: Call, watched: list[Watched[T]]) -> list[tuple[Place, T | Failed]]:
    seen = await together(*(call.attempt(each.look()) for each in watched))
    return [(each.place, one) for each, one in zip(watched, seen, strict=True)]


ROUTES = [page("/outboxes", outboxes), page("/deduplication", ids)]
