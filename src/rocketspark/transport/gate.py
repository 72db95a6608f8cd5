"""What a server asks before it serves a request: may its sender do this? Types only.

Rule: every request of a served code passes the gate of its `Routes` before its handler, whatever path it takes: what
serves runs of requests asks by what the first of them was let through for (`Routes.runs_ask_gate`). Replies, and codes
that nobody serves, do not. A refused one-way request is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class ReceivedRequest(NamedTuple):
    """A request as it was received: nothing in it is normalised.

    `peer`: the connection (`remote_host`, and `gate_notes`: what the gate keeps for it); `version`: the ordinal of the
    sender's release; `language`: as the header wrote it; `ext`: its ext fields' texts; `body`: its bytes.
    """

    peer: Any
    code: int
    flag: int
    version: int
    language: str | int
    ext: dict[str, str]
    body: bytes


class Sender(NamedTuple):
    """Who said something: the user as the gate knows him, "" for nobody, and the address it came from."""

    user: str
    host: str


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    code: int
    remark: str


class Gate(Protocol):
    """Decides about each request; it is called on the loop, and must not wait."""

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the answer to a request that may not be served, or None."""
