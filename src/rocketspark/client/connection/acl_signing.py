"""The signing of requests with an access key (rule: ACL 1.0 and the signature of ACL 2.0, AclClientRPCHook)."""

from __future__ import annotations

from rocketspark.client.hooks import Hooks
from rocketspark.errors import ConfigError
from rocketspark.protocol import request_signing


class Signer(Hooks):
    """Adds the access key, the security token if there is one, and the signature to every request."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        if not access_key or not secret_key:
            raise ConfigError("access_key and secret_key belong together: give both")
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Sign a request."""
        request_signing.sign(ext, body, self._access_key, self._secret, self._token)
