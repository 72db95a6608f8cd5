"""How a client talks TLS, and what a failed handshake says to its user.

Rule: nothing is trusted by accident; who wants no check says so (`verify="none"`). A failure is one line that names the
cause and what to do, with no traceback and no secrets."""

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
    """What a client checks of servers, and the certificate that it shows them.

    `ca`: PEM file of the certificates that are trusted; empty: those of the system. `cert`, `key`, `key_password`: the
    client's own pair, for servers that ask for it; with `key` empty it is in the file `cert`. `verify`: `full` checks
    the chain, and that the certificate is for the name or address dialled or for `server_name`; `ca` the chain only;
    `none` nothing.
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
    """Return the TLS settings that clients' options of these names ask for; None for connections without TLS. Raises
    ConfigError.
    """
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


# Codes of the verifying library (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME, _WRONG_ADDRESS = 62, 64
_REFUSED = "certificate required", "bad certificate", "unknown ca", "certificate expired", "certificate unknown"


def explain(error: Exception, address: str, tls: ClientTls, host: str) -> str:
    """Return a line that says why a TLS connection to `address` failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{address}: {_distrust(error, tls, host)}"
    if isinstance(error, ssl.SSLError):
        reason = _reason(error)
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return f"{address} answers, but not in TLS: it is a plain server, or another program's; try without use_tls"
        if refused := refusal(error):
            return f"{address} {refused}"
        if "protocol version" in reason or error.reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"):
            return f"{address} and this client have no version of TLS in common: 1.2 at least is needed"
        if "handshake failure" in reason:
            return f"{address} refused the TLS handshake: no cipher in common, or it wants a certificate (tls_cert)"
        return f"{address}: the TLS handshake failed ({shown(reason, characters_max=100)})"
    return (
        f"{address} ended the connection during the TLS handshake: it takes no TLS there (tls.server.mode=disabled, or"
        " no certificate), or refuses this client"
    )


def refusal(error: BaseException | None) -> str:
    """Return a line if the server's alert in `error` is about this client's certificate; "" if it is not."""
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = _reason(error)
    if "certificate required" in reason:
        return "wants a certificate of this client: give tls_cert and tls_key"
    if any(text in reason for text in _REFUSED):
        return f"refuses this client's certificate ({shown(reason, characters_max=100)}): give one that it trusts"
    return ""


def _distrust(error: ssl.SSLCertVerificationError, tls: ClientTls, host: str) -> str:
    code, name = error.verify_code, shown(tls.name_of(host))
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return (
            f"its certificate is not for {name}; set tls_server_name to a name in it, or tls_verify=ca to check no name"
        )
    if code == _EXPIRED:
        return "its certificate has expired: it must be renewed there"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: look at the clocks of both sides"
    trusted = f"by those in {shown(tls.ca)}" if tls.ca else "by the system's"
    return (
        f"its certificate is not trusted {trusted} ({shown(error.verify_message, characters_max=100)}); give the"
        " certificate of its issuer (tls_ca)"
    )


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).replace("_", " ").lower()


def server_side(error: Exception) -> str:
    """Return a line for a server's log that says why a handshake with a client failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({shown(error.verify_message, characters_max=100)})"
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it showed no certificate (tls.server.need.client.auth=require)"
        reason = _reason(error)
        if "unknown ca" in reason or "bad certificate" in reason or "certificate unknown" in reason:
            return f"it does not trust this server's certificate ({shown(reason, characters_max=100)})"
        return shown(reason, characters_max=100)
    if isinstance(error, ConnectionAbortedError):
        return str(error)
    return "it ended the connection during the handshake"
