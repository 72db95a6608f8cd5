"""A client's TLS connection. Rule: it is a peer's only once the handshake is done; what went wrong is one line."""

from __future__ import annotations

import asyncio

from rocketspark.errors import ConfigError, NotSent
from rocketspark.model.text import shown
from rocketspark.transport.dialing import connect_protocol
from rocketspark.transport.peer import Peer
from rocketspark.transport.tls.client_tls import ClientTls, explain
from rocketspark.transport.tls.stream import TlsStream


async def secured(peer: Peer, host: str, port: int, tls: ClientTls) -> None:
    """Make a TLS connection for `peer`. Raises OSError if nobody answers, NotSent if the handshake fails."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def shaken(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            # At once: what came with the end of the handshake is the peer's.
            peer.connection_made(stream)
            done.set_result(None)
        else:
            done.set_exception(NotSent(explain(error, peer.address, tls, host), address=peer.address))

    name = tls.name_of(host)
    try:
        stream = TlsStream(peer, tls.context(), server_side=False, server_name=name, shaken=shaken)
    except ConfigError as e:
        # Files that were good when the client was made: they may be being replaced.
        raise NotSent(str(e), address=peer.address) from None
    except ValueError:
        raise ConfigError(f"{shown(name)!r} is no name that a certificate can be for: set tls_server_name") from None
    try:
        await connect_protocol(lambda: stream, host, port)
        await done
    except BaseException:
        stream.abort()
        raise
    finally:
        # Nobody asks for the outcome after a cancellation.
        if not done.cancel() and not done.cancelled():
            done.exception()
