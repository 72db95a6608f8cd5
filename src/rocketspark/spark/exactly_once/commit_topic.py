"""The commit topic of a transactionalId: queue 0 holds its records, queue 1 the manifests they name.

Rule: the topic is writable on one broker only. All other brokers have it too, read-only: so a writer can tell a broker
that is down from a topic that does not exist yet, and records are never begun a second time on another broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.results import SendResult, SendStatus
from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound, ServerError
from rocketspark.model import MessageQueue, ReceivedMessage, TopicRoute
from rocketspark.model.route import PERM_READ, PERM_WRITE
from rocketspark.model.text import whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import CheckTransactionHeader, EndTransactionHeader, plain_pull
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import checksums, properties, record, sysflags
from rocketspark.protocol.message.message_ids import unique_ids
from rocketspark.protocol.message.record import Record as StoredRecord
from rocketspark.protocol.message.record_layout import CRC_MASK
from rocketspark.spark.exactly_once import commit_records
from rocketspark.spark.exactly_once.commit_records import CommitRecord, HalfOutcome, LastCommit, TransactionalIdState
from rocketspark.tables.option_values import COMMIT_PREFIX
from rocketspark.tables.options import WriteOptions
from rocketspark.transport.peer import Peer
from rocketspark.transport.retries import RetryRule, again

log = logging.getLogger("rocketspark.spark")

T = TypeVar("T")

RECORDS, MANIFESTS = 0, 1
# Queues of the commit topic under which its own group keeps numbers instead of offsets; see `Kept`.
_KEPT_END, _KEPT_BATCH, _KEPT_QUERY, _KEPT_CONTENT = 0, 1, 2, 3
READ_BACK = 32
PULL_BYTES = 4 << 20
PAUSE_S = 0.2
# Age up to which records that were read before may serve the answer to a broker's check.
STATE_AGE_S = 1.0


def topic_of(transactional_id: str) -> str:
    """Return the name of the commit topic; the group of the half messages has the same name."""
    return f"{COMMIT_PREFIX}{transactional_id}"


class CommitTopic:
    """Reads and writes the records and manifests of one transactionalId; its client also answers brokers that ask about
    the half messages.
    """

    def __init__(self, options: WriteOptions) -> None:
        assert options.transactional_id
        self.name = options.transactional_id
        # As servers know it, with the namespace.
        self.topic = options.access.wire(topic_of(self.name))
        self._budget_s = options.commit_timeout_ms / 1000
        self._timeout_ms = options.timeout_ms
        self.producer = AsyncProducer(
            options.namesrv,
            topic_of(self.name),
            send_timeout_ms=options.timeout_ms,
            retries=options.attempts_max - 1,
            **options.access.client_options(),
        )
        assert self.producer.group == self.topic
        self.instance = self.producer._instance
        self.instance.asked.checks[self.topic] = self._check
        self._broker = ""
        self._read: tuple[float, TransactionalIdState] | None = None

    async def start(self) -> None:
        """Start the client; the commit topic is not looked up yet."""
        await self.producer.start()

    async def close(self) -> None:
        """Close the connections."""
        await self.producer.close()

    # -- trying again --------------------------------------------------------------------------------------------

    async def again(self, call: Callable[[], Awaitable[T]], *, topic: str | None = None) -> T:
        """Make a call, and repeat it while it fails in a way that may pass, for as long as a commit may take.

        `topic`: the topic whose route is fetched anew before each repetition; by default the commit topic.
        """

        async def refresh(error: Exception) -> None:
            log.info("%s; tried again", error)
            with contextlib.suppress(RocketSparkError):
                await self.instance.routes.refresh(topic or self.topic)

        return await again(call, RetryRule(budget_s=self._budget_s, pauses_s=(PAUSE_S,)), between=refresh)

    # -- where it is ---------------------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make the commit topic if it does not exist. To be called by the driver alone, one call at a time."""
        await self.again(self._make)

    async def _make(self) -> None:
        routes = self.instance.routes
        try:
            cluster = await routes.ask(lambda peer: admin_api.cluster_info(peer, timeout_ms=self._timeout_ms))
        except ServerError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise ConfigError(
                f"{e.address} is no NameServer: it tells of no brokers; exactly-once writes reach these themselves, so"
                " give namesrv the addresses of NameServers, not those of a proxy or broker"
            ) from None
        masters = {
            broker.broker_name: broker.broker_addrs[0]
            for broker in cluster.broker_addr_table.values()
            if 0 in broker.broker_addrs
        }
        try:
            route = await routes.refresh(self.topic)
        except RouteNotFound:
            if not masters:
                raise RouteNotFound(self.topic, remark="no broker is up: start one") from None
            chosen = min(masters)
            peer = await self.instance.broker(masters[chosen])
            await _make_group(peer, self.topic)
            await self._make_on(peer, PERM_READ | PERM_WRITE)
            await self._await_route(chosen)
            log.info("transactionalId %s: its commit topic %s is on broker %s", self.name, self.topic, chosen)
            route = await routes.refresh(self.topic)
        have = {queue.broker_name for queue in route.queues}
        for broker_name in sorted(masters.keys() - have):
            await self._make_on(await self.instance.broker(masters[broker_name]), PERM_READ)
        await self._locate(route)
        for queue in route.queues:
            # Made by hand, or while this broker was down for the very first time.
            if queue.perm & PERM_WRITE and queue.broker_name != self._broker and queue.broker_name in masters:
                await self._make_on(await self.instance.broker(masters[queue.broker_name]), PERM_READ)

    async def _make_on(self, peer: Peer, perm: int) -> None:
        config = bodies.TopicConfig(topic_name=self.topic, read_queue_nums=2, write_queue_nums=2, perm=perm)
        await admin_api.create_topic(peer, config, timeout_ms=self._timeout_ms)

    async def _await_route(self, broker_name: str) -> None:
        """Wait until the NameServer has the route: brokers tell it at once, but not before they answer."""
        end_s = time.monotonic() + self._budget_s
        while time.monotonic() < end_s:
            with contextlib.suppress(RouteNotFound):
                route = await self.instance.routes.refresh(self.topic)
                if any(queue.broker_name == broker_name for queue in route.queues):
                    return
            await asyncio.sleep(0.02)

    async def find(self) -> None:
        """Look up where the commit topic is."""

        async def look() -> None:
            await self._locate(await self.instance.routes.refresh(self.topic))

        await self.again(look)

    async def _locate(self, route: TopicRoute) -> None:
        writable = sorted(q.broker_name for q in route.queues if q.perm & PERM_WRITE)
        if not writable:
            raise RouteNotFound(
                self.topic,
                remark=f"transactionalId {self.name!r}: the broker that has its commit topic {self.topic} is down, or"
                " the topic was made read-only there: start it again, or give the topic permission 6; nothing can be"
                " written exactly once meanwhile",
            )
        if len(writable) > 1:
            # One of them was never used; `make` sees to it that it never will be.
            used = []
            for broker_name in writable:
                queue = MessageQueue(self.topic, broker_name, RECORDS)
                if await client_api.max_offset(
                    await self.instance.master_of(queue), queue, timeout_ms=self._timeout_ms
                ):
                    used.append(broker_name)
            if len(used) > 1:
                raise RocketSparkError(
                    f"transactionalId {self.name!r}: brokers {', '.join(used)} both have records in {self.topic}:"
                    " remove the topic where it does not belong"
                )
            writable = used or writable
        self._broker = writable[0]

    def _queue(self, queue_id: int) -> MessageQueue:
        return MessageQueue(self.topic, self._broker, queue_id)

    # -- writing -------------------------------------------------------------------------------------------------

    async def append(self, entry: CommitRecord) -> int:
        """Write a record; returns its queue offset. If a reply was lost, the record may stand there twice."""
        return (await self._send(RECORDS, commit_records.encode(entry), entry.kind)).queue_offset

    async def append_manifest(self, manifest: commit_records.HandleManifest) -> int:
        """Write a manifest; returns the queue offset it has."""
        return (await self._send(MANIFESTS, commit_records.encode_manifest(manifest), "manifest")).queue_offset

    async def _send(self, queue_id: int, body: bytes, tag: str) -> SendResult:
        message_id = unique_ids.next()
        text = f"{properties.UNIQUE_ID}\x01{message_id}\x02{properties.WAIT}\x01true\x02{properties.TAGS}\x01{tag}\x02"
        out = PreparedMessage(self.topic, body, text, 0, 0, message_id)

        async def send() -> SendResult:
            return safely_stored(await self.producer.send_packed(out, None, self._queue(queue_id), None))

        return await self.again(send)

    # -- reading -------------------------------------------------------------------------------------------------

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the oldest offset of a queue, and the offset of the next message."""

        async def ask() -> tuple[int, int]:
            peer = await self.instance.master_of(queue)
            oldest = await client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms)
            return oldest, await client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms)

        return await self.again(ask, topic=queue.topic)

    async def read_count(self, queue: MessageQueue) -> int | None:
        """Return how many queues of a topic can be read at a queue's broker; None if the broker does not tell."""

        async def ask() -> int | None:
            peer = await self.instance.master_of(queue)
            try:
                config = await admin_api.topic_config(peer, queue.topic, timeout_ms=self._timeout_ms)
            except ServerError:
                return None  # A broker before 5.0, or one that does not let us ask.
            return 0 if config is None else config.read_queue_nums

        return await self.again(ask, topic=queue.topic)

    async def manifests_end(self) -> int:
        """Return the offset that the next manifest will get."""
        return (await self.bounds(self._queue(MANIFESTS)))[1]

    async def read(
        self, queue: MessageQueue, first: int, end: int, *, check_bodies: bool = True
    ) -> AsyncIterator[StoredRecord]:
        """Return the messages of a queue from offset `first` up to `end`; those that are gone are left out.

        Raises RocketSparkError for one whose body is damaged, unless `check_bodies` is false.
        """

        async def ask() -> client_api.PullResult:
            header = plain_pull(
                self.topic,
                queue.topic,
                queue.queue_id,
                first,
                min(end - first, 1024),
                expression_type="TAG",
                bytes_max=PULL_BYTES,
                broker_name=queue.broker_name,
            )
            peer = await self.instance.master_of(queue)
            return await client_api.pull(peer, header, timeout_ms=self._timeout_ms)

        while first < end:
            pulled = await self.again(ask, topic=queue.topic)
            if pulled.code == ResponseCode.SUCCESS:
                for stored in record.decode_all(pulled.records, check_crc=False):
                    if first <= stored.queue_offset < end:
                        if check_bodies and not is_whole(stored):
                            raise _damaged(queue, stored.queue_offset)
                        yield stored
            elif pulled.header.next_offset <= first:
                # The messages have just been deleted, or an official broker has them in its log, not yet in the queue.
                oldest, _ = await self.settled(queue, end)
                if first >= oldest:
                    await asyncio.sleep(PAUSE_S)
                first = max(first, oldest)
                continue
            first = max(pulled.header.next_offset, first)

    async def settled(self, queue: MessageQueue, end: int) -> tuple[int, int]:
        """Return the bounds of a queue once it shows all messages before `end`: Apache's brokers show a message a
        little later than they acknowledge it.
        """
        end_s = time.monotonic() + self._budget_s
        while True:
            oldest, newest = await self.bounds(queue)
            if newest >= end:
                return oldest, newest
            if time.monotonic() >= end_s:
                raise RocketSparkError(f"{queue} ends at {newest}, not at {end}: messages of it are gone")
            await asyncio.sleep(PAUSE_S / 10)

    def manifests(self, first: int, end: int) -> AsyncIterator[StoredRecord]:
        """Return the messages of the manifest queue from offset `first` up to `end`."""
        return self.read(self._queue(MANIFESTS), first, end)

    async def state(self, since: int | None = None, *, upto: int = 0) -> TransactionalIdState:
        """Return the state of the transactionalId, from records that are read backwards to the last commit.

        `since`: at least all records from this queue offset on are read; `upto`: wait until all records before this
        offset can be read. Raises RocketSparkError for a damaged record that may decide: one of these, or since the
        last commit.
        """
        queue = self._queue(RECORDS)
        oldest, end = await self.settled(queue, upto)
        found: list[tuple[int, CommitRecord]] = []
        damaged = -1
        at = end
        while at > oldest and (not commit_records.holds_commit(found) or (since is not None and at > since)):
            first = max(at - READ_BACK, oldest)
            part = []
            async for stored in self.read(queue, first, at, check_bodies=False):
                if is_whole(stored):
                    part.append((stored.queue_offset, commit_records.decode(stored.body)))
                else:
                    damaged = max(damaged, stored.queue_offset)
            found = part + found
            at = first
        decided = max((at for at, one in found if one.kind == commit_records.COMMIT and one.at == at), default=0)
        if damaged >= min(decided, end if since is None else since):
            raise _damaged(queue, damaged)
        state = commit_records.state_of(found, end)
        if state.last is None and oldest:
            state.kept = await self._kept(oldest)
        self._read = (time.monotonic(), state)
        return state

    # -- what stays when records expire --------------------------------------------------------------------------

    async def keep(self, state: TransactionalIdState) -> None:
        """Note the last batch, which has ended, in the committed offsets of the group, as these do not expire like
        messages.
        """
        numbers: dict[int, int] = {}
        if state.last is not None and state.ended:
            numbers = {_KEPT_QUERY: commit_records.query_hash(state.last.query), _KEPT_BATCH: state.last.batch}
            numbers[_KEPT_CONTENT] = state.content or 0
        elif state.last is not None or state.kept is None:
            return
        numbers[_KEPT_END] = state.end
        for queue_id, number in numbers.items():
            await self.again(partial(self._put_number, self._queue(queue_id), number))

    async def _put_number(self, queue: MessageQueue, number: int) -> None:
        peer = await self.instance.master_of(queue)
        await client_api.update_consumer_offset(peer, queue, self.topic, number, timeout_ms=self._timeout_ms)

    async def _get_number(self, queue: MessageQueue) -> int | None:
        peer = await self.instance.master_of(queue)
        return await client_api.query_consumer_offset(
            peer, queue, self.topic, zero_if_not_found=False, timeout_ms=self._timeout_ms
        )

    async def _kept(self, oldest: int) -> LastCommit | None:
        """Return the noted numbers, which must cover all records before the oldest that is left."""
        found = []
        for queue_id in (_KEPT_END, _KEPT_BATCH, _KEPT_QUERY, _KEPT_CONTENT):
            found.append(await self.again(partial(self._get_number, self._queue(queue_id))))
        end, batch, query, content = found
        if end is None or batch is None or query is None:
            return None
        kept = LastCommit(end, batch, query, content)
        if kept.end < oldest:
            raise RocketSparkError(
                f"transactionalId {self.name!r}: its records in {self.topic} are older than the broker keeps messages,"
                " and whether its last batch was committed is not known: compare what was written with the query's"
                " checkpoint, then go on with another transactionalId"
            )
        return kept

    # -- brokers' questions --------------------------------------------------------------------------------------

    async def _check(self, peer: Peer, question: CheckTransactionHeader, message: ReceivedMessage) -> None:
        """Answer a broker that asks about a half message that is still open."""
        batch = batch_of(message.properties.get(DEDUPE_KEY, ""))
        outcome = HalfOutcome.UNKNOWN
        if batch is not None:
            try:
                if not self._broker:
                    await self.find()
                read_s, state = self._read or (0.0, TransactionalIdState())
                if time.monotonic() - read_s > STATE_AGE_S:
                    state = await self.state()
                outcome = commit_records.outcome_of(state, batch)
            except RocketSparkError as e:
                log.warning("%s asks about a half message of %s: %s; it will ask again", peer.address, self.name, e)
        header = EndTransactionHeader(
            topic=message.topic,
            producer_group=self.topic,
            half_offset=question.half_offset,
            physical_offset=question.physical_offset,
            outcome=sysflags.TRANSACTION_ROLLBACK if outcome is HalfOutcome.ROLLBACK else 0,
            from_check=True,
            message_id=message.message_id or question.message_id or "",
            transaction_id=question.transaction_id,
            broker_name=question.broker_name,
        )
        with contextlib.suppress(RocketSparkError):
            client_api.end_transaction(peer, header)


def is_whole(stored: StoredRecord) -> bool:
    """Tell whether a record's body is undamaged."""
    return not stored.crc or checksums.crc32(stored.body) & CRC_MASK == stored.crc


def _damaged(queue: MessageQueue, offset: int) -> RocketSparkError:
    return RocketSparkError(
        f"topic {queue.topic!r}: the message at offset {offset} of queue {queue.queue_id} on broker"
        f" {queue.broker_name!r} is damaged: restore that broker's store from a replica or a backup; without one"
        " compare what was written with the query's checkpoint, and go on with another transactionalId"
    )


class NotSafelyStored(RocketSparkError):
    """Raised when a message is stored with less safety than its broker promises: it is not on a slave, or not on the
    disk yet.
    """

    retriable = True


def safely_stored(sent: SendResult) -> SendResult:
    """Return a send's result if the message is stored so that it outlives the broker. Raises NotSafelyStored: a commit
    that depends on a message which a new master lacks would be lost with it.
    """
    if sent.status is not SendStatus.SEND_OK:
        raise NotSafelyStored(
            f"broker {sent.queue.broker_name!r} answered {sent.status.name}: not all copies that it promises are there;"
            " start its slave, or have its disk looked at"
        )
    return sent


# The property that names a row for ever: transactionalId/batch/partition/number within it.
DEDUPE_KEY = "DEDUPE_KEY"


def batch_of(dedupe_key: str) -> int | None:
    """Return the batch number that a dedupe key of an exactly-once write holds; None if the key is of another form."""
    parts = dedupe_key.rsplit("/", 3)
    return whole_number(parts[1]) if len(parts) == 4 else None


async def _make_group(peer: Peer, group: str) -> None:
    """Make the consumer group whose offsets keep the last batch. Only at first: an official broker needs it."""
    body = msgspec.json.encode(bodies.GroupConfig(group_name=group))
    reply = await peer.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    reply.raise_for_code(f"create group {group!r}")
