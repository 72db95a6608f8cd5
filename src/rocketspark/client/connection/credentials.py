"""A client's secrets: read from files, and used to sign requests. Rule: an error never shows what is in such a file."""

from __future__ import annotations

from rocketspark.client.hooks import Hooks
from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.protocol import request_signing

FILE_BYTES_MAX = 4096


def read_secret(path: str, name: str) -> str:
    """Return the first line of a file. Raises ConfigError; `name`: of the option or variable that names the file."""
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "no UTF-8 text"
        raise ConfigError(f"{name}={shown(path)} cannot be read: {reason}") from None
    line = text.partition("\n")[0].strip()
    if not line:
        raise ConfigError(f"{name}={shown(path)} is empty: its first line is the secret")
    return line


class Signer(Hooks):
    """Adds the access key, the security token if there is one, and the signature to every request.

    Rule: ACL 1.0 and the signature of ACL 2.0 (AclClientRPCHook).
    """

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        if not access_key or not secret_key:
            raise ConfigError("access_key and secret_key belong together: give both")
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Sign a request."""
        request_signing.sign(ext, body, self._access_key, self._secret, self._token)
