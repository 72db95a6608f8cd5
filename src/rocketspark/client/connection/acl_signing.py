"""The signing of requests with an access key (rule: ACL 1.0 and the signature of ACL 2.0, AclClientRPCHook)."""

from __future__ import annotations

import base64
import hashlib
import hmac

from rocketspark.client.hooks import Hooks
from rocketspark.errors import ConfigError

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"


class Signer(Hooks):
    """Adds the access key, the security token if there is one, and the signature to every request."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        if not access_key or not secret_key:
            raise ConfigError("access_key and secret_key belong together: give both")
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._token = security_token

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Add the signature: HMAC-SHA1 over the values of all ext fields in the order of their names, and the body."""
        ext[ACCESS_KEY] = self._access_key
        if self._token:
            ext[SECURITY_TOKEN] = self._token
        ext.pop(SIGNATURE, None)
        content = "".join(ext[name] for name in sorted(ext)).encode() + body
        ext[SIGNATURE] = base64.b64encode(hmac.new(self._secret, content, hashlib.sha1).digest()).decode()
