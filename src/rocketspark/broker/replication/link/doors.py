"""Who may connect to the replication port where access control is on: brokers of this cluster that prove it, in TLS.

Rule: a connection that has not proved who it is counts as none: it takes no place of a replica and is told nothing of
the log. RocketMQ's own brokers cannot prove who they are; their hosts are named in haTrustedAddresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import cast

from rocketspark.broker.replication.link import greeting
from rocketspark.broker.replication.link.greeting import Credentials, MasterGreeting, SlaveGreeting
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, ReplicationError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.transport.dialing import connect_protocol
from rocketspark.transport.server_bounds import OF_PROCESS, Descriptors, place_of
from rocketspark.transport.tls.client_tls import ClientTls, explain
from rocketspark.transport.tls.first_bytes import HANDSHAKE_BYTE
from rocketspark.transport.tls.handshakes import Handshakes
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.stream import Above, TlsStream

log = LimitedLog("rocketspark.broker.replication")

# Those that have not said who they are; one more makes the oldest of the host with the most leave.
WAITING_MAX = 64
TRUSTED = "haTrustedAddresses"

Connect = Callable[[Callable[[], asyncio.Protocol], str, int], Awaitable[None]]


class TrustedHosts:
    """The addresses of brokers that need not prove who they are (haTrustedAddresses). Raises ConfigError."""

    def __init__(self, text: str) -> None:
        self._networks = []
        for word in text.replace(",", ";").split(";"):
            if word.strip():
                try:
                    self._networks.append(ipaddress.ip_network(word.strip()))
                except ValueError:
                    raise ConfigError(
                        f"{TRUSTED}={shown(word.strip(), characters_max=60)!r}: addresses or networks are needed, as"
                        " in 10.0.0.8;10.1.0.0/16"
                    ) from None

    def __contains__(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        known = getattr(address, "ipv4_mapped", None) or address
        return any(known in network for network in self._networks)


class Hall:
    """Keeps the connections at a master's replication port that have not proved yet that they are brokers.

    `takes`: returns whether the port takes connections now.
    """

    def __init__(self, settings: BrokerSettings, *, descriptors: Descriptors = OF_PROCESS) -> None:
        self.settings = settings
        self.credentials = credentials_of(settings)
        self.trusted = TrustedHosts(settings.ha_trusted)
        self.contexts = ServerContexts(settings.tls)
        self.takes_plain = settings.tls.mode != "enforcing"
        # Those that wait, and those that are on their way out.
        self.handshakes = Handshakes(count_max=2 * WAITING_MAX)
        self.descriptors = descriptors
        self.waiting: dict[MasterDoor, None] = {}
        self.takes: Callable[[], bool] = lambda: True

    def start(self, host: str) -> None:
        """Read the server certificate for `host`. Raises ConfigError."""
        if self.contexts.settings.concerns_first_bytes:
            self.contexts.load([host, self.settings.host])
            self.contexts.watch()

    def close(self) -> None:
        """Close the connections that have not proved who they are, and stop watching the certificate."""
        self.contexts.stop()
        self.handshakes.close()
        for door in list(self.waiting):
            door.close("the broker ends")


class MasterDoor(asyncio.Protocol):
    """A slave's connection at the master's replication port, until the slave has proved who it is.

    `make`: returns the protocol that takes the connection over then.
    """

    def __init__(self, hall: Hall, make: Callable[[], asyncio.Protocol]) -> None:
        self._hall, self._make = hall, make
        self._below: asyncio.Transport | None = None
        self._stream: TlsStream | None = None
        self._greeting: MasterGreeting | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are of no class of asyncio's.
        below = self._below = cast(asyncio.Transport, transport)
        name = below.get_extra_info("peername") or ("", 0)
        self._host, self.address = str(name[0]), f"{name[0]}:{name[1]}"
        hall = self._hall
        if not hall.takes() or not hall.descriptors.take():
            below.abort()
            return
        hall.waiting[self] = None
        if len(hall.waiting) > WAITING_MAX:
            ((place, _),) = Counter(place_of(door._host) for door in hall.waiting).most_common(1)
            oldest = next(door for door in hall.waiting if place_of(door._host) == place)
            oldest.close("too many wait at this port that do not say who they are")
        limit_s = hall.settings.ha_housekeeping_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(limit_s, self.close, "it did not say who it is")

    def data_received(self, data: bytes) -> None:
        if self not in self._hall.waiting:
            return
        if self._greeting is None and self._stream is None and data[0] == HANDSHAKE_BYTE:
            self._secure(data)
            return
        if self._greeting is None and data[0] != greeting.MAGIC[0]:
            if self._host in self._hall.trusted:
                self._let_in(data)
            else:
                self.close("it does not say that it is a broker of this cluster, and its host is not in " + TRUSTED)
            return
        self._greet(data)

    def _greet(self, data: bytes) -> None:
        credentials = self._hall.credentials
        if credentials is None:
            self.close("this broker has no innerClientAuthenticationCredentials, so nobody can prove who he is")
            return
        if self._stream is None and not self._hall.takes_plain:
            self.close("it speaks plain, and only TLS is taken here (tls.server.mode=enforcing)")
            return
        if self._greeting is None:
            self._greeting = MasterGreeting(credentials, _channel(self._stream))
        try:
            answer = self._greeting.received(data)
        except ReplicationError as e:
            self._write(greeting.frame(greeting.REFUSED, b"this broker is not known to it"))
            self.close(str(e))
            return
        self._write(answer)
        if self._greeting.is_done:
            self._let_in(self._greeting.rest)

    def _write(self, data: bytes) -> None:
        transport = self._stream or self._below
        if transport is not None and data:
            transport.write(data)

    def _secure(self, data: bytes) -> None:
        context, below, handshakes = self._hall.contexts.context, self._below, self._hall.handshakes
        if context is None or below is None:
            self.close("it speaks TLS, and there is no certificate here")
            return
        stream = self._stream = TlsStream(
            self, context, server_side=True, shaken=lambda error: handshakes.remove(stream)
        )
        handshakes.add(stream)
        stream.begin(below, data)

    def _let_in(self, data: bytes) -> None:
        below, stream = self._below, self._stream
        self._leave()
        if below is None or below.is_closing():
            return
        _hand_over(stream or below, self._make(), data)

    def close(self, why: str) -> None:
        """Close the connection and log why."""
        if self in self._hall.waiting:
            log.warning("%s was not let in for replication: %s", self.address, why)
            transport = self._stream or self._below
            self._leave()
            if transport is not None:
                transport.close()

    def _leave(self) -> None:
        if self in self._hall.waiting:
            del self._hall.waiting[self]
            self._hall.descriptors.give_back()
        if self._timer is not None:
            self._timer.cancel()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()


def _hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, rest: bytes) -> None:
    """Give a connection to another protocol, beginning with what was read behind the greeting."""
    if isinstance(transport, TlsStream):
        transport.go_on_with(cast(Above, protocol))
    else:
        transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if rest:
        protocol.data_received(rest)


def _channel(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the client's last word of a TLS handshake, which tells a channel from every other; nothing of a plain one.

    No session is resumed here, so both sides mean the same by it (RFC 5929, tls-unique; also with TLS 1.3).
    """
    found = None if transport is None else transport.get_extra_info("ssl_object")
    return b"" if found is None else found.get_channel_binding("tls-unique") or b""


class SlaveDoor(asyncio.Protocol):
    """A slave's connection until the master has proved who it is; `make` returns the protocol that takes it over."""

    def __init__(self, credentials: Credentials, make: Callable[[], asyncio.Protocol], address: str) -> None:
        self._credentials = credentials
        self._make = make
        self._transport: asyncio.Transport | None = None
        self.address = address
        self.entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._greeting = SlaveGreeting(self._credentials, _channel(transport))
        self._transport.write(self._greeting.hello())

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self.entered.done():
            return
        try:
            answer = self._greeting.received(data)
        except ReplicationError as e:
            self.fail(e)
            return
        if answer:
            transport.write(answer)
        if self._greeting.is_done:
            protocol = self._make()
            self.entered.set_result(None)
            _hand_over(transport, protocol, self._greeting.rest)

    def fail(self, error: Exception) -> None:
        """Close the connection; whoever waits for `entered` gets the error."""
        if not self.entered.done():
            self.entered.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        text = "the master ended the connection without a greeting: it is no master, or has no access control"
        self.fail(ReplicationError(text, reason="closed"))


def credentials_of(settings: BrokerSettings) -> Credentials | None:
    """Return the access key and secret with which brokers sign their own requests; None if none are set."""
    found = settings.access.inner_credentials()
    return None if found is None else found[:2]


def is_guarded(settings: BrokerSettings) -> bool:
    """Tell whether slaves must prove who they are: they must wherever access control is on."""
    return settings.acl or settings.authentication or settings.authorization


def hall_of(settings: BrokerSettings) -> Hall | None:
    """Return what checks the connections to a broker's replication port; None without access control.

    Raises ConfigError.
    """
    return Hall(settings) if is_guarded(settings) else None


def connect_of(settings: BrokerSettings) -> Connect:
    """Return the function by which a slave connects to its master. Raises ConfigError."""
    trusted = TrustedHosts(settings.ha_trusted)
    credentials = credentials_of(settings)
    if credentials is None or not is_guarded(settings):
        return connect_protocol
    tls = settings.tls.client(settings.use_tls)

    async def connect(make: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        if host in trusted:
            await connect_protocol(make, host, port)
        else:
            await _enter(SlaveDoor(credentials, make, f"{host}:{port}"), host, port, tls)

    return connect


async def _enter(door: SlaveDoor, host: str, port: int, tls: ClientTls | None) -> None:
    """Connect, and wait until both sides have proved who they are. Raises OSError, ReplicationError."""
    stream: TlsStream | None = None
    if tls is not None:

        def shaken(error: Exception | None) -> None:
            if error is None:
                door.connection_made(made)
            else:
                # A connection that ended may be of a master that takes office: another try will do.
                reason = "tls" if isinstance(error, ssl.SSLError) else "closed"
                door.fail(ReplicationError(explain(error, door.address, tls, host), reason=reason))

        try:
            made = stream = TlsStream(
                door, tls.context(), server_side=False, server_name=tls.name_of(host), shaken=shaken
            )
        except (ConfigError, ValueError) as e:
            raise ReplicationError(str(e), reason="tls") from None
    try:
        await connect_protocol(lambda: stream or door, host, port)
        await door.entered
    except BaseException:
        # Also by whoever waits no longer: a master that hangs would be connected to once more with every try.
        door.fail(ReplicationError("given up", reason="closed"))
        if stream is not None:
            stream.abort()
        raise
    finally:
        if not door.entered.cancelled():
            door.entered.exception()
