"""The signature of a request: what is signed, and with what (rule: AclClientRPCHook; the same in ACL 1.0 and 2.0).

The values of all ext fields, in the order of their names, and then the body are signed as they are on the wire: whoever
checks a signature does so before anything is normalised. A signature does not show that somebody sends a recorded
request a second time; our own servers add the time, which is signed too.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec

from rocketspark.errors import FrameError
from rocketspark.model import typed_json
from rocketspark.model.text import LONG_MAX, whole_number

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
# Clients up to 4.9.3 add this field to a query of messages after they signed it.
UNSIGNED_QUERY_FIELD = "_UNIQUE_KEY_QUERY"
UNSIGNED_QUERY_VERSION_MAX = 399

# Ours alone: when a request was signed, in ms.
SIGNED_TIME = "SignedTime"
# Ours alone, in a proxy's heartbeats and requests that name a message by its place: for which user it signs, and where
# he is.
FOR_USER, FOR_HOST = "ForUser", "ForHost"
# Clocks differ.
AHEAD_MS_MAX = 5 * 60_000

_INNER = bytes(c ^ 0x36 for c in range(256))
_OUTER = bytes(c ^ 0x5C for c in range(256))
_BLOCK_BYTES = 64

# The values in their order, by the names as they came, of requests that were signed well: to sort them takes longer
# than to sign a short request. Begun anew when it is full; longer names are sorted each time.
_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}
ORDERS_MAX = 256
ORDER_CHARS_MAX = 512

_texts = typed_json.decoder(dict[str, str])
_values = typed_json.decoder(dict[str, Any])


def sign(ext: dict[str, str], body: bytes, access_key: str, secret: bytes, security_token: str | None = None) -> None:
    """Add access key, security token and signature to the ext fields of a request; an older signature is replaced."""
    ext[ACCESS_KEY] = access_key
    if security_token:
        ext[SECURITY_TOKEN] = security_token
    ext.pop(SIGNATURE, None)
    ext[SIGNATURE] = signature(secret, signed_bytes(ext, body))


def signed_bytes(ext: Mapping[str, str], body: bytes, version: int | None = None) -> bytes:
    """Return the bytes that a request's signature covers. `version`: the sender's, for whoever checks a signature."""
    return "".join([ext[name] for name in signed_names(ext, version)]).encode("utf-8", "replace") + body


def signed_names(ext: Mapping[str, str], version: int | None = None) -> list[str]:
    """Return the names of the ext fields that are signed, in the order in which their values are."""
    names = sorted(ext)
    if not "".join(names).isascii():
        # Java sorts by UTF-16 units.
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    if SIGNATURE in ext:
        names.remove(SIGNATURE)
    if version is not None and version <= UNSIGNED_QUERY_VERSION_MAX and UNSIGNED_QUERY_FIELD in ext:
        names.remove(UNSIGNED_QUERY_FIELD)
    return names


def signature(secret: bytes, content: bytes) -> str:
    """Return the signature: HMAC-SHA1, in base64."""
    return _signature(secret, content).decode()


def is_signature(told: bytes, secret: bytes, content: bytes, body: bytes | memoryview) -> bool:
    """Tell whether `told` is the signature of this content and body. A wrong one takes as long as a right one."""
    return hmac.compare_digest(_signature(secret, content, body), told)


def _signature(secret: bytes, content: bytes, body: bytes | memoryview = b"") -> bytes:
    # The two halves of RFC 2104; hmac's own copy takes longer than to sign a short request.
    inner, outer = _begun(secret)
    mac = inner.copy()
    mac.update(content)
    if body:
        mac.update(body)
    whole = outer.copy()
    whole.update(mac.digest())
    return binascii.b2a_base64(whole.digest(), newline=False)


@lru_cache(maxsize=1024)
def _begun(secret: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    key = (hashlib.sha1(secret).digest() if len(secret) > _BLOCK_BYTES else secret).ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha1(key.translate(_INNER)), hashlib.sha1(key.translate(_OUTER))


def is_signed_with(secret: bytes, ext: Mapping[str, str], body: bytes, version: int) -> bool:
    """Tell whether the request was signed with this secret. A wrong signature takes as long as a right one."""
    told = ext.get(SIGNATURE)
    if told is None:
        return False
    came = tuple(ext)
    values_of = _orders.get(came)
    if values_of is None:
        content = signed_bytes(ext, body, version)
    else:
        content = "".join(values_of(ext)).encode("utf-8", "replace") + body
    is_good = hmac.compare_digest(_signature(secret, content), told.encode("utf-8", "replace"))
    if is_good and values_of is None:
        _keep_order(came, signed_names(ext, version))
    return is_good


def _keep_order(came: tuple[str, ...], names: list[str]) -> None:
    # Whether the field of queries is signed depends on the version too.
    if len(names) < 2 or UNSIGNED_QUERY_FIELD in came or sum(map(len, came)) > ORDER_CHARS_MAX:
        return
    if len(_orders) >= ORDERS_MAX:
        _orders.clear()
    _orders[came] = itemgetter(*names)


def is_too_old(ext: Mapping[str, str], now_ms: int, age_max_ms: int) -> bool:
    """Tell whether a signed request was made longer ago than `age_max_ms`, or later than clocks may differ.

    False for a request that does not tell its time, and if `age_max_ms` is 0.
    """
    told = ext.get(SIGNED_TIME)
    if told is None or not age_max_ms:
        return False
    signed_ms = whole_number(told, low=0, high=LONG_MAX)
    return signed_ms is None or not is_recent(signed_ms, now_ms, age_max_ms)


def is_recent(signed_ms: int, now_ms: int, age_max_ms: int) -> bool:
    """Tell whether a request that was signed at `signed_ms` is at most `age_max_ms` old, and not of the future."""
    return -AHEAD_MS_MAX <= now_ms - signed_ms <= age_max_ms


def ext_texts(ext: bytes | msgspec.Raw) -> dict[str, str]:
    """Return the ext fields of a JSON header as the texts that were signed. Raises FrameError for what is no object."""
    try:
        return _texts.decode(ext)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(f"the ext fields are no JSON: {e}") from e
    try:
        # Not by RocketMQ's clients: a value that is no text counts as it is written.
        return {name: _as_text(value) for name, value in _values.decode(ext).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if bytes(ext).strip() == b"null":
            return {}
        raise FrameError("the ext fields are no JSON object") from None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
