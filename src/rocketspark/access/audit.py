"""The audit: one line of JSON for each refusal and each change that an operator makes, in a file of its own.

A server's checks tell it what they decided (`Decision`). Rule: no secret is in a line, and a flood of refusals costs
little: of each sender some lines in a while, and of all together; the rest is counted and summed up. Changes are always
written. Nobody waits for the disk, and the file never takes more than its bound: a thread writes what the loop hands
it; what finds no room, in the queue or on the disk, is counted, and the count follows as soon as a line can be written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rocketspark import machine
from rocketspark.errors import ServerError, StoreUnwritable
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header, Request
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import Parts
from rocketspark.transport.server_bounds import host_of, place_of

if TYPE_CHECKING:
    from rocketspark.transport.peer import Peer


class Check(StrEnum):
    """What a decision was about: who somebody is, what he may do, or that he changed who may do what."""

    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"
    ADMINISTRATION = "administration"


class Decision(NamedTuple):
    """One decision.

    `subject`: "User:name" as the request claims it, "" for none; `source`: "host:port" of the sender; `code`: that of
    the request; `resource`, `actions`: what was asked for, empty where only the sender was checked; `allowed`: the
    outcome; `rule`: what decided, such as "signature", "whitelist", "super user" or "Custom Topic:orders* Deny";
    `remark`: what a refused sender is told; `call`: the method that came by gRPC, in place of the code.
    """

    check: Check
    subject: str
    source: str
    code: int
    resource: str
    actions: tuple[str, ...]
    allowed: bool
    rule: str
    remark: str = ""
    call: str = ""


Decided = Callable[[Decision], None]


def nobody_told(decision: Decision) -> None:
    """Do nothing with a decision, where there is no audit."""


log = LimitedLog("rocketspark.access")

LINES_WAITING_MAX = 10_000
CLOSE_TIMEOUT_S = 5.0
FILE_MODE = 0o600


class AuditFile:
    """Writes lines to the file `path`; older lines are in `path`.1 and so on, `files_max` files of at most `bytes_max`
    in all.

    Each line also goes to the logger. `lost_line` makes the line that tells how many lines could not be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        files_max: int,
        logger: logging.Logger,
        lost_line: Callable[[int], bytes],
    ) -> None:
        self.written = self.lost = 0
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._logger = logger
        self._lost_line = lost_line
        self._untold = 0
        self._lines: deque[bytes] = deque()
        self._wanted = machine.Event()
        self._descriptor = -1
        self._size = 0
        self._thread: machine.Joinable | None = None
        self._closed = False

    def check(self) -> None:
        """Open the file. Raises StoreUnwritable if it cannot be opened, as nothing would be on record then."""
        try:
            self._open()
        except OSError as e:
            raise StoreUnwritable(f"the audit log {self._path} cannot be written: {e.strerror or e}") from None

    def put(self, line: bytes) -> None:
        """Hand a line, which ends with a line break, to the thread, which writes it soon."""
        if self._closed:
            return
        if self._thread is None:
            # A disk that hangs keeps no process from ending.
            self._thread = machine.start_steps(self._write_forever(), "rocketspark-audit")
        if len(self._lines) < LINES_WAITING_MAX:
            self._lines.append(line)
            self._wanted.set()
        else:
            self.lost += 1
            self._untold += 1

    def close(self) -> None:
        """Wait until all is written, some seconds at most."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._wanted.set()
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                return
        self._shut()

    def _write_forever(self) -> machine.Steps:
        closed = False
        while not closed:
            yield self._wanted, None
            self._wanted.clear()
            # Told before the lines are taken: none comes after it.
            closed = self._closed
            while self._lines:
                self._write_next(self._lines.popleft())

    def _write_next(self, line: bytes) -> None:
        self._tell(line)
        if self._untold and self._write(self._lost_line(self._untold)):
            self._untold = 0
        if self._write(line):
            self.written += 1
        else:
            self.lost += 1
            self._untold += 1

    def _tell(self, line: bytes) -> None:
        # A handler that an application set may raise; the file does not depend on it.
        with contextlib.suppress(Exception):
            self._logger.info("%s", line.decode().rstrip("\n"))

    def _write(self, line: bytes) -> bool:
        try:
            self._follow()
            if self._size and self._size + len(line) > self._bytes_max:
                self._turn()
            count = os.write(self._descriptor, line)
            if count < len(line):
                # A torn line would spoil the next one.
                os.ftruncate(self._descriptor, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            log.error("the audit log %s cannot be written: %s; %d lines are lost so far", self._path, e, self.lost + 1)
            return False
        self._size += count
        return True

    def _follow(self) -> None:
        """Open the file anew if it is not there any more: somebody moved or removed it."""
        if self._descriptor >= 0:
            try:
                there = os.stat(self._path)
                own = os.fstat(self._descriptor)
            except FileNotFoundError:
                self._shut()
            else:
                if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                    return
                self._shut()
        self._open()

    def _open(self) -> None:
        if self._descriptor >= 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, FILE_MODE)
        self._size = os.fstat(self._descriptor).st_size

    def _turn(self) -> None:
        """Begin a new file; the oldest goes."""
        self._shut()
        numbered = [self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files_max)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(numbered[-1] if numbered else self._path)
        for newer, older in reversed(list(pairwise([self._path, *numbered]))):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        self._open()

    def _shut(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


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
    """What a server puts on record, in its audit file.

    `server`: the fields by which lines name the server. `changes`: the request codes of changes, each of which is put
    on record; `what` returns what such a request changes. `wall_ms`, `now_s`: the clocks.
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
        wall_ms: Callable[[], int] = lambda: machine.time_ns() // 1_000_000,
        now_s: Callable[[], float] = lambda: machine.monotonic(),
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
        """Write what is left and close the file; takes some seconds at most."""
        self._end_period()
        self._file.close()

    # -- refusals ------------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Take a decision of the server's checks; one that refuses is put on record."""
        if decision.check is Check.ADMINISTRATION:
            return  # Written by `watch`, with its outcome.
        if decision.allowed:
            self._last = decision
            return
        self._last = None
        self.refusals[decision.check, decision.code] += 1
        if self._has_room(place_of(host_of(decision.source))):
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
        """Write how many lines were left out, if a period has ended; called every second."""
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
        """Wrap the handlers of changes in `routes`, so that each change is put on record with the broker's answer."""
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
        if last is not None and last.code == code and host_of(last.source) == host_of(peer.address):
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

    def record(self, who: Decision, about: dict[str, Any], failed: str = "") -> None:
        """Record a change that no request of RocketMQ's protocol made, such as one made in the console.

        `failed`: why it failed, "" if it did not.
        """
        self._put_change(who, who.code, about, 1 if failed else 0, failed)

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


def _outcome(answer: bytes | None) -> tuple[int, str]:
    """Return code and remark of a reply's frame; 0 for a one-way request, which has none."""
    if answer is None:
        return 0, ""
    size = int.from_bytes(answer[5:_HEAD_AT], "big")
    head = headers.head_decoder.decode(answer[_HEAD_AT : _HEAD_AT + size])
    return head.code, head.remark or ""
