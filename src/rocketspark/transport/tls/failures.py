"""What a failed handshake says to a user: one line that names the cause and what to do. No traceback, no secrets."""

from __future__ import annotations

import ssl

from rocketspark.model.text import shown
from rocketspark.transport.tls.client_tls import ClientTls

# Codes of the verifying library (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME, _WRONG_ADDRESS = 62, 64
_REFUSED = "certificate required", "bad certificate", "unknown ca", "certificate expired", "certificate unknown"


def explain(error: Exception, address: str, tls: ClientTls, host: str) -> str:
    """Return why a TLS connection to an address failed."""
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
    """Return what a server's alert says about this client's certificate; empty if it says nothing about it."""
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
    """Return why a handshake failed, for a server's log."""
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
