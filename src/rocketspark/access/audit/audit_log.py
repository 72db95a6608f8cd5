"""The audit: one line of JSON for each refusal and each change that an operator makes, in a file of its own.

Rule: no secret is in a line, and a flood of refusals costs little: of each sender some lines in a while, and of all
together; the rest is counted and summed up. Changes are always written.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocketspark.access.audit.audit_file import AuditFile
from rocketspark.access.decisions import Check, Decision
from rocketspark.errors import ServerError
from rocketspark.model.text import shown
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header, Request
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import Parts

if TYPE_CHECKING:
    from rocketspark.transport.peer import Peer

logger = logging.getLogger("rocketspark.audit")

PERIOD_S = 10.0
# Refusals that are written in each period.
LINES_MAX = 500
LINES_OF_HOST_MAX = 50
# Senders whose refusals are counted apart; the others are counted together.
HOSTS_MAX = 1000
# Senders that a summary names, those with the most first.
SUMMED_MAX = 10
TEXT_MAX = 300
FILE_NAME = "audit.log"
_HEAD_AT = 8

# Gets a request's code, header and body; returns what is written of a change, which holds no secret.
What = Callable[[int, Header, bytes], dict[str, Any]]
_NAMES = {int(code): code.name for code in RequestCode}
# Of access control 1.0.
_NAMES |= {50: "UPDATE_AND_CREATE_ACL_CONFIG", 51: "DELETE_ACL_CONFIG", 53: "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG"}


def request_name(code: int) -> str:
    """Return a request's name as RocketMQ has it, or its number."""
    return _NAMES.get(code, str(code))


class Audit:
    """What a server puts on record. `server`: how lines name it; `changes`: the codes that are put on record, with
    `what` they are about; `wall_ms`, `now_s`: the clocks.
    """

    def __init__(
        self,
        server: dict[str, str],
        path: Path,
        *,
        changes: Collection[int],
        what: What,
        bytes_max: int = 16 << 20,
        files_max: int = 10,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        # By check and request; and outcomes of changes by request.
        self.refusals: Counter[tuple[Check, int]] = Counter()
        self.changes: Counter[tuple[int, bool]] = Counter()
        self.left_out = 0
        self._server = server
        self._changes_of, self._what = changes, what
        self._wall_ms = wall_ms
        self._now_s = now_s
        self._last: Decision | None = None
        self._period_began_s = now_s()
        self._lines_left = LINES_MAX
        self._by_host: dict[str, int] = {}
        self._unwritten: Counter[str] = Counter()
        self._file = AuditFile(path, bytes_max=bytes_max, files_max=files_max, logger=logger, lost_line=self._lost_line)

    @property
    def lines(self) -> dict[str, int]:
        """Return how many lines were written, left out of a flood, or lost for want of room."""
        return {"written": self._file.written, "left_out": self.left_out, "lost": self._file.lost}

    def check(self) -> None:
        """Open the file. Raises StoreUnwritable."""
        self._file.check()

    def close(self) -> None:
        """Write the rest; takes some seconds at most."""
        self._end_period()
        self._file.close()

    # -- refusals ------------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Hear of a decision; one that refuses is put on record."""
        if decision.check is Check.ADMINISTRATION:
            return  # Written by `watch`, with its outcome.
        if decision.allowed:
            self._last = decision
            return
        self._last = None
        self.refusals[decision.check, decision.code] += 1
        host = decision.source.rpartition(":")[0]
        if self._has_room(host):
            self._put("refused", {**_who(decision), **_asked(decision), "outcome": "refused"}, remark=decision.remark)

    def _has_room(self, host: str) -> bool:
        """Tell whether a refusal is written, and count it if it is not."""
        if self._now_s() - self._period_began_s >= PERIOD_S:
            self._end_period()
        if host not in self._by_host and len(self._by_host) >= HOSTS_MAX:
            host = "others"
        written = self._by_host.get(host, 0)
        if written < LINES_OF_HOST_MAX and self._lines_left > 0:
            self._by_host[host] = written + 1
            self._lines_left -= 1
            return True
        self._by_host[host] = written
        self._unwritten[host] += 1
        self.left_out += 1
        return False

    def tick(self) -> None:
        """End a period that is over; called every second."""
        if self._by_host and self._now_s() - self._period_began_s >= PERIOD_S:
            self._end_period()

    def _end_period(self) -> None:
        if self._unwritten:
            most = {shown(host): count for host, count in self._unwritten.most_common(SUMMED_MAX)}
            self._put("left_out", {"refusals": self._unwritten.total(), "from": most})
        self._period_began_s = self._now_s()
        self._lines_left = LINES_MAX
        self._by_host.clear()
        self._unwritten.clear()

    # -- changes -------------------------------------------------------------------------------------------------

    def watch(self, routes: Routes) -> None:
        """Put each change on record, with what the broker answered."""
        for code in self._changes_of:
            routes.wrap(code, self._watched)

    def _watched(self, handler: Handler) -> Handler:
        def serve(peer: Peer, request: Request[Any], body: bytes) -> Answer:
            who = self._decision_on(peer, request.code)
            about = self._what(request.code, request.ext, body)
            try:
                answer = handler(peer, request, body)
            except BaseException as e:
                self._failed(who, request.code, about, e)
                raise
            if answer is None or isinstance(answer, bytes | Parts):
                self._changed(who, request.code, about, answer)
                return answer
            return self._awaited(answer, who, request.code, about)

        return serve

    async def _awaited(
        self, answer: Coroutine[Any, Any, bytes | Parts | None], who: Decision, code: int, about: dict[str, Any]
    ) -> bytes | Parts | None:
        try:
            data = await answer
        except BaseException as e:
            self._failed(who, code, about, e)
            raise
        self._changed(who, code, about, data)
        return data

    def _decision_on(self, peer: Peer, code: int) -> Decision:
        """Return what let the request pass: the gate decided about it just now, if there is one."""
        last, self._last = self._last, None
        if last is not None and last.code == code and last.source.rpartition(":")[0] == _host(peer):
            return last
        return Decision(Check.AUTHORIZATION, "", peer.address, code, "", (), allowed=True, rule="no access control")

    def _changed(self, who: Decision, code: int, about: dict[str, Any], answer: bytes | Parts | None) -> None:
        reply_code, remark = _outcome(answer.head if isinstance(answer, Parts) else answer)
        self._put_change(who, code, about, reply_code, remark)

    def _failed(self, who: Decision, code: int, about: dict[str, Any], error: BaseException) -> None:
        if isinstance(error, ServerError):
            self._put_change(who, code, about, error.code, error.remark)
        else:
            # Only the kind: a text might repeat what was sent.
            self._put_change(who, code, about, 1, type(error).__name__)

    def _put_change(self, who: Decision, code: int, about: dict[str, Any], reply_code: int, remark: str) -> None:
        done = reply_code == 0
        self.changes[code, done] += 1
        entry = {
            **_who(who),
            **_asked(who),
            "what": about,
            "outcome": "done" if done else "failed",
            "reply": reply_code,
        }
        self._put("changed", entry, remark=remark)

    # -- lines ---------------------------------------------------------------------------------------------------

    def _put(self, event: str, entry: dict[str, Any], *, remark: str = "") -> None:
        self._file.put(
            self._line(event, entry | ({"remark": shown(remark, characters_max=TEXT_MAX)} if remark else {}))
        )

    def _line(self, event: str, entry: dict[str, Any]) -> bytes:
        at = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        head = {"time": at.replace("+00:00", "Z"), **self._server, "event": event}
        return msgspec.json.encode(head | entry) + b"\n"

    def _lost_line(self, count: int) -> bytes:
        return self._line("lost", {"lines": count})


def _who(decision: Decision) -> dict[str, Any]:
    return {"user": shown(decision.subject.removeprefix("User:")), "from": shown(decision.source)}


def _asked(decision: Decision) -> dict[str, Any]:
    asked: dict[str, Any] = {"request": decision.call or request_name(decision.code)}
    if not decision.call:
        asked["code"] = decision.code
    if decision.resource:
        asked["resource"] = shown(decision.resource, characters_max=TEXT_MAX)
    if decision.actions:
        asked["actions"] = list(decision.actions)
    return asked | {"check": decision.check.value, "rule": shown(decision.rule, characters_max=TEXT_MAX)}


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]


def _outcome(answer: bytes | None) -> tuple[int, str]:
    """Return code and remark of a reply's frame; 0 for a one-way request, which has none."""
    if answer is None:
        return 0, ""
    size = int.from_bytes(answer[5:_HEAD_AT], "big")
    head = headers.head_decoder.decode(answer[_HEAD_AT : _HEAD_AT + size])
    return head.code, head.remark or ""
