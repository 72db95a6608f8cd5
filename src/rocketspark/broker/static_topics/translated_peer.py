"""Replies on their way to a client, their header translated: those returned, and those a handler sends later."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from rocketspark.protocol import frames
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer
from rocketspark.transport.request_frames import Parts

_LENGTHS = struct.Struct(">ii")
# (code, ext fields, which it changes) to the reply's code.
Translation = Callable[[int, dict[str, str]], int]


def translated_frame(frame: bytes | memoryview, translate: Translation, more_bytes: int = 0) -> bytes:
    """Return a reply's frame with its header translated; `more_bytes`: of the body, which follow apart."""
    size = _LENGTHS.unpack_from(frame)[1]
    header = msgspec.json.decode(frame[8 : 8 + size])
    ext = header.get("extFields")
    if ext is not None:
        header["code"] = translate(header["code"], ext)
    text = msgspec.json.encode(header)
    total = 4 + len(text) + len(frame) - 8 - size + more_bytes
    frames.check_length(total)
    return b"".join((_LENGTHS.pack(total, len(text)), text, frame[8 + size :]))


def translated(answer: Answer, translate: Translation) -> Answer:
    """Return a handler's answer, its header translated."""
    if isinstance(answer, bytes):
        return translated_frame(answer, translate)
    if isinstance(answer, Parts):
        return Parts(translated_frame(answer.head, translate, answer.size - len(answer.head)), answer.body)
    return answer if answer is None else _later(answer, translate)


async def _later(answer: Coroutine[Any, Any, bytes | Parts | None], translate: Translation) -> bytes | Parts | None:
    found = translated(await answer, translate)
    assert not isinstance(found, Coroutine)
    return found


class _TranslatedPeer:
    """A client's connection whose later replies to one request are translated; else it is that connection."""

    __slots__ = ("_shown", "_translate")

    def __init__(self, peer: Peer, translate: Translation) -> None:
        self._shown = peer
        self._translate = translate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)

    def __hash__(self) -> int:
        return hash(self._shown)

    def __eq__(self, other: object) -> bool:
        return self._shown is (other._shown if isinstance(other, _TranslatedPeer) else other)

    def send(self, data: bytes) -> None:
        self._shown.send(translated_frame(data, self._translate))

    def answer(self, data: bytes) -> None:
        self._shown.answer(translated_frame(data, self._translate))


def translated_peer(peer: Peer, translate: Translation) -> Peer:
    """Return a peer for one request's handler: what it sends later is translated too."""
    return cast(Peer, _TranslatedPeer(peer, translate))
