"""The console's HTTP server, in the running loop: uvicorn on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rocketspark import machine
from rocketspark.console.app import make_app
from rocketspark.console.content.decoded import SCHEMA_CHARACTERS_MAX
from rocketspark.console.settings import ConsoleSettings
from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.server_bounds import place_of
from rocketspark.transport.tls.client_tls import server_side
from rocketspark.transport.tls.handshakes import Handshakes
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.settings import TlsSettings
from rocketspark.transport.tls.stream import TlsStream

CONNECTIONS_MAX = 500
# Of one address, so that the others keep most of them; proxies that are trusted ask for many.
CONNECTIONS_OF_HOST_MAX = 100
# How long a connection may take until its request is there, the first one or another.
REQUEST_S = 10.0
# How long an answer waits for a client that reads nothing of it.
UNREAD_S = 60.0
# Of a request's line and headers: the address of a page may hold a schema, with three bytes for most characters.
HEAD_BYTES_MAX = 3 * SCHEMA_CHARACTERS_MAX + (16 << 10)

_log = LimitedLog("rocketspark.console")


class _FewLines(logging.Filter):
    """Lets what strangers can cause into the log a few times, then as a count."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        _log.warning(str(record.msg), *(record.args if isinstance(record.args, tuple) else ()))
        return False


# What uvicorn says of connections.
_http = logging.getLogger("uvicorn.error.console")
_http.addFilter(_FewLines())


class _Requests(h11.Connection):
    """Reads requests whose length is told at their head, as browsers' are: of a body in pieces each takes some 20 us,
    and one read may hold 40,000.
    """

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body in pieces", error_status_hint=411)
        return event


class _Connection(H11Protocol):
    """A connection of HTTP that is closed if no request comes of it, if its client does not read, or if its address has
    too many. `place`: what counts as its address; `tls`: the certificate, None for a console without TLS.

    It counts from its beginning on, its handshake of TLS as well: who never does that is silent too.
    """

    address = place = ""
    proxies: Collection[str] = ()
    tls: ServerContexts | None = None
    handshakes: Handshakes
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn, self.logger = _Requests(h11.SERVER, HEAD_BYTES_MAX), _http
        super().connection_made(transport)
        # Told of what waits for the client however little it is: so what a closed connection waits for is known too.
        # With 0 TLS would be told that an empty buffer is full.
        transport.set_write_buffer_limits(1)
        host = self.client[0] if self.client else ""
        self.address, self.place = host, place_of(host)
        # The loop of servers has one time for all that it takes at once.
        self._since = machine.monotonic()
        others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
        of_host = [each for each in others if each.place == self.place]
        # One that has asked nothing yet gives way, so that whoever asks at once gets in.
        if len(of_host) >= CONNECTIONS_OF_HOST_MAX and host not in self.proxies and not _give_way(of_host):
            transport.abort()
            return
        if len(others) >= CONNECTIONS_MAX - 1:
            _give_way(others)
        self._waiting = self.loop.call_later(REQUEST_S, self._close_silent)
        if self.tls is not None and self.tls.context is not None:
            self._secure(transport, self.tls.context)

    def _secure(self, below: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Go on over TLS."""

        def shaken(error: Exception | None) -> None:
            self.handshakes.remove(stream)
            if error is None:
                # The protocol's own part of it alone: this one is counted.
                H11Protocol.connection_made(self, stream)
            else:
                _log.info("%s: no TLS connection: %s", self.address, server_side(error))

        stream = TlsStream(self, context, server_side=True, shaken=shaken)
        self.handshakes.add(stream)
        below.set_protocol(stream)
        stream.connection_made(below)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None and self._is_between():
            self._waiting = self.loop.call_later(REQUEST_S, self._close_silent)
        super().data_received(data)
        if self._waiting is not None and not self._is_between():
            self._waiting.cancel()
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._unread):
            if timer is not None:
                timer.cancel()
        self._waiting = self._unread = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_soon()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None
        super().resume_writing()

    def _look_soon(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(UNREAD_S, self._look, left)

    def _look(self, before: int) -> None:
        """Close if no byte has left since: closing alone would wait for them for ever."""
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._look_soon()

    @property
    def silent_since(self) -> float | None:
        """When it was opened, if no request has come of it yet and it is open still; else None."""
        is_silent = self._waiting is not None and self.cycle is None and not self.transport.is_closing()
        return self._since if is_silent else None

    def give_way(self) -> None:
        """Close it for another one."""
        self._close_silent()

    def _is_between(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_silent(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.abort()


def _give_way(connections: Iterable[_Connection]) -> bool:
    """Close the connection that has been silent for the longest time; tells whether there is one."""
    silent = [(since, each) for each in connections if (since := each.silent_since) is not None]
    if not silent:
        return False
    min(silent, key=lambda pair: pair[0])[1].give_way()
    return True


class _Server(uvicorn.Server):
    """Leaves the signals to the process that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConsoleServer:
    """A console on its port. `address`: "host:port" once it is started; `url`: what a browser opens."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._app = make_app(settings)
        s = settings
        tls = TlsSettings(mode="enforcing", cert_path=s.tls_cert, key_path=s.tls_key, key_password=s.tls_key_password)
        self._tls = ServerContexts(tls) if s.tls_cert else None
        self._handshakes = Handshakes()
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = ""

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"{'https' if self._settings.tls_cert else 'http'}://{self.address}/"

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port cannot be had, or a certificate cannot be read."""
        proxies = frozenset(self._settings.trusted_proxies)
        listening = _listen(self._settings.host, self._settings.port)
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        self.address = f"{host}:{listening.getsockname()[1]}"
        known = {"proxies": proxies, "tls": self._tls, "handshakes": self._handshakes}
        config = uvicorn.Config(
            self._app,
            http=type("Connection", (_Connection,), known),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=3,
            # Addresses in headers are whoever's who sends them.
            proxy_headers=False,
        )
        config.load()
        if self._tls is not None:
            try:
                self._tls.load()
            except ConfigError as e:
                listening.close()
                raise ConfigError(f"the console's certificate or key cannot be used: {e}") from None
            self._tls.watch()
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started:
            if self._task.done():
                listening.close()
                raise self._task.exception() or ConfigError("the console did not start; its log says why")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Stop serving."""
        if self._tls is not None:
            self._tls.stop()
        if self._server is not None and self._task is not None:
            self._app.state.console.closing.set()
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
        self._handshakes.close()


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as e:
        listening.close()
        why = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be had ({e.strerror})"
        raise ConfigError(f"port {port} on {host} {why}: choose another (0 takes a free one)") from None
    return listening
