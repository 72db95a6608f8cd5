"""What the console serves: a route for each page and each change, from the modules of `pages/`."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from starlette.routing import Route

from rocketspark.console.navigation import MODULES

if TYPE_CHECKING:
    from starlette.responses import Response

    from rocketspark.console.call import Call, Confirmation, Done, Form

    Page = Callable[[Call], Awaitable[Response]]
    Words = Callable[[Call, Form], Awaitable[Confirmation]]
    Act = Callable[[Call, Form], Awaitable[Done]]


class PageRoute(NamedTuple):
    """What is read at a path."""

    path: str
    page: Page


class ChangeRoute(NamedTuple):
    """What is changed by a POST to a path, after a confirmation."""

    path: str
    words: Words
    act: Act


def page(path: str, answer: Page) -> PageRoute:
    """Return the route of a page: `answer` gets the call and returns the response."""
    return PageRoute(path, answer)


def change(path: str, words: Words, act: Act) -> ChangeRoute:
    """Return the route of a change: `words` says what it is going to do, `act` does it."""
    return ChangeRoute(path, words, act)


def all_routes() -> Iterator[PageRoute | ChangeRoute]:
    """Yield the routes of all modules of pages."""
    for name in MODULES:
        yield from importlib.import_module(f"rocketspark.console.pages.{name}").ROUTES


def as_starlette(
    serve_page: Callable[[PageRoute], Callable[..., Awaitable[Response]]],
    serve_change: Callable[[ChangeRoute], Callable[..., Awaitable[Response]]],
) -> list[Route]:
    """Return all routes, each wrapped by what stands before it."""
    found = []
    for route in all_routes():
        if isinstance(route, PageRoute):
            found.append(Route(route.path, serve_page(route), methods=["GET"]))
        else:
            found.append(Route(route.path, serve_change(route), methods=["POST"]))
    return found
