"""How a client talks TLS. Rule: nothing is trusted by accident; who wants no check says so (`verify="none"`)."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import lru_cache

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.transport.tls import certificate_files

VERIFY = ("full", "ca", "none")


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """What a client checks and shows.

    `ca`: file of the certificates that are trusted, PEM; empty: those of the system. `cert`, `key`, `key_password`:
    the client's own, for servers that ask for it; `key` empty: it stands in `cert`. `verify`: `full` checks the chain
    and that the certificate is for the name or address dialled, or for `server_name`; `ca` the chain only; `none`
    nothing.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    verify: str = "full"
    server_name: str = ""

    def __post_init__(self) -> None:
        if self.verify not in VERIFY:
            raise ConfigError(f"tls_verify={shown(self.verify)!r}: {', '.join(VERIFY)} are known")
        if self.key and not self.cert:
            raise ConfigError("tls_key is given without tls_cert: give the certificate that it belongs to")
        if self.key_password and not self.cert:
            raise ConfigError("tls_key_password is given without tls_cert: give the certificate and its key")
        if self.server_name and self.verify != "full":
            raise ConfigError(f"tls_server_name is not checked with tls_verify={self.verify}: remove one of them")

    def context(self) -> ssl.SSLContext:
        """Return the context for new connections, from the files as they are now. Raises ConfigError."""
        return _context(self, *(certificate_files.stamp(path) for path in (self.ca, self.cert, self.key)))

    def name_of(self, host: str) -> str:
        """Return the name or address that a server's certificate must be for, given the one that is dialled."""
        return self.server_name or host.partition("%")[0]


def client_tls(
    use_tls: bool,
    *,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_key_password: str | None = None,
    tls_verify: str | None = None,
    tls_server_name: str | None = None,
) -> ClientTls | None:
    """Return what clients' options of these names ask for; None for plain connections. Raises ConfigError."""
    given = {
        "tls_ca": tls_ca,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_key_password": tls_key_password,
        "tls_verify": tls_verify,
        "tls_server_name": tls_server_name,
    }
    wanted = {name: os.fspath(value) for name, value in given.items() if value}
    if not use_tls:
        if wanted:
            raise ConfigError(f"{next(iter(wanted))} is given, but use_tls is not: set use_tls=True, or remove it")
        return None
    tls = ClientTls(**{name.removeprefix("tls_"): value for name, value in wanted.items()})
    # Files that cannot be used are told at once, not with the first connection.
    tls.context()
    return tls


@lru_cache(maxsize=16)
def _context(tls: ClientTls, *stamps: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.verify != "full":
        context.check_hostname = False
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca:
        certificate_files.trust(context, tls.ca, "tls_ca")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.cert:
        certificate_files.load_pair(context, tls.cert, tls.key, tls.key_password, ("tls_cert", "tls_key"))
    return context
