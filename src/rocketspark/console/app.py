"""The console as an ASGI application. Rule: whoever may not, or does not mean it, gets no further than here."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rocketspark import machine
from rocketspark.console import guard
from rocketspark.console.call import Call, Form, NotAllowed, NotNow
from rocketspark.console.cluster import making
from rocketspark.console.cluster.sampler import figures
from rocketspark.console.content.event_streams import EventStream
from rocketspark.console.content.forms import SMALL_BYTES_MAX
from rocketspark.console.drawing import path_of
from rocketspark.console.routes import ChangeRoute, PageRoute, as_starlette
from rocketspark.console.sessions import COOKIE, is_cookie, new_cookie
from rocketspark.console.settings import ConsoleSettings
from rocketspark.console.state import Console
from rocketspark.errors import RocketSparkError, RouteNotFound, ServerError, TransportError, UsageError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.transport.server_bounds import place_of

log = logging.getLogger("rocketspark.console")
# Whoever asks may cause them.
faults = LimitedLog("rocketspark.console")
STATIC = Path(__file__).parent / "static"
# Pages that are kept up to date, and those of one user, or of one address where nobody logs in.
STREAMS_MAX, STREAMS_OF_ONE_MAX = 200, 50
# The field of a confirmation that says which topic of its name was described.
MADE = "topic-made"
# How often a stream asks whether its user still may see what it tells.
ALLOWED_AGAIN_S = 10.0
FIGURES_MAX = 200
GROUPS_MAX = 8
KEEP_ALIVE_S = 15.0
# How often the cluster is asked whether it serves those without keys.
ASKED_AGAIN_S = 30.0
# Browsers keep the cookie to themselves where a link of another site leads here. A new one would end the session that
# it stands for; so the page is asked for once more, by itself.
AGAIN = '<!doctype html><title>RocketSpark</title><meta http-equiv="refresh" content="0">\n'
# What pages ask for by themselves, again and again while they are open: nobody need sit before them.
BY_THEMSELVES = frozenset(("/events", "/samples", "/messages/tail/events", "/group/progress", "/streams"))
OPEN = (
    "this cluster asks nobody for keys, so that a login proves nothing: turn access control on there, or start the"
    " console on 127.0.0.1 without --login and keys"
)
WHITE = (
    "the white list of this account has the console's address, so that a login proves nothing: take the address out, or"
    " use another account"
)
Handler = Callable[[Request], Awaitable[Response]]


def make_app(settings: ConsoleSettings) -> Starlette:
    """Return the console's application; its lifespan starts and ends all that it keeps. Raises ConfigError."""
    settings.check()
    console = Console(settings)
    ways = _Ways(console)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        console.start()
        try:
            yield
        finally:
            await console.close()

    routes = [
        *as_starlette(ways.page, ways.change),
        Route("/login", ways.open(ways.login), methods=["GET", "POST"]),
        Route("/logout", ways.open(ways.logout), methods=["POST"]),
        Route("/events", ways.page(PageRoute("/events", ways.events)), methods=["GET"]),
        Route("/samples", ways.page(PageRoute("/samples", ways.samples)), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(guard.Guard, names=settings.names, https=settings.is_https, origin=settings.public_url)],
        exception_handlers={404: ways.not_found},
    )
    app.state.console = console
    return app


class _Ways:
    """What stands between a request and a page: cookie, login, token, confirmation, audit, errors in words."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # By whose they are.
        self._streams = Counter[str]()

    def page(self, route: PageRoute) -> Handler:
        """Return what serves a page."""
        return self._handler(route.page)

    def change(self, route: ChangeRoute) -> Handler:
        """Return what serves a change."""

        async def changed(call: Call) -> Response:
            form = await self._form(call)
            if call.read_only:
                raise UsageError("this console is read-only: nothing can be changed here")
            confirmation = await route.words(call, form)
            made = await making.of_topic(call.view, confirmation.topic) if confirmation.topic else ""
            if form.get("confirmed") != "yes":
                kept = {**_kept(form), MADE: made} if made else _kept(form)
                return call.page("confirm.html", action=route.path, form=kept, **confirmation._asdict())
            if making.is_another(form.pop(MADE, ""), made):
                raise UsageError(
                    f"topic {shown(confirmation.topic)} was deleted or made anew since this was described: nothing was"
                    " changed. Open its page again"
                )
            return await self._act(call, route, form, confirmation.title)

        return self._handler(changed)

    async def _act(self, call: Call, route: ChangeRoute, form: Form, words: str) -> Response:
        source = self._source(call)
        try:
            done = await route.act(call, form)
        except BaseException as e:
            why = str(e) if isinstance(e, RocketSparkError) else type(e).__name__
            self._console.changed(call.who, source, route.path, words, why)
            raise
        finally:
            call.view.forget()
        self._console.changed(call.who, source, route.path, words)
        self._console.sessions.note(call.cookie, done.sentence)
        return RedirectResponse(done.to, 303)

    def _source(self, call: Call) -> str:
        return source_of(call.request, self._console.settings.trusted_proxies)

    async def _form(self, call: Call, bytes_max: int = guard.BODY_BYTES_MAX) -> dict[str, str]:
        form = await call.form(bytes_max)
        if not guard.is_token(form.pop("token", ""), call.token):
            raise _Forbidden("this form is from another session: open the page again and repeat it")
        return form

    def open(self, answer: Callable[[Call], Awaitable[Response]]) -> Handler:
        """Return what serves somebody who did not log in."""
        return self._handler(answer, login=False)

    def _handler(self, answer: Callable[[Call], Awaitable[Response]], *, login: bool = True) -> Handler:
        async def handle(request: Request) -> Response:
            name = cookie_name(request)
            given = request.cookies.get(name)
            if given is None and request.headers.get("sec-fetch-site") == "cross-site":
                return HTMLResponse(AGAIN)
            cookie = given if is_cookie(given) and given is not None else new_cookie()
            session = self._console.sessions.find(cookie, used=not is_by_itself(request))
            call = Call(self._console, request, cookie, session)
            if login and call.session is None and await self._must_log_in():
                response = _to_login(call)
            else:
                response = await self._answered(call, answer)
            if cookie != given and name not in response.headers.get("set-cookie", ""):
                self._give_cookie(name, response, cookie)
            return response

        return handle

    async def _must_log_in(self) -> bool:
        """Tell whether nobody gets in without keys: so it is set, or the cluster refuses what is not signed."""
        if self._console.settings.needs_login:
            return True
        try:
            await self._console.own.read("check_keys", lambda admin: admin.check_keys(), ASKED_AGAIN_S)
        except RocketSparkError as e:
            # What else may be wrong the page says.
            return e.no_permission
        return False

    async def _answered(self, call: Call, answer: Callable[[Call], Awaitable[Response]]) -> Response:
        try:
            return await answer(call)
        except NotAllowed:
            return _to_login(call)
        except _Forbidden as e:
            return _error(call, str(e), 403)
        except RocketSparkError as e:
            if call.session is None and e.no_permission:
                return _to_login(call)
            return _error(call, str(e), _status(e))
        except ClientDisconnect:
            # Nobody is there to read it.
            return Response(status_code=400)
        except Exception:
            faults.exception("page %s", call.request.url.path)
            return _error(call, "the console failed here; its log says more", 500)

    def _give_cookie(self, name: str, response: Response, cookie: str) -> None:
        secure = self._console.settings.is_https
        response.set_cookie(name, cookie, httponly=True, samesite="strict", secure=secure, path="/")

    async def not_found(self, request: Request, error: Exception) -> Response:
        """Answer for an address that there is not."""

        async def missing(call: Call) -> Response:
            return _error(call, "there is no such page", 404)

        return await self.open(missing)(request)

    # -- login ---------------------------------------------------------------------------------------------------

    async def login(self, call: Call) -> Response:
        """Show the form, or let somebody in whose keys the cluster takes."""
        after = _own_path(call.query("next"))
        if call.request.method == "GET":
            return call.page("login.html", after=after, error="", name="")
        form = await self._form(call, SMALL_BYTES_MAX)
        name, secret = form.get("access_key", "").strip(), form.get("secret_key", "")
        source = self._source(call)
        host = place_of(source.rpartition(":")[0])
        wait_s = self._console.attempts.wait_s(host)
        error = ""
        if wait_s:
            error = f"too many logins failed: try again in {wait_s} s"
        else:
            # Counted before the cluster answers: who tries many at once has no more tries for it.
            self._console.attempts.failed(host)
            if not name or not secret:
                error = "give both the access key and the secret key"
            else:
                error = await self._enter(call, name, secret)
            if error:
                self._console.refused_login(name, source, error)
            else:
                self._console.attempts.succeeded(host)
        if error:
            return call.page("login.html", status=429 if wait_s else 401, after=after, error=error, name=name)
        response = RedirectResponse(after, 303)
        self._give_cookie(cookie_name(call.request), response, call.cookie)
        return response

    async def _enter(self, call: Call, name: str, secret: str) -> str:
        """Begin a session, with a new cookie; returns why the cluster does not take the keys, "" if it does."""
        view = self._console.view_of(name, secret)
        try:
            await view.ask(lambda admin: admin.check_keys())
            if why := await self._proves_nothing(name):
                await view.close()
                return why
        except RocketSparkError as e:
            await view.close()
            return str(e)
        call.cookie = await self._console.begin_session(name, view)
        return ""

    async def _proves_nothing(self, name: str) -> str:
        """Return why it proves nothing that the cluster takes somebody's keys; "" if it does."""
        refused = await self._refusal(secrets.token_hex(16))
        if refused is None:
            return OPEN if self._console.settings.needs_login else ""
        # Access control 1.0 looks at no secret of an account that has this address in its white list.
        is_2_0 = refused.code == ResponseCode.NO_PERMISSION
        return "" if is_2_0 or await self._refusal(name) is not None else WHITE

    async def _refusal(self, name: str) -> ServerError | None:
        """Return why the cluster does not take a name with a secret that nobody has, None if it does."""
        view = self._console.view_of(name, secrets.token_hex(16))
        try:
            await view.ask(lambda admin: admin.check_keys())
        except ServerError as e:
            return e
        finally:
            await view.close()
        return None

    async def logout(self, call: Call) -> Response:
        """End a session."""
        await self._form(call, SMALL_BYTES_MAX)
        session = self._console.sessions.end(call.cookie)
        if session is not None:
            await session.view.close()
        response = RedirectResponse("/login", 303)
        self._give_cookie(cookie_name(call.request), response, new_cookie())
        return response

    # -- figures -------------------------------------------------------------------------------------------------

    async def _may_see_figures(self, call: Call) -> None:
        """Raise what keeps a user from the state of every broker, or why that cannot be known now."""
        if call.session is None:
            # Nobody logs in where the cluster asks for no keys.
            return
        found = await figures(call.view)
        if found and not all(each.error for each in found):
            return
        # Raises why no broker answers, which says nothing about the user.
        await call.read("check_keys", lambda admin: admin.check_keys())
        raise UsageError(found[0].error if found else "no broker tells whether you may see its figures")

    async def samples(self, call: Call) -> Response:
        """Answer with all samples that are kept, as JSON: the figures that argument `names` lists."""
        await self._may_see_figures(call)
        names = await self._figures_of(call)
        kept = [[at, _of(values, names)] for at, values in self._console.sampler.samples]
        return Response(msgspec.json.encode(kept), media_type="application/json")

    async def _figures_of(self, call: Call) -> frozenset[str]:
        """Return which of the figures that are asked for the user may see: a group's lag as his rules on it say."""
        asked = call.query("names").split(",")[:FIGURES_MAX]
        groups = sorted({name.removeprefix("lag:") for name in asked if name.startswith("lag:")})[:GROUPS_MAX]
        found = {name for name in asked if not name.startswith("lag:")}
        for group in groups:
            try:
                await self._may_see(call, group)
            except RocketSparkError as e:
                log.debug("lag of %s: %s", group, e)
            else:
                found.add(f"lag:{group}")
        return frozenset(found)

    async def _may_see(self, call: Call, group: str) -> None:
        await call.read(("group", group), lambda admin: admin.show_group(group))

    async def _still_allowed(self, call: Call) -> frozenset[str] | None:
        """Return the figures that a stream may go on to tell; None if the user may see none any more."""
        try:
            if call.session is not None:
                await call.read("check_keys", lambda admin: admin.check_keys(), ALLOWED_AGAIN_S)
            await self._may_see_figures(call)
        except (ServerError, UsageError):
            return None
        except RocketSparkError as e:
            # A broker that is away says nothing about the user, and there are no samples meanwhile.
            log.debug("figures for %s: %s", call.who, e)
        return await self._figures_of(call)

    async def events(self, call: Call) -> Response:
        """Answer with each sample once it is taken, as an event of the server."""
        await self._may_see_figures(call)
        one = call.who or place_of(self._source(call).rpartition(":")[0])
        if not self._has_place(one):
            raise NotNow(f"{STREAMS_OF_ONE_MAX} of your pages, or {STREAMS_MAX} in all, are kept up to date already")
        return EventStream(self._stream(call, one))

    def _has_place(self, one: str) -> bool:
        return self._streams[one] < STREAMS_OF_ONE_MAX and self._streams.total() < STREAMS_MAX

    async def _stream(self, call: Call, one: str) -> AsyncGenerator[bytes]:
        if not self._has_place(one):
            # Others began since that was looked at; the page asks once more.
            return
        self._streams[one] += 1
        closing = asyncio.ensure_future(self._console.closing.wait())
        try:
            yield b"retry: 3000\n\n"
            names, asked_s = await self._figures_of(call), machine.monotonic()
            while True:
                came = asyncio.ensure_future(self._console.sampler.next())
                await asyncio.wait({came, closing}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() or call.is_over:
                    came.cancel()
                    return
                if machine.monotonic() - asked_s >= ALLOWED_AGAIN_S:
                    allowed, asked_s = await self._still_allowed(call), machine.monotonic()
                    if allowed is None:
                        came.cancel()
                        return
                    names = allowed
                if came.done():
                    at, values = came.result()
                    yield b"event: sample\ndata: %b\n\n" % msgspec.json.encode((at, _of(values, names)))
                else:
                    came.cancel()
                    yield b": still here\n\n"
        finally:
            closing.cancel()
            self._streams[one] -= 1
            if not self._streams[one]:
                del self._streams[one]


class _Forbidden(Exception):
    """A change that did not come from a page of this session."""


def _of(values: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name in names}


def _kept(form: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in form.items() if name not in ("confirmed", MADE)}


def _to_login(call: Call) -> Response:
    url = call.request.url
    after = url.path + (f"?{url.query}" if url.query else "")
    if call.request.method != "GET" or url.path in ("/events", "/samples"):
        return HTMLResponse("log in first\n", 401)
    target = path_of("/login", next=after)
    if call.wants_part():
        return Response(status_code=401, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


def _own_path(text: str) -> str:
    """Return a path of this console, "/" for what is none."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_own else "/"


def _error(call: Call, text: str, status: int) -> Response:
    if call.wants_part():
        return call.part("error_part.html", status=status, text=text)
    return call.page("error.html", status=status, text=text, code=status)


def _status(error: RocketSparkError) -> int:
    if isinstance(error, RouteNotFound):
        return 404
    if isinstance(error, ServerError):
        not_there = ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST
        return 404 if error.code in not_there else 403 if error.no_permission else 502
    if isinstance(error, TransportError):
        return 502
    return 400 if isinstance(error, UsageError) else 503


def is_by_itself(request: Request) -> bool:
    """Tell whether a page asks by itself, and not somebody who uses it."""
    path = request.url.path
    return path in BY_THEMSELVES and (path != "/streams" or request.headers.get("hx-request") == "true")


def cookie_name(request: Request) -> str:
    """Return the cookie's name: browsers tell the consoles on two ports of a host apart by nothing else."""
    server: Any = request.scope.get("server")
    return f"{COOKIE}_{server[1]}" if server else COOKIE


def source_of(request: Request, proxies: Collection[str] = ()) -> str:
    """Return "host:port" of the browser; port 0 where one of `proxies` says whom it asks for."""
    client: Any = request.client
    if client is None:
        return "unknown:0"
    if client.host in proxies:
        # From the right: what stands left of the first address that is no proxy's is what that one says itself.
        for each in reversed(",".join(request.headers.getlist("x-forwarded-for")).split(",")):
            try:
                address = str(ipaddress.ip_address(each.strip()))
            except ValueError:
                break
            if address not in proxies:
                return f"{address}:0"
    return f"{client.host}:{client.port}"
