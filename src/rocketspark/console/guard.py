"""What stands before every page: which names the console answers to, what browsers may do with its answers, and that
a change comes from a page of its own.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " font-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers send Origin: null from our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
BODY_BYTES_MAX = 8 << 20


class Guard:
    """Refuses what asks for another host than the console's, which a site does whose name leads here (DNS rebinding),
    and puts the headers of safety on each answer. `names`: hosts besides IP addresses and "localhost"; `origin`: the
    console's own behind a proxy that ends TLS, "" without one.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), *, https: bool = False, origin: str = "") -> None:
        self._app = app
        self._names = {name.lower() for name in names} | {"localhost"}
        self._https = https
        self._origin = origin.rstrip("/").lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._https:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
                if not scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        app: ASGIApp = self._app
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            app = PlainTextResponse("this console does not answer to that name: see --public-name\n", 421)
        elif scope["method"] == "POST" and not is_from_here(headers, scope["scheme"], self._origin):
            app = PlainTextResponse("a change has to come from a page of this console\n", 403)
        elif scope["method"] != "POST" and is_drawn_in_elsewhere(headers):
            app = PlainTextResponse("pages of this console are opened, not drawn in by pages of others\n", 403)
        elif int(headers.get("content-length") or 0) > BODY_BYTES_MAX:
            app = PlainTextResponse(f"more than {BODY_BYTES_MAX} bytes\n", 413)
        await app(scope, receive, guarded)

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_name(host: str) -> str:
    """Return a Host header's name or address without its port, in small letters."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def is_from_here(headers: Headers, scheme: str, public: str = "") -> bool:
    """Tell whether a browser says that a request comes from a page of this origin, or of `public`, by which it reaches
    the console through a proxy. One that says nothing does not.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    if site is not None and site != "same-origin":
        return False
    return origin is None or origin in (f"{scheme}://{headers.get('host', '')}", public or None)


def is_drawn_in_elsewhere(headers: Headers) -> bool:
    """Tell whether a page of somebody else's asks, for a picture, a frame or a script of its own. It could read
    nothing, but have brokers searched and streams opened. A link that is followed is none of that.
    """
    opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opened


def is_token(given: str, wanted: str) -> bool:
    """Tell whether a form brought the token of its session."""
    return hmac.compare_digest(given.encode(), wanted.encode())
