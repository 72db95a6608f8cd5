"""Dead letters: counted by group, shown, and sent again, each once.

Rule: before a letter is sent again, the brokers' indexes are asked whether its target has the resend's unique id; where
an index does not know the letter itself, nothing can be told, and nothing is sent. Who sends has a group's letters
locked, so that no two ask at the same time.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from rocketspark.admin.cluster_client import QueueState
from rocketspark.admin.messages.dead_letter_rules import DeadLetter, origin_of, outgoing, queue_of, resend_id
from rocketspark.admin.messages.search import FOUND_BYTES_MAX, SCAN_MAX, FoundMessages, Search
from rocketspark.admin.messages.stored import GROUP
from rocketspark.admin.messages.traces import TraceOperations
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage
from rocketspark.errors import MessageIllegal, RocketSparkError, RouteNotFound, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.model.text import LONG_MAX, shown

# That are held at the same time.
PAGE_LETTERS = 100
AT_ONCE = 16
# A send whose answer never came may still be carried out for so long.
DOUBT_S = 3.0
SENDS = 2
# Brokers keep a lock for 60 s from the last call that took it.
LOCK_S = 60.0


class DeadLetterCount(msgspec.Struct, frozen=True, order=True):
    """How many dead letters a group has. `readable`: they can be read; before 5.0 brokers make their topics without the
    permission to.
    """

    group: str
    topic: str
    letters: int
    newest_ms: int = -1
    readable: bool = True


class StoredLetter(msgspec.Struct, frozen=True):
    """A dead letter of a group. `origin_topic`: the topic it came from, "" if it does not tell; `resend_id`: the unique
    id that it is sent again under; `message`: the letter as it is stored, when it was sent first (`born_time_ms`), when
    it became a dead letter (`store_time_ms`), after how many attempts (`reconsume_times`).
    """

    group: str
    origin_topic: str
    place: str
    resend_id: str
    message: ReceivedMessage


class FoundLetters(msgspec.Struct, frozen=True):
    """Dead letters, oldest first; the other fields are those of FoundMessages."""

    letters: list[StoredLetter]
    looked_at: int
    stopped: str
    next_offsets: dict[MessageQueue, int]


class Resent(msgspec.Struct, frozen=True):
    """What became of one dead letter. `outcome`: sent, already (an earlier resend is there), would send (a dry run) or
    failed, with `why`.
    """

    message_id: str
    place: str
    target: str
    resend_id: str
    outcome: str
    why: str = ""


class DeadLetterOperations(TraceOperations):
    """The part of AsyncAdmin that is about dead letters."""

    async def list_dead_letters(self) -> list[DeadLetterCount]:
        """Return every group that has a topic of dead letters, with their number, sorted by group."""
        names = await self._routes.ask(lambda peer: admin_api.topic_list(peer, timeout_ms=self._timeout_ms))
        gate = asyncio.Semaphore(AT_ONCE)

        async def count(topic: str) -> DeadLetterCount | None:
            async with gate:
                try:
                    return await self._count(topic)
                except RouteNotFound:
                    return None  # Its brokers are away.

        topics = sorted(name for name in names if name.startswith(namespace.DLQ_PREFIX))
        return sorted(found for found in await asyncio.gather(*map(count, topics)) if found is not None)

    async def _count(self, topic: str) -> DeadLetterCount:
        route = await self._routes.refresh(topic)
        group = topic.removeprefix(namespace.DLQ_PREFIX)
        if not route.read_queues():
            return DeadLetterCount(group, topic, 0, readable=False)
        letters, newest_ms = 0, -1
        for queue in route.read_queues():
            peer = await self._broker(await self._routes.find_readable(queue))
            low = await client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms)
            high = await client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms)
            state = QueueState(queue, low, high)
            letters += state.message_count
        if letters:
            newest = await self.find_messages(topic, newest_first=True, limit=1)
            newest_ms = max((m.store_time_ms for m in newest.messages), default=-1)
        return DeadLetterCount(group, topic, letters, newest_ms)

    async def show_dead_letters(
        self,
        group: str,
        search: Search | None = None,
        *,
        limit: int = 100,
        scan_max: int = SCAN_MAX,
        bytes_max: int = FOUND_BYTES_MAX,
    ) -> FoundLetters:
        """Return a group's dead letters, oldest first. Raises UsageError for a group that has none to read.

        `search`: which are meant, by their own fields as dead letters: `since_ms` is when they became ones;
        `bytes_max`: how many bytes their bodies have at most, but for the last one's.
        """
        found = await self._letters(group, search, limit=limit, scan_max=scan_max, bytes_max=bytes_max)
        letters = [_letter(group, m) for m in found.messages]
        return FoundLetters(letters, found.looked_at, found.stopped, found.next_offsets)

    async def _letters(self, group: str, search: Search | None, **how: Any) -> FoundMessages:
        topic = namespace.DLQ_PREFIX + validators.check_group(group)
        try:
            return await self.find_messages(topic, search, **how)
        except RouteNotFound:
            raise UsageError(f"no dead letters of group {shown(group)!r}: no message used up its attempts") from None

    async def resend_dead_letters(
        self,
        group: str,
        message_ids: Collection[str] | None = None,
        *,
        to: str | None = None,
        to_group: bool = False,
        dry_run: bool = False,
        search: Search | None = None,
    ) -> list[Resent]:
        """Send dead letters of a group again, each once, whoever sent some before; oldest first.

        Args:
            message_ids: unique ids or offset message ids of the letters; None: all that are there when it begins.
            to: the topic to send them to; by default the one each came from.
            to_group: to the group's own retry topic, so that no other group gets them.
            dry_run: look only.
            search: of these, only those.

        Returns what became of each, in order: one that cannot be sent keeps no other from it, but those of its sharding
        key. Raises UsageError for an id that no letter has, and while another resend of this group's letters runs,
        RouteNotFound where `to` is not there, before it sends.
        """
        if to is not None and to_group:
            raise UsageError("give a topic to send to, or to_group, not both")
        there = set(await self._routes.ask(lambda peer: admin_api.topic_list(peer, timeout_ms=self._timeout_ms)))
        if to is not None and to not in there:
            text = f"letters would go to topic {to!r}, which is not there: create it, or name another"
            raise RouteNotFound(to, remark=text)
        search = search or Search()
        if message_ids is not None:
            wanted = {name for given in message_ids for name in (given, given.upper())}
            search = msgspec.structs.replace(search, ids=frozenset(wanted))
            await self._check_there(group, message_ids)
        # A letter may die again at once, and is another one then.
        ends = await self._ends(namespace.DLQ_PREFIX + group)
        done: list[Resent] = []
        blocked: set[tuple[str, str]] = set()
        starts = None
        async with self._locked(group, () if dry_run else ends) as still_locked:
            while True:
                page = await self._letters(
                    group, search, limit=PAGE_LETTERS, scan_max=LONG_MAX, starts=starts, ends=ends
                )
                for message in page.messages:
                    await still_locked()
                    stored = _letter(group, message)
                    letter = _addressed(stored, to, to_group)
                    done.append(await self._resend(stored, letter, to_group, dry_run, there, blocked))
                if not page.stopped:
                    return done
                starts = page.next_offsets

    @asynccontextmanager
    async def _locked(self, group: str, queues: Iterable[MessageQueue]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Lock queues of dead letters, as consumers in order lock theirs, and yield what renews the locks in time.

        Those of brokers without a master are not locked. Raises UsageError if another has one.
        """
        client_id = f"resend@{uuid.uuid4().hex}"
        route = await self._routes.refresh(namespace.DLQ_PREFIX + group) if queues else None
        at_masters: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if route and (there := route.broker(queue.broker_name)) and there.master:
                at_masters.setdefault(there.master, []).append(queue)
        locked_s = -LOCK_S

        async def lock() -> None:
            nonlocal locked_s
            if (now_s := time.monotonic()) < locked_s + LOCK_S / 4:
                return
            for address, wanted in at_masters.items():
                peer = await self._broker(address)
                held = await client_api.lock(peer, GROUP, client_id, wanted, timeout_ms=self._timeout_ms)
                if not held.issuperset(wanted):
                    raise UsageError(
                        f"dead letters of group {shown(group)!r} are being sent again by somebody else, or were until"
                        f" something ended that less than {LOCK_S:.0f} s ago: wait, then try again"
                    )
            locked_s = now_s

        try:
            await lock()
            yield lock
        finally:
            for address, wanted in at_masters.items():
                with suppress(RocketSparkError):  # It ends by itself.
                    peer = await self._broker(address)
                    await client_api.unlock(peer, GROUP, client_id, wanted, timeout_ms=self._timeout_ms)

    async def _check_there(self, group: str, message_ids: Collection[str]) -> None:
        """Raise UsageError unless a group has dead letters of all these ids."""
        missing = set(message_ids)
        starts = None
        while missing:
            search = Search(ids=frozenset(name for given in missing for name in (given, given.upper())))
            page = await self._letters(group, search, limit=PAGE_LETTERS, scan_max=LONG_MAX, starts=starts)
            found = {name for m in page.messages for name in (m.message_id, m.offset_message_id)}
            missing = {given for given in missing if found.isdisjoint((given, given.upper()))}
            if not page.stopped:
                break
            starts = page.next_offsets
        if missing:
            raise UsageError(f"group {shown(group)!r} has no dead letter {shown(min(missing))}")

    async def _ends(self, topic: str) -> dict[MessageQueue, int]:
        try:
            queues = (await self._routes.refresh(topic)).read_queues()
        except RouteNotFound:
            return {}
        return {
            queue: await client_api.max_offset(
                await self._broker(await self._routes.find_readable(queue)), queue, timeout_ms=self._timeout_ms
            )
            for queue in queues
        }

    async def _resend(
        self,
        stored: StoredLetter,
        letter: DeadLetter,
        to_group: bool,
        dry_run: bool,
        there: set[str],
        blocked: set[tuple[str, str]],
    ) -> Resent:
        def outcome(what: str, why: object = "") -> Resent:
            return Resent(letter.message_id, letter.place, letter.target, letter.resend_id, what, str(why))

        if not letter.target:
            return outcome("failed", "it does not tell the topic it came from: name one to send it to")
        if letter.target not in there:
            return outcome("failed", f"topic {letter.target!r} is not there: create it, or name another to send to")
        if stored.message.body_error is not None:
            return outcome("failed", f"its body is damaged: {stored.message.body_error}")
        try:
            out, sharding_key = outgoing(letter, PackingSettings(), to_group=to_group)
        except MessageIllegal as e:
            return outcome("failed", e)
        chain = (letter.target, sharding_key or "")
        if sharding_key and chain in blocked:
            return outcome("failed", "one before it, of its sharding key, was not sent")
        try:
            if await self._is_there(letter):
                return outcome("already")
            known = await self._query(stored.message.topic, letter.message_id, unique=True, count_max=64)
            if not known:
                text = "the broker's index does not know it, so an earlier resend cannot be seen"
                return outcome("failed", f"{text}: use `pipeline dlq --resend`, which reads the target")
            if dry_run:
                return outcome("would send")
            queues = () if sharding_key else (await self._routes.get(letter.target)).producer_queues()
            queue = queue_of(letter, None, queues) if queues else None
            await self._send_once(letter, out, sharding_key, queue)
        except RocketSparkError as e:
            blocked.add(chain)
            return outcome("failed", e)
        return outcome("sent")

    async def _send_once(
        self, letter: DeadLetter, out: PreparedMessage, sharding_key: str | None, queue: MessageQueue | None
    ) -> None:
        """Send a letter. An attempt whose answer never came may have worked: it is looked for before the next one."""
        for left in reversed(range(SENDS)):
            try:
                await (await self._sender()).send_packed(out, sharding_key, queue, None, 1)
                return
            except RocketSparkError as e:
                await asyncio.sleep(DOUBT_S)
                try:
                    if await self._is_there(letter):
                        return
                except RocketSparkError:
                    raise e from None
                if not left or not e.retriable:
                    raise

    async def _is_there(self, letter: DeadLetter) -> bool:
        return bool(await self._query(letter.target, letter.resend_id, unique=True, count_max=64))


def _letter(group: str, m: ReceivedMessage) -> StoredLetter:
    place = f"{namespace.DLQ_PREFIX}{group}/{m.broker_name}/{m.queue_id}/{m.queue_offset}"
    return StoredLetter(group, origin_of(m.properties), place, resend_id(place, m.message_id, m.store_time_ms), m)


def _addressed(stored: StoredLetter, to: str | None, to_group: bool) -> DeadLetter:
    """Return a letter with its target, "" where none is known."""
    m, target = stored.message, to or stored.origin_topic
    if to_group and target:
        # A consumer takes a retried message as one of the topic it came from: that must be known.
        target = namespace.RETRY_PREFIX + stored.group
    return DeadLetter(
        group=stored.group,
        topic=stored.origin_topic,
        target=target,
        place=stored.place,
        resend_id=stored.resend_id,
        message_id=m.message_id,
        body=m.body,
        tag=m.tag,
        keys=list(m.keys),
        properties=m.properties,
        flag=m.flag,
        born_ms=m.born_time_ms,
        dead_ms=m.store_time_ms,
    )


def failures(done: Iterable[Resent]) -> list[Resent]:
    """Return those that were not sent and are not in their target."""
    return [each for each in done if each.outcome == "failed"]
