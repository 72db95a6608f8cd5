"""One request of a browser, as pages see it: what it asks, who sends it, and how it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.cluster.view import LIFE_S, ClusterView
from rocketspark.console.content.forms import fields_of
from rocketspark.console.drawing import draw
from rocketspark.console.guard import BODY_BYTES_MAX
from rocketspark.console.navigation import navigation_of
from rocketspark.console.sessions import Session
from rocketspark.console.state import Console
from rocketspark.errors import RocketSparkError, UsageError

T = TypeVar("T")
Form = Mapping[str, str]
FORM_S = 30.0


class Confirmation(NamedTuple):
    """What a change is going to do, in words, before it is done.

    `title`: of the page; `sentences`: what happens, with the names it happens to; `button`: the verb; `back`: the
    address to go back to; `grave`: nothing brings back what it takes away; `topic`: it is refused if
    this one was deleted or made anew between the words and the button.
    """

    title: str
    sentences: tuple[str, ...]
    button: str
    back: str
    grave: bool = False
    topic: str = ""


class Done(NamedTuple):
    """What a change did, in a sentence; `to`: the address of the page that shows it."""

    sentence: str
    to: str


class Failed(NamedTuple):
    """Why a piece of a page could not be had: a line for people."""

    text: str


class NotAllowed(Exception):
    """The cluster wants to know who asks: somebody has to log in."""


class NotNow(RocketSparkError):
    """Raised for what cannot be had for the moment: a page asks for it again."""

    retriable = True


class Call:
    """One request of a browser. `session`: that of the user who logged in, None without a login; `view`: the cluster as
    that user's keys show it.
    """

    def __init__(self, console: Console, request: Request, cookie: str, session: Session | None) -> None:
        self.console, self.request = console, request
        self.cookie, self.session = cookie, session
        self.view: ClusterView = session.view if session else console.own

    @property
    def token(self) -> str:
        """The token that a form of this page brings back."""
        return self.console.sessions.token(self.cookie)

    @property
    def who(self) -> str:
        """The name of who logged in, "" for nobody."""
        return self.session.name if self.session else ""

    @property
    def is_over(self) -> bool:
        """Tell whether the session of an answer that goes on for long has ended."""
        return self.session is not None and not self.console.sessions.holds(self.cookie, self.session)

    @property
    def read_only(self) -> bool:
        """Tell whether the console changes nothing."""
        return self.console.settings.read_only

    def query(self, name: str, default: str = "") -> str:
        """Return an argument of the address."""
        return str(self.request.query_params.get(name, default))

    def number(self, name: str, default: int, *, low: int = 0, high: int = 1_000_000) -> int:
        """Return an argument that is a whole number, `default` where it is none, within bounds."""
        text = self.query(name)
        return max(low, min(high, int(text))) if text.isascii() and text.isdigit() and len(text) < 16 else default

    def paged(self, found: Sequence[T], size: int) -> tuple[Sequence[T], int, int]:
        """Return what stands on the page that argument `page` names, the number of that page and how many there are."""
        pages = max(1, -(-len(found) // size))
        number = self.number("page", 1, low=1, high=pages)
        return found[(number - 1) * size : number * size], number, pages

    def wants_part(self) -> bool:
        """Tell whether htmx asks for a piece of a page."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-request-type") != "full"

    async def ask(self, act: Callable[[AsyncAdmin], Awaitable[T]]) -> T:
        """Return what an operation returns."""
        return await self.view.ask(act)

    async def read(self, key: Any, act: Callable[[AsyncAdmin], Awaitable[T]], life_s: float = LIFE_S) -> T:
        """Return what an operation returns, or what it returned a moment ago."""
        return await self.view.read(key, act, life_s)

    async def attempt(self, asked: Awaitable[T]) -> T | Failed:
        """Return what is awaited, or why it could not be had, for a piece of a page that may fail alone."""
        try:
            return await asked
        except RocketSparkError as e:
            self.must_log_in(e)
            return Failed(str(e))

    def must_log_in(self, error: RocketSparkError) -> None:
        """Raise NotAllowed if the error says that the cluster serves nobody without keys, and nobody logged in."""
        if self.session is None and error.no_permission:
            raise NotAllowed from error

    async def form(self, bytes_max: int = BODY_BYTES_MAX) -> dict[str, str]:
        """Return the fields of a posted form. Raises UsageError."""
        try:
            async with asyncio.timeout(FORM_S), self.console.forms.read(self.request.stream(), bytes_max) as body:
                return fields_of(body)
        except TimeoutError:
            raise UsageError(f"a form that was not there within {FORM_S:.0f} s") from None

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a whole page."""
        note = self.console.sessions.take_note(self.cookie) if status == 200 else ""
        return HTMLResponse(self._drawn(template, note=note, **values), status)

    def part(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a piece of a page."""
        return HTMLResponse(self._drawn(template, note="", **values), status)

    def _drawn(self, template: str, **values: Any) -> str:
        navigation = navigation_of(lambda name: getattr(self.console.settings, name))
        # Whoever has still to log in is told nothing.
        may_know = self.session is not None or not self.console.settings.needs_login
        silent = self.console.pace.silence.told() if may_know and self.request.url.path != "/login" else {}
        values = {"silent_brokers": silent, **values}
        return draw(template, call=self, path=self.request.url.path, navigation=navigation, **values)


async def together(*asked: Awaitable[Any]) -> list[Any]:
    """Return what is awaited, all at once; the first error once all have ended."""
    came = await asyncio.gather(*asked, return_exceptions=True)
    for one in came:
        if isinstance(one, BaseException):
            raise one
    return list(came)
