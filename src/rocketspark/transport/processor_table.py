"""Who serves which request code, and what a server asks before it serves a request: may the sender do this?

Types and tables only. Rule: every request of a code that is served passes the gate of its `Routes` before its handler.
What serves a whole run of requests at once asks the gate itself (`Routes.runs_ask_gate`): each request has to show what
the first one was let through for. Replies, and requests of codes that nobody serves, do not pass the gate. A refused
one-way request is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from rocketspark.protocol import headers
from rocketspark.protocol.headers import Header, NoHeader, Request
from rocketspark.transport.request_frames import Parts, Reply
from rocketspark.transport.server_bounds import Overload


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
    """Who sent something: the user whom the gate knows, "" for nobody, and the address."""

    user: str
    host: str


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    code: int
    remark: str


class Gate(Protocol):
    """Decides about each request; it is called on the loop, and must not wait."""

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the answer to a request that may not be served; None if it may."""


Answer = bytes | Parts | None | Coroutine[Any, Any, bytes | Parts | None]
# Handlers get the Peer that asked first; Peer imports this module, so it is not named here.
Handler = Callable[[Any, Request[Any], bytes], Answer]
Route = tuple["msgspec.json.Decoder[Any]", type[Header], Handler]
# Serves frames of one code right from what was read: (peer, data, from where, replies) to where the first frame begins
# that it leaves to the handler. It serves at most some hundred in one call, and adds one reply for each.
Run = Callable[[Any, bytes, int, list[bytes]], int]


class Routes:
    """The handler of each request code, with its header's type; every other code is answered "not supported".

    `is_starting`: until the first is added all are answered "not available".

    `overload`: decides which requests are refused while the server is behind. `gate`: decides who may do what, before
    each request; it is set before the first connection, None for a server that lets everybody in. `runs_ask_gate`: True
    if the functions that serve runs of requests ask the gate themselves; if not, behind a gate each request goes to its
    handler alone.
    """

    def __init__(self, *, is_starting: bool = False) -> None:
        self.is_starting = is_starting
        self.overload: Overload | None = None
        self.gate: Gate | None = None
        self.runs_ask_gate = False
        self.table: dict[int, Route] = {}
        # The same by how a JSON header begins: one look-up instead of finding the code.
        self.by_prefix: dict[bytes, Route] = {}
        self.runs_by_code: dict[int, Run] = {}
        self.runs: dict[bytes, Run] = {}
        # The handlers that `refuse` put aside.
        self._refused: dict[int, tuple[Route, Run | None]] = {}

    def add(self, code: int, handler: Handler, header: type[Header] | None = None) -> None:
        """Serve `code` with `handler(peer, request, body)`; the header's type is that of the code's table."""
        kind = header or headers.REQUEST_HEADERS.get(code, NoHeader)
        route = (headers.request_decoder(kind), kind, handler)
        self.table[int(code)] = route
        self.by_prefix[b'{"code":%d' % code] = route

    def add_run(self, code: int, run: Run) -> None:
        """Let `run` serve requests of `code` (three digits) that arrive one after another; those that `run` leaves go
        to the handler.
        """
        self.runs_by_code[int(code)] = self.runs[b'{"code":%3d,' % code] = run

    def refuse(self, handlers: Mapping[int, Handler]) -> None:
        """Let these handlers answer instead of those that serve their codes, until the next call: for a server that
        refuses some requests.
        """
        for code, (route, run) in self._refused.items():
            self._set(code, route, run)
        self._refused = {}
        for code, handler in handlers.items():
            served = self.table.get(code)
            if served is not None:
                self._refused[code] = served, self.runs_by_code.get(code)
                self._set(code, (served[0], served[1], handler), None)

    def wrap(self, code: int, around: Callable[[Handler], Handler], header: type[Header] | None = None) -> None:
        """Replace a code's handler by `around(handler)`, also while `refuse` is in force. `header`: another type for
        the request's header.
        """
        served = self._refused.get(code)
        route = served[0] if served is not None else self.table.get(code)
        if route is None:
            return
        kind = header or route[1]
        wrapped = (headers.request_decoder(kind), kind, around(route[2]))
        if served is not None:
            self._refused[code] = wrapped, served[1]
        else:
            self.table[code] = self.by_prefix[b'{"code":%d' % code] = wrapped

    def _set(self, code: int, route: Route, run: Run | None) -> None:
        self.table[code] = self.by_prefix[b'{"code":%d' % code] = route
        prefix = b'{"code":%3d,' % code
        if run is not None:
            self.runs_by_code[code] = self.runs[prefix] = run
        else:
            self.runs_by_code.pop(code, None)
            self.runs.pop(prefix, None)


class ReplyWaiter(Protocol):
    """What waits for a reply: a future, or another object that is told at once. `done` is True if it waits no more."""

    def done(self) -> bool: ...

    def set_result(self, result: Reply, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class RpcHooks(Protocol):
    """Hooks that see each request of a client and its reply, and may add to the ext fields."""

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None: ...

    def after_response(self, address: str, code: int, reply: Reply | None, error: BaseException | None) -> None: ...
