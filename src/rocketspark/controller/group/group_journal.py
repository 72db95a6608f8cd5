"""Makes decisions durable in a group of controllers, as `journal.Journal` does for a single one.

Rule: only the leader decides, and its decision counts once a majority has it on the disk. That holds also for answers
that change nothing: otherwise a former leader would tell a former master. Requests that come together share one
entry."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import msgspec

from rocketspark.controller import journal
from rocketspark.controller.group import founding
from rocketspark.controller.group.entries import ENTRY_BYTES_MAX, Entry, State, advance, encode_entry
from rocketspark.controller.group.founding import Beginning
from rocketspark.controller.group.links import Links
from rocketspark.controller.group.members import Member, parse_member
from rocketspark.controller.group.messages import Change, Hello
from rocketspark.controller.group.raft_log import LEARNER, SEEDING, RaftLog
from rocketspark.controller.group.raft_thread import RETRY_S, Done, Outcome, RaftThread, Status
from rocketspark.controller.replica_sets import Sets
from rocketspark.controller.replicas_info import Decision
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.model import typed_json
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.store.files.system_calls import DirectoryLock, OsFiles, failure, make_folder
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes, RpcHooks
from rocketspark.transport.request_frames import reply
from rocketspark.transport.shared_task import end_tasks
from rocketspark.transport.tls.client_tls import ClientTls

log = LimitedLog("rocketspark.controller")

# Brokers wait 3 s for an answer; one that is not agreed on by then is asked for again.
AGREED_S = 2.5
ASK_S = 0.3
ASK_MS = 1000
SILENT_S = 5.0
DECISIONS_MAX = 200
# Of one decision; an entry whose decisions have more takes no further one.
EVENTS_BYTES_MAX = ENTRY_BYTES_MAX // 2
TRIES = 5
LIBRARY_VERSION = "0.3.17"
EXTRA = "a group of controllers takes the extra controllers: pip install 'rocketspark[controllers]'"


class _Asked(NamedTuple):
    decide: Callable[[State], Decision]
    answer: asyncio.Future[Decision]


class GroupJournal:
    """The decisions of one member of a group. `own`, `members`: this member and all members, as its settings name them.

    `leads_now`: called when this member has become the leader.
    """

    def __init__(
        self,
        folder: str,
        group: str,
        own: Member,
        members: list[Member],
        *,
        hooks: RpcHooks | None,
        tls: ClientTls | None,
        files: OsFiles | None = None,
    ) -> None:
        check_library()
        self._folder, self._group = folder, group
        self._own, self._members = own.name, [each.name for each in members]
        self._files = files or OsFiles()
        self._lock = DirectoryLock(os.path.join(folder, "lock"))
        self._links = Links(group, self._own, self._way, hooks=hooks, tls=tls)
        self._asking = Connections(connect_timeout_ms=ASK_MS, language="PYTHON", hooks=hooks, tls=tls)
        self._thread: RaftThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = State()
        self._status = Status(members=tuple(self._members))
        self._beginning = Beginning.FRESH
        self._asked: list[_Asked] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.leads_now: Callable[[], None] = lambda: None

    @property
    def sets(self) -> Sets:
        """The sets of replicas that the group agreed on, as far as this member knows."""
        return self._state.sets

    @property
    def leads(self) -> bool:
        """True while this member leads, as far as it knows."""
        return self._status.leads

    @property
    def leader(self) -> Member | None:
        """The member that leads; None if none is known."""
        return parse_member(self._status.leader) if self._status.leader else None

    @property
    def members(self) -> list[Member]:
        """All members."""
        return [parse_member(name) for name in self._status.members]

    # -- beginning and end ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder and read it. Raises ConfigError, StoreError."""
        try:
            make_folder(self._files, self._folder)
        except OSError as e:
            raise failure(e, "make", self._folder) from e
        self._lock.acquire()
        try:
            if RaftLog.is_in(self._folder):
                raft_log = RaftLog(self._folder, self._files)
                raft_log.open()
                self._beginning = founding.BY_STANDING[raft_log.standing]
            elif os.path.exists(self._state_path):
                self._single()
                self._beginning = Beginning.SEED
        except BaseException:
            self._lock.release()
            raise

    @property
    def _state_path(self) -> str:
        return os.path.join(self._folder, journal.NAME)

    def _single(self) -> Sets:
        try:
            with open(self._state_path, "rb") as file:
                return journal.decode(file.read(), self._state_path)
        except OSError as e:
            raise failure(e, "read", self._state_path) from e

    def begin(self) -> None:
        """Take part in the group, once other members can reach this one."""
        self._loop = asyncio.get_running_loop()
        if self._beginning in (Beginning.FRESH, Beginning.SEED):
            self._tasks.append(asyncio.create_task(self._found()))
        else:
            self._start()
        self._tasks.append(asyncio.create_task(self._carry_out_all()))

    async def _found(self) -> None:
        """Wait until it is known how this member stands, and start it so."""
        others = [name for name in self._members if name != self._own]
        told: dict[str, str] = {}
        silent_s = 0.0
        while True:
            answers = await asyncio.gather(*(self._ask_hello(name) for name in others))
            told |= {name: hello.beginning for name, hello in zip(others, answers, strict=True) if hello is not None}
            stands = founding.standing(self._beginning, others, told)
            if stands is not None:
                try:
                    await asyncio.to_thread(self._write_first, stands)
                    break
                except RocketSparkError as e:
                    log.error("this controller takes no part until its disk does: %s", e)
                    await asyncio.sleep(RETRY_S)
                    continue
            silent_s += ASK_S
            if silent_s >= SILENT_S:
                silent_s = 0.0
                log.warning("%s", founding.obstacle(self._beginning, others, told, self._state_path))
            await asyncio.sleep(ASK_S)
        self._beginning = founding.BY_STANDING[stands]
        log.info("%s begins as one that is %s", self._own, stands)
        self._start()

    def _write_first(self, stands: str) -> None:
        if stands == SEEDING:
            from rocketspark.controller.group.raft_member import write_first

            write_first(self._folder, State(1, self._single()), self._members, self._files)
        raft_log = RaftLog(self._folder, self._files)
        raft_log.open()
        raft_log.stand(stands)
        raft_log.flush()
        if stands == SEEDING:
            # It is in the snapshot now, and must not come back one day.
            with contextlib.suppress(OSError):
                self._files.replace(self._state_path, f"{self._state_path}.taken")

    async def _ask_hello(self, name: str) -> Hello | None:
        try:
            peer = await self._asking.get(parse_member(name).address)
            body = msgspec.json.encode(Hello(self._own, self._group))
            found = await peer.request(RequestCode.CONTROLLER_GROUP_HELLO, None, body, timeout_ms=ASK_MS)
            hello = typed_json.decode(found.raise_for_code("the other controller").body, Hello)
        except (RocketSparkError, msgspec.DecodeError):
            # What is wrong is told once it has lasted: at a start others are not up yet.
            return None
        if (hello.name, hello.group) != (name, self._group):
            log.warning("%s is %s of %s, not %s of %s", name, hello.name, hello.group, name, self._group)
            return None
        return hello

    def _start(self) -> None:
        others = [name for name in self._members if name != self._own]
        self._thread = RaftThread(self._own, others, self._folder, self, self._files)
        self._links.reach(self._members)
        self._thread.start()

    async def close(self) -> None:
        """Leave the work of the group, and release the folder."""
        self._closed = True
        await end_tasks(*self._tasks)
        await self._links.close()
        await self._asking.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)
        self._fail(self._asked)
        self._lock.release()

    # -- decisions --------------------------------------------------------------------------------------------------

    async def carry_out(self, decide: Callable[[State], Decision]) -> Decision:
        """Call `decide` with the present state, have the group agree on the events, and return the decision.

        What was begun is done even if whoever asked goes away. Raises ServerError 2007 if this member does not lead, or
        if it is not known whether the group will agree.
        """
        if not self.leads:
            raise self._not_leader("leads no more" if self._status.leader is None else f"{self._status.leader} leads")
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(decide, answer))
        self._wake.set()
        return await asyncio.shield(answer)

    def _not_leader(self, why: str) -> ServerError:
        return ServerError(ResponseCode.CONTROLLER_NOT_LEADER, f"controller {self._own} is not the leader: {why}")

    async def _carry_out_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._asked:
                batch, self._asked = self._asked[:DECISIONS_MAX], self._asked[DECISIONS_MAX:]
                try:
                    await self._carry_out(batch)
                except Exception:
                    log.exception("a decision could not be carried out")
                finally:
                    self._fail(batch)

    async def _carry_out(self, batch: list[_Asked]) -> None:
        for _ in range(TRIES):
            state, decisions, events, looked, size = self._state, list[Decision](), list[Any](), list[Any](), 0
            for each in batch:
                if size > EVENTS_BYTES_MAX:
                    break
                try:
                    decision = each.decide(state)
                    added = len(msgspec.msgpack.encode(decision.events))
                    if added > EVENTS_BYTES_MAX:
                        raise ServerError(ResponseCode.CONTROLLER_INVALID_REQUEST, "the request is too large")
                except Exception as e:
                    if not each.answer.done():
                        each.answer.set_exception(e)
                    decision, added = Decision(), 0
                decisions.append(decision)
                seen = (decision.looked,) if decision.looked else ()
                if decision.events or seen:
                    state = advance(state, decision.events, seen)
                    events += decision.events
                    looked += seen
                    size += added
            assert self._thread is not None
            entry = encode_entry(Entry(self._state.version, tuple(events), tuple(looked)))
            outcome = await self._outcome(functools.partial(self._thread.propose, entry))
            if outcome:
                for each, decision in zip(batch, decisions, strict=False):
                    if not each.answer.done():
                        each.answer.set_result(decision)
                # What did not go into this entry goes into the next.
                self._asked[:0] = batch[len(decisions) :]
                del batch[len(decisions) :]
                return
            if outcome is None or not self.leads:
                return

    async def _outcome(self, ask: Callable[[Done], None]) -> Outcome:
        """Ask the member's thread for something; None if nobody knows in time."""
        found: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        ask(lambda outcome: self._on_loop(functools.partial(_settle, found, outcome)))
        try:
            async with asyncio.timeout(AGREED_S):
                return await found
        except TimeoutError:
            return None

    def _fail(self, batch: list[_Asked]) -> None:
        for each in batch:
            if not each.answer.done():
                each.answer.set_exception(self._not_leader("a majority of the controllers does not answer"))
                # Nobody may wait for it any more.
                each.answer.exception()

    # -- as the thread tells ----------------------------------------------------------------------------------------

    def send(self, name: str, message: dict[str, Any]) -> None:
        """Send a message to another member; called in the member's thread."""
        self._on_loop(functools.partial(self._links.send, name, message))

    def state(self, state: State) -> None:
        """Take the state that the group agreed on; called in the member's thread."""
        self._on_loop(functools.partial(self._take_state, state))

    def status(self, status: Status) -> None:
        """Take how this member stands in its group; called in the member's thread."""
        self._on_loop(functools.partial(self._take_status, status))

    def _on_loop(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(act)

    def _take_state(self, state: State) -> None:
        self._state = state

    def _take_status(self, status: Status) -> None:
        before, self._status = self._status, status
        if self._closed:
            return
        self._beginning = founding.BY_STANDING[status.standing]
        if status.members != before.members:
            log.warning("the controllers are %s", ", ".join(status.members))
            self._links.reach(status.members)
        if status.leader != before.leader:
            log.warning("controller %s leads (term %d)", status.leader or "none", status.term)
        if status.leads and not before.leads:
            self.leads_now()
        elif before.leads and not status.leads:
            asked, self._asked = self._asked, []
            self._fail(asked)

    def _way(self, name: str, is_open: bool) -> None:
        if self._thread is not None:
            self._thread.way(name, is_open=is_open)

    # -- what other members and operators ask ----------------------------------------------------------------------

    def routes(self, routes: Routes) -> None:
        """Add the requests that members and operators send this member."""
        routes.add(RequestCode.CONTROLLER_GROUP_MESSAGE, self.message)
        routes.add(RequestCode.CONTROLLER_GROUP_HELLO, self.hello)
        routes.add(RequestCode.CONTROLLER_GROUP_CHANGE, self.change)

    def message(self, peer: Peer, request: Request[Any], body: bytes) -> None:
        """CONTROLLER_GROUP_MESSAGE (7310021): take one message of another member."""
        status = self._status
        letter = self._links.read(peer, body, None if status.standing == LEARNER else status.members)
        if letter is not None and self._thread is not None:
            self._thread.received(letter.sender, letter.message)

    def hello(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CONTROLLER_GROUP_HELLO (7310022): tell a member or an operator what this member is, as `Hello`."""
        status = self._status
        try:
            asks = typed_json.decode(body, Hello).name
        except msgspec.DecodeError:
            asks = ""
        found = Hello(
            self._own, self._group, self._beginning, status.leader or "", list(status.members), self._links.heard(asks)
        )
        return reply(request.opaque, body=msgspec.json.encode(found))

    async def change(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CONTROLLER_GROUP_CHANGE (7310023): add or remove a member; the leader alone does it."""
        try:
            asked = typed_json.decode(body, Change)
            member = asked.member
            if asked.what == "rem":
                member = next((each.name for each in self.members if asked.member in (each.node, each.name)), "")
            elif asked.what == "add":
                member = parse_member(member).name
        except (msgspec.DecodeError, ConfigError) as e:
            raise ServerError(ResponseCode.CONTROLLER_INVALID_REQUEST, str(e)) from None
        if asked.what not in ("add", "rem"):
            raise ServerError(ResponseCode.CONTROLLER_INVALID_REQUEST, "members are added (add) or removed (rem)")
        if not self.leads or self._thread is None:
            raise self._not_leader(f"{self._status.leader or 'none'} leads")
        # Who is a member is agreed on then, and not a change that may still be taken back.
        await self.carry_out(lambda state: Decision())
        names = self._status.members
        if asked.what == "add" and (problem := await self._why_not(member)):
            raise ServerError(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{member} cannot be added: {problem}")
        if asked.what == "rem" and (not member or len(names) <= 1):
            raise ServerError(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"{asked.member} cannot be removed: the members are {', '.join(names)}",
            )
        if member == self._own:
            # Who leads cannot take itself out; the next leader can.
            self._thread.hand_over()
            raise self._not_leader("it hands over to another one, to be removed: ask again")
        outcome = await self._outcome(functools.partial(self._thread.change_members, asked.what, member))
        if not outcome:
            why = "another change is under way" if outcome is False else "a majority of the controllers does not answer"
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"{member}: {why}; ask again")
        log.warning("%s: %s by %s", member, "added" if asked.what == "add" else "removed", peer.address)
        return reply(request.opaque)

    async def _why_not(self, name: str) -> str:
        """Return why a member cannot be added; it counts for a majority at once, so it must be there."""
        new = parse_member(name)
        for each in self.members:
            if new.node == each.node or new.address == each.address:
                return f"{each.name} is a member"
        if await self._ask_hello(name) is None:
            return f"no controller of the group answers there as {new.node}: start it first"
        return ""


def check_library() -> None:
    """Raise ConfigError if pysyncobj is not installed, or in another version: older ones forget terms and votes."""
    try:
        found = version("pysyncobj")
    except PackageNotFoundError:
        raise ConfigError(EXTRA) from None
    if found != LIBRARY_VERSION:
        raise ConfigError(f"{EXTRA}, which has pysyncobj {LIBRARY_VERSION}; {found} is installed")


def _settle(found: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not found.done():
        found.set_result(outcome)
