"""The signatures of a server's own requests, by innerClientAuthenticationCredentials. Rule: no secret is shown."""

from __future__ import annotations

import msgspec

from rocketspark import machine
from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.protocol import request_signing
from rocketspark.transport.request_frames import Reply

INNER_KEY = "innerClientAuthenticationCredentials"


class _Credentials(msgspec.Struct, rename="camel"):
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""


class RequestSigner:
    """Signs each request of the connections that have it as their hooks."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token or None

    @property
    def credentials(self) -> tuple[str, str]:
        """Return access key and secret."""
        return self._access_key, self._secret.decode()

    def __repr__(self) -> str:
        return f"RequestSigner({self._access_key!r})"

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Sign a request, and the time with it."""
        ext[request_signing.SIGNED_TIME] = str(machine.time_ns() // 1_000_000)
        request_signing.sign(ext, body, self._access_key, self._secret, self._token)

    def after_response(self, address: str, code: int, reply: Reply | None, error: BaseException | None) -> None:
        """Do nothing: only requests are signed."""


def inner_signer(text: str) -> RequestSigner | None:
    """Return the signer of a setting's JSON, {"accessKey":…,"secretKey":…}; None for no text. Raises ConfigError."""
    if not text.strip():
        return None
    try:
        found = typed_json.decode(text, _Credentials)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        found = _Credentials()
    if not found.access_key.strip() or not found.secret_key.strip():
        raise ConfigError(f'{INNER_KEY} needs {{"accessKey":"…","secretKey":"…"}}')
    return RequestSigner(found.access_key, found.secret_key, found.security_token)
