"""How RocketSpark's brokers prove to each other who they are, before RocketMQ's protocol begins. Without a socket.

    slave -> master   hello      16 random bytes
    master -> slave   challenge  16 random bytes
    slave -> master   proof      a code made with the brokers' secret of both, of who says it and of the TLS channel;
                                 the access key
    master -> slave   welcome    its own code; or refused, with why

Each message begins with RSHA, its kind and its size.

Rules: the slave proves first. Neither side accepts its own words sent back to it. A greeting is valid once, and for one
TLS channel: somebody between the two, who could be there where certificates are not checked, cannot pass it on.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

from rocketspark import machine
from rocketspark.errors import ReplicationError

MAGIC = b"RSHA"
HELLO, CHALLENGE, PROOF, WELCOME, REFUSED = range(1, 6)
RANDOM_BYTES, CODE_BYTES, PAYLOAD_BYTES_MAX = 16, 32, 1024
_HEAD = struct.Struct(">4sBH")

# Access key and secret with which all brokers of a cluster sign.
Credentials = tuple[str, str]


def frame(kind: int, payload: bytes) -> bytes:
    """Return the bytes of a frame of this kind."""
    return _HEAD.pack(MAGIC, kind, len(payload)) + payload


def code(credentials: Credentials, who: bytes, theirs: bytes, mine: bytes, channel: bytes) -> bytes:
    """Return the code that only somebody who knows the secret can make for this greeting and this channel.

    `who`: b"slave" or b"master", the side that proves itself; `theirs`, `mine`: the random bytes of the other side and
    of that side; `channel`: bytes that only the two ends of this TLS channel know.
    """
    name, secret = credentials
    told = who + theirs + mine + hashlib.sha256(channel).digest() + name.encode("utf-8", "replace")
    return hmac.digest(secret.encode("utf-8", "replace"), told, hashlib.sha256)


class _Greeting:
    """`is_done`: the other side has proved who it is; `rest`: the bytes that came behind its last frame.

    `channel`: bytes that only both ends of one TLS channel know; empty without TLS.
    """

    def __init__(self, credentials: Credentials, channel: bytes = b"") -> None:
        self._credentials, self._channel = credentials, channel
        self._mine = machine.token_bytes(RANDOM_BYTES)
        self._theirs = b""
        self.rest = b""
        self.is_done = False

    def _frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self.rest += data
        while not self.is_done and len(self.rest) >= _HEAD.size:
            magic, kind, size = _HEAD.unpack_from(self.rest)
            if magic != MAGIC or size > PAYLOAD_BYTES_MAX:
                raise _stranger("what came is no greeting of a broker of ours")
            if len(self.rest) < _HEAD.size + size:
                return
            payload, self.rest = self.rest[_HEAD.size : _HEAD.size + size], self.rest[_HEAD.size + size :]
            yield kind, payload

    def _proves(self, who: bytes, said: bytes) -> bool:
        return hmac.compare_digest(said, code(self._credentials, who, self._mine, self._theirs, self._channel))


class MasterGreeting(_Greeting):
    """The master's side of the greeting."""

    def received(self, data: bytes) -> bytes:
        """Take what the slave sent; return what to answer. Raises ReplicationError if it does not know the secret."""
        answer = b""
        for kind, payload in self._frames(data):
            if kind == HELLO and not self._theirs and len(payload) == RANDOM_BYTES:
                self._theirs = payload
                answer += frame(CHALLENGE, self._mine)
            elif kind == PROOF and self._theirs:
                if payload[CODE_BYTES:] != self._credentials[0].encode() or not self._proves(
                    b"slave", payload[:CODE_BYTES]
                ):
                    raise _stranger("it does not know innerClientAuthenticationCredentials")
                self.is_done = True
                answer += frame(WELCOME, code(self._credentials, b"master", self._theirs, self._mine, self._channel))
            else:
                raise _stranger("what came is no greeting of a broker of ours")
        return answer


class SlaveGreeting(_Greeting):
    """The slave's side of the greeting."""

    def hello(self) -> bytes:
        """Return the first bytes that a slave sends."""
        return frame(HELLO, self._mine)

    def received(self, data: bytes) -> bytes:
        """Take what the master sent; return what to answer.

        Raises ReplicationError for a master that does not know the secret, or refuses.
        """
        answer = b""
        for kind, payload in self._frames(data):
            if kind == CHALLENGE and not self._theirs and len(payload) == RANDOM_BYTES:
                self._theirs = payload
                proof = code(self._credentials, b"slave", self._theirs, self._mine, self._channel)
                answer += frame(PROOF, proof + self._credentials[0].encode())
            elif kind == WELCOME and self._theirs and self._proves(b"master", payload):
                self.is_done = True
            elif kind == REFUSED:
                raise _stranger(f"the master refuses: {payload.decode('utf-8', 'replace')}")
            else:
                raise _stranger("the master does not know innerClientAuthenticationCredentials")
        return answer


def _stranger(why: str) -> ReplicationError:
    return ReplicationError(
        f"{why}; give all brokers of the cluster the same innerClientAuthenticationCredentials, and name the hosts of"
        " RocketMQ's own brokers in haTrustedAddresses",
        reason="stranger",
    )
