"""A server under mixed load, killed and started again: what it may have lost, doubled or mixed up is looked for.

Rule: what was answered is accounted for message by message; what was not answered may be there or not, once at most.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.support import beat, create, pull_header, records, send_header
from tests.support.patience import LIMIT_S
from tests.support.ports import server_ports

from rocketspark import AsyncProducer, AsyncPushConsumer, ReceivedMessage
from rocketspark.broker.broker_conf import settings_from
from rocketspark.errors import RocketSparkError, RouteNotFound, SendFailed, TransportError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import EndTransactionHeader, OffsetReply, PullReply, SendReply
from rocketspark.protocol.message import batch, properties, record, sysflags
from rocketspark.protocol.message.record import Record
from rocketspark.store import Store
from rocketspark.testing import ServerProcess
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes

MIXED, CLIENT, REMADE = "mixed", "by-client", "remade"
QUEUES = 4
SENDERS = 16
CLIENT_SENDERS = 3
# A server that has just been started may have much to do.
ANSWER_MS = 120_000
GROUP, PRODUCERS = "followers", "PG"
COMMIT, ROLLBACK = 8, 12
CONFIG: dict[str, object] = {
    # Small files, so that each kind begins a new one now and then.
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 20_000,
    "mappedFileSizeTimerLog": 52 * 2000,
    "messageDelayLevel": "1s 2s",
    "transactionTimeOut": 300,
    "transactionCheckInterval": 300,
    "transactionCheckMax": 1000,
    "flushIntervalCommitLog": 50,
    "flushIntervalConsumeQueue": 100,
    "flushConsumerOffsetInterval": 200,
    "flushDelayOffsetInterval": 500,
    "maxTransferCountOnMessageInMemory": 1000,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
    "cleanFileForciblyEnable": "false",
}
# Batches store several; the rest one each.
KINDS = {"single": 50, "batch": 12, "oneway": 6, "delay": 8, "timer": 8, "commit": 8, "rollback": 4, "open": 4}


@dataclass(slots=True)
class Sent:
    """What was sent with one key. `at`: the queue offset that the reply named; `done`: it was answered."""

    number: int
    kind: str
    queue_id: int
    at: int | None = None
    done: bool = False

    @property
    def key(self) -> str:
        return f"k{self.number}"

    @property
    def body(self) -> bytes:
        return b"%d:" % self.number + bytes([65 + self.number % 26]) * (self.number * 37 % 900)

    @property
    def commits(self) -> bool:
        """How an open transaction ends when the broker asks."""
        return self.kind == "commit" or (self.kind == "open" and self.number % 2 == 0)

    @property
    def wanted(self) -> bool:
        """Answered, so it has to be there in the end."""
        return self.done and self.kind != "oneway" and (self.kind not in ("rollback", "open") or self.commits)


@dataclass(slots=True)
class Found:
    """One stored copy of a message."""

    queue_id: int
    offset: int
    position: int


@dataclass
class Cycles:
    """The run. `say` gets a line per cycle; `least`: so many sends are acknowledged in each before the kill."""

    server: ServerProcess
    seed: int
    say: Callable[[str], None] = lambda line: None
    least: int = 0
    sent: dict[int, Sent] = field(default_factory=dict)
    # By number, as last looked through; and per queue up to where that was.
    found: dict[int, list[Found]] = field(default_factory=lambda: defaultdict(list))
    looked: list[int] = field(default_factory=lambda: [0] * QUEUES)
    offsets_asked: list[int] = field(default_factory=lambda: [0] * QUEUES)
    consumed: set[int] = field(default_factory=set)
    client_sent: set[bytes] = field(default_factory=set)
    client_tried: set[bytes] = field(default_factory=set)
    client_got: Counter[bytes] = field(default_factory=Counter)
    remade: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.numbers = itertools.count()
        self.other_numbers = itertools.count()
        # Where the cycle before this one began, from where on messages may still come.
        self.recent = 0
        self.stopping = False

    # -- the run ---------------------------------------------------------------------------------------------------

    async def run(self, cycles: int) -> None:
        await asyncio.to_thread(self.server.start)
        peer = await dial(self.server.broker)
        await create(peer, MIXED, QUEUES)
        await create(peer, CLIENT, 2)
        peer.close()
        consumer = AsyncPushConsumer(self.server.namesrv, "by-client", consume_from="first", commit_interval_ms=100)
        consumer.subscribe(CLIENT)
        consumer.listen(self._client_got)
        async with AsyncProducer(self.server.namesrv, "pg", send_timeout_ms=30_000, retries=100) as producer, consumer:
            clients = [asyncio.ensure_future(self._send_by_client(producer)) for _ in range(CLIENT_SENDERS)]
            for cycle in range(1, cycles + 1):
                await self._cycle(cycle)
            await self._settle()
            self.stopping = True
            await asyncio.gather(*clients)
            await self._until(lambda: self.client_sent <= self.client_got.keys(), "the client's messages consumed")
        assert await asyncio.to_thread(self.server.stop) == 0
        self._check_store()

    async def _cycle(self, cycle: int) -> None:
        peers = [await dial(self.server.broker, self._routes()) for _ in range(3)]
        for i, peer in enumerate(peers):
            await beat(peer, client_id=f"c{i}", group=GROUP, producer=PRODUCERS, topics={MIXED: "*"})
        count = len(self.sent)
        tasks = [asyncio.ensure_future(self._send(peers[i % 2])) for i in range(SENDERS)]
        tasks += [asyncio.ensure_future(self._follow(peers[2], queue_id)) for queue_id in range(QUEUES)]
        tasks.append(asyncio.ensure_future(self._remake(peers[1])))
        load_s = self.chance.uniform(0.2, 0.9)
        await asyncio.sleep(load_s)
        clients = len(self.client_sent)
        await self._until(
            lambda: self._answered(count) >= self.least and len(self.client_sent) >= clients + self.least // 10,
            "sends acknowledged",
        )
        how = "stopped" if self.chance.random() < 0.1 else "killed"
        await asyncio.to_thread(self.server.stop if how == "stopped" else self.server.kill)
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        for peer in peers:
            peer.close()
        if self.chance.random() < 0.2:
            how += ", again while it started"
            await self._kill_at_start()
        began = time.monotonic()
        await asyncio.to_thread(self.server.start)
        start_s = time.monotonic() - began
        began = time.monotonic()
        looked = await self._look(from_start=False)
        self.say(
            f"cycle {cycle}: {how} after {load_s:.2f} s, {len(self.sent) - count} sent,"
            f" {self._answered(count)} acknowledged,"
            f" ready again in {start_s:.2f} s,"
            f" {looked} messages right in {time.monotonic() - began:.2f} s; in all {len(self.sent)} sent,"
            f" {len(self.client_sent)} by the client, {len(self.consumed)} consumed"
        )
        self.recent = count
        # What is kept of a long run would be looked through by the collector again and again, for seconds.
        gc.freeze()

    def _answered(self, first: int) -> int:
        return sum(self.sent[n].done for n in range(first, len(self.sent)))

    async def _kill_at_start(self) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(self.server.start))
        await asyncio.sleep(self.chance.uniform(0.1, 1.2))
        self.server.kill()
        try:
            await starting
        except (RocketSparkError, ValueError):
            pass  # It was killed before it was ready.
        self.server.kill()

    async def _settle(self) -> None:
        """All that was left to the broker is done: delays, open transactions; then everything is looked through."""
        peers = [await dial(self.server.broker, self._routes()) for _ in range(2)]
        await beat(peers[0], client_id="c0", group=GROUP, producer=PRODUCERS, topics={MIXED: "*"})
        follow = [asyncio.ensure_future(self._follow(peers[1], queue_id)) for queue_id in range(QUEUES)]
        wanted = {number for number, sent in self.sent.items() if sent.wanted}
        end_s = time.monotonic() + LIMIT_S
        while missing := wanted - self.found.keys():
            assert time.monotonic() < end_s, f"lost: {[self.sent[n] for n in sorted(missing)[:5]]}"
            await asyncio.sleep(0.2)
            await self._look(from_start=False)
        await self._until(lambda: wanted <= self.consumed, "all consumed")
        await self._look(from_start=True)
        self.stopping = True
        for peer in peers:
            peer.close()
        await asyncio.gather(*follow)

    async def _until(self, true: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < end_s, f"not within {LIMIT_S:.0f} s: {what}"
            await asyncio.sleep(0.05)

    # -- load ------------------------------------------------------------------------------------------------------

    def _new(self, kind: str, queue_id: int) -> Sent:
        number = next(self.numbers)
        sent = self.sent[number] = Sent(number, kind, queue_id)
        return sent

    async def _send(self, peer: Peer) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        try:
            while peer.is_open:
                (kind,) = self.chance.choices(kinds, weights)
                queue_id = self.chance.randrange(QUEUES)
                if kind == "batch":
                    await self._send_batch(peer, queue_id)
                elif kind == "oneway":
                    sent = self._new(kind, queue_id)
                    peer.oneway(RequestCode.SEND_MESSAGE_V2, _header(sent), sent.body)
                    await asyncio.sleep(0)
                elif kind in ("commit", "rollback", "open"):
                    await self._send_half(peer, self._new(kind, queue_id))
                else:
                    await self._send_one(peer, self._new(kind, queue_id))
        except TransportError:
            pass

    async def _send_one(self, peer: Peer, sent: Sent) -> None:
        more = {"delay": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "1000"}}.get(sent.kind, {})
        reply = await peer.request(RequestCode.SEND_MESSAGE_V2, _header(sent, **more), sent.body, timeout_ms=ANSWER_MS)
        answer = reply.raise_for_code("send").header(SendReply)
        if sent.kind == "single":
            sent.at = answer.queue_offset
        sent.done = True

    async def _send_batch(self, peer: Peer, queue_id: int) -> None:
        items = [self._new("batch", queue_id) for _ in range(self.chance.randrange(2, 8))]
        body = batch.encode(batch.BatchItem(0, sent.body, properties.encode(_pairs(sent)).encode()) for sent in items)
        header = send_header(MIXED, queue_id, batch=True)
        reply = await peer.request(RequestCode.SEND_BATCH_MESSAGE, header, body, timeout_ms=ANSWER_MS)
        first = reply.raise_for_code("send").header(SendReply).queue_offset
        for i, sent in enumerate(items):
            sent.at, sent.done = first + i, True

    async def _send_half(self, peer: Peer, sent: Sent) -> None:
        pairs = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        header = _header(sent, **pairs)
        header.sys_flag = sysflags.TRANSACTION_PREPARED
        reply = await peer.request(RequestCode.SEND_MESSAGE_V2, header, sent.body, timeout_ms=ANSWER_MS)
        half = reply.raise_for_code("send").header(SendReply)
        # The broker has it now: if the end below is not heard it asks for it.
        sent.done = True
        if sent.kind == "open":
            return
        end = _end(half.queue_offset, int(half.message_id[-16:], 16), commits=sent.commits)
        if sent.number % 2:
            peer.oneway(RequestCode.END_TRANSACTION, end)
        else:
            (await peer.request(RequestCode.END_TRANSACTION, end, timeout_ms=ANSWER_MS)).raise_for_code("end")

    def _routes(self) -> Routes:
        routes = Routes()
        routes.add(RequestCode.CHECK_TRANSACTION_STATE, self._checked)
        routes.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, lambda peer, request, body: None)
        return routes

    def _checked(self, peer: Peer, request: Any, body: bytes) -> None:
        sent = self.sent[_number(record.decode(body))]
        assert sent.kind in ("commit", "rollback", "open")
        end = _end(request.ext.half_offset, request.ext.physical_offset, commits=sent.commits)
        peer.oneway(RequestCode.END_TRANSACTION, end)

    async def _remake(self, peer: Peer) -> None:
        """A topic deleted and made again, with a few messages, as often as goes."""
        try:
            while peer.is_open:
                await create(peer, REMADE, 1)
                for _ in range(self.chance.randrange(4)):
                    body = b"%d" % next(self.other_numbers)
                    # Noted before the answer: it may be there without one, as the last.
                    self.remade.append(body)
                    reply = await peer.request(
                        310, send_header(REMADE, 0, pairs={"KEYS": "k"}), body, timeout_ms=ANSWER_MS
                    )
                    assert reply.raise_for_code("send").header(SendReply).queue_offset == len(self.remade) - 1
                    await asyncio.sleep(self.chance.uniform(0, 0.1))
                await asyncio.sleep(self.chance.uniform(0, 0.3))
                self.remade_before, self.remade = self.remade, []
                header = headers.TopicHeader(topic=REMADE)
                (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_ms=ANSWER_MS)).raise_for_code(
                    "delete"
                )
                self.remade_before = []
        except TransportError:
            pass

    async def _send_by_client(self, producer: AsyncProducer) -> None:
        while not self.stopping:
            body = b"%d" % next(self.other_numbers)
            self.client_tried.add(body)
            try:
                await producer.send(CLIENT, body)
                self.client_sent.add(body)
            except (SendFailed, RouteNotFound):
                pass
            await asyncio.sleep(0.005)

    def _client_got(self, message: ReceivedMessage) -> None:
        self.client_got[message.body] += 1

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _follow(self, peer: Peer, queue_id: int) -> None:
        """Reads a queue on from the group's offset; the offset is committed by the pulls, and by requests."""
        try:
            at = await self._committed(peer, queue_id)
            while peer.is_open and not self.stopping:
                self.offsets_asked[queue_id] = max(self.offsets_asked[queue_id], at)
                header = pull_header(MIXED, queue_id, at, group=GROUP, commit_offset=at, suspend_ms=500)
                header.sys_flag = sysflags.PULL_COMMIT_OFFSET | sysflags.PULL_SUSPEND | sysflags.PULL_SUBSCRIPTION
                header.count_max = 100
                reply = await peer.request(RequestCode.PULL_MESSAGE, header, timeout_ms=ANSWER_MS)
                # An offset that is never beyond the queue's end is never moved.
                assert reply.code in (0, 19, 20), reply
                for stored in records(reply):
                    assert stored.queue_offset == at
                    self.consumed.add(_number(stored))
                    at += 1
                assert reply.header(PullReply).next_offset == at
                if self.chance.random() < 0.1:
                    self.offsets_asked[queue_id] = max(self.offsets_asked[queue_id], at)
                    commit = headers.UpdateConsumerOffsetHeader(
                        group=GROUP, topic=MIXED, queue_id=queue_id, commit_offset=at
                    )
                    (
                        await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit, timeout_ms=ANSWER_MS)
                    ).raise_for_code("commit")
                    assert await self._committed(peer, queue_id) == at
        except TransportError:
            pass

    async def _committed(self, peer: Peer, queue_id: int) -> int:
        header = headers.QueryConsumerOffsetHeader(group=GROUP, topic=MIXED, queue_id=queue_id)
        reply = await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=ANSWER_MS)
        return 0 if reply.code == 22 else reply.raise_for_code("offset").header(OffsetReply).offset

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _look(self, *, from_start: bool) -> int:
        """Looks through all queues, or what is new and a little before; how many messages were looked at."""
        peer = await dial(self.server.broker)
        looked = 0
        if from_start:
            self.found.clear()
            self.looked = [0] * QUEUES
            self.recent = 0
        for queue_id in range(QUEUES):
            looked += await self._look_through(peer, queue_id, max(0, self.looked[queue_id] - 300))
        self._check_found()
        await self._check_keys(peer)
        await self._check_remade(peer)
        peer.close()
        return looked

    async def _look_through(self, peer: Peer, queue_id: int, at: int) -> int:
        first = at
        before = self.looked[queue_id]
        # Asked before the end is: followers may go on meanwhile, with what comes meanwhile.
        committed = await self._committed(peer, queue_id)
        asked = headers.QueueHeader(topic=MIXED, queue_id=queue_id)
        assert (await peer.request(RequestCode.GET_MIN_OFFSET, asked, timeout_ms=ANSWER_MS)).header(
            OffsetReply
        ).offset == 0
        end = headers.MaxOffsetHeader(topic=MIXED, queue_id=queue_id)
        high = (await peer.request(RequestCode.GET_MAX_OFFSET, end, timeout_ms=ANSWER_MS)).header(OffsetReply).offset
        assert high >= self.looked[queue_id]
        position = -1
        while at < high:
            header = pull_header(MIXED, queue_id, at, group=GROUP, count_max=1000)
            reply = (await peer.request(RequestCode.PULL_MESSAGE, header, timeout_ms=ANSWER_MS)).raise_for_code("pull")
            for stored in records(reply):
                assert (stored.topic, stored.queue_id, stored.queue_offset) == (MIXED.encode(), queue_id, at)
                assert stored.position > position
                position = stored.position
                sent = self.sent[_number(stored)]
                assert stored.body == sent.body
                assert stored.queue_id == sent.queue_id
                copy = Found(queue_id, at, position)
                if at >= before:
                    self.found[sent.number].append(copy)
                else:
                    assert copy in self.found[sent.number], (copy, sent)
                at += 1
            assert reply.header(PullReply).next_offset == at
        self.looked[queue_id] = at
        # No consumer is beyond the end, nor where it never wanted to be.
        assert committed <= min(at, self.offsets_asked[queue_id]), (committed, at, self.offsets_asked[queue_id])
        return at - first

    def _check_found(self) -> None:
        for sent in map(self.sent.__getitem__, range(self.recent, len(self.sent))):
            copies = self.found.get(sent.number, [])
            if sent.at is not None:
                assert [copy.offset for copy in copies] == [sent.at], sent
            assert len(copies) <= 1, (sent, copies)
            assert not copies or sent.commits or sent.kind not in ("rollback", "open"), sent

    async def _check_keys(self, peer: Peer) -> None:
        known = list(self.found)
        for number in {self.chance.choice(known) for _ in range(40)} if known else ():
            asked = headers.QueryMessageHeader(
                topic=MIXED, key=self.sent[number].key, count_max=32, begin_ms=0, end_ms=1 << 60
            )
            reply = (await peer.request(RequestCode.QUERY_MESSAGE, asked, timeout_ms=ANSWER_MS)).raise_for_code("query")
            hits = sorted(stored.position for stored in records(reply))
            wanted = sorted(copy.position for copy in self.found[number])
            assert hits == wanted, number
            view = headers.ViewMessageHeader(physical_offset=wanted[0])
            (seen,) = records(
                (await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, view, timeout_ms=ANSWER_MS)).raise_for_code("view")
            )
            assert _number(seen) == number

    async def _check_remade(self, peer: Peer) -> None:
        """The topic has what was sent since it was made, or, if the deletion was not answered, what was before."""
        reply = await peer.request(
            RequestCode.PULL_MESSAGE, pull_header(REMADE, 0, 0, group=GROUP), timeout_ms=ANSWER_MS
        )
        got = [] if reply.code in (17, 19, 29) else [stored.body for stored in records(reply)]
        before = getattr(self, "remade_before", [])
        unanswered = self.remade[:-1]
        assert got in (self.remade, unanswered, before, before[:-1]), (got, self.remade, before)
        header = headers.TopicHeader(topic=REMADE)
        (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_ms=ANSWER_MS)).raise_for_code("delete")
        self.remade, self.remade_before = [], []

    def _check_store(self) -> None:
        """The files themselves, after a clean stop: log, queues and what was sent by the client agree."""
        settings, _ = settings_from({key: str(value) for key, value in CONFIG.items()})
        settings.store_root = str(self.server.store)
        store = Store(settings.store_settings())
        store.open()
        assert store.recovered.replayed <= 1
        queued: dict[tuple[str, int], list[int]] = defaultdict(list)
        by_client: dict[bytes, set[str]] = defaultdict(set)
        time_ms = 0
        for stored in store.iterate(0):
            assert stored.store_time_ms >= time_ms
            time_ms = stored.store_time_ms
            topic = stored.topic.decode()
            if topic == REMADE:
                continue
            assert stored.queue_offset == len(queued[topic, stored.queue_id])
            queued[topic, stored.queue_id].append(stored.position)
            if topic == CLIENT:
                by_client[stored.body].add(_pairs_of(stored)["UNIQ_KEY"])
        for (topic, queue_id), positions in queued.items():
            assert store.queue_range(topic, queue_id) == (0, len(positions))
            assert [unit[0] for unit in store.queue_units(topic, queue_id, 0, len(positions))] == positions
        assert {(topic, i) for topic, ids in store.queues().items() for i in ids} == queued.keys()
        # A send tried again is the same message again.
        assert all(len(ids) == 1 for ids in by_client.values())
        assert self.client_sent <= by_client.keys() <= self.client_tried
        store.close()


def _pairs(sent: Sent) -> dict[str, str]:
    return {"KEYS": sent.key, "UNIQ_KEY": f"{sent.number:032X}", "TAGS": f"t{sent.number % 5}"}


def _pairs_of(stored: Record) -> dict[str, str]:
    return properties.decode(stored.properties.decode())


def _header(sent: Sent, **pairs: str) -> headers.SendHeader:
    return send_header(MIXED, sent.queue_id, pairs=_pairs(sent) | pairs)


def _number(stored: Record) -> int:
    return int(stored.body.partition(b":")[0])


def _end(half_offset: int, position: int, *, commits: bool) -> EndTransactionHeader:
    return EndTransactionHeader(
        topic=MIXED,
        producer_group=PRODUCERS,
        half_offset=half_offset,
        physical_offset=position,
        outcome=COMMIT if commits else ROLLBACK,
    )


def run_cycles(
    root: Path,
    cycles: int,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
    *,
    flush: str = "ASYNC_FLUSH",
    least: int = 0,
) -> Cycles:
    """So many kills of a server over one store; fails at the first thing that is wrong."""
    import uvloop

    server = ServerProcess(root / "store", **server_ports(), config=CONFIG | {"flushDiskType": flush})
    run = Cycles(server, seed, say, least)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run.run(cycles))
    finally:
        server.kill()
        gc.unfreeze()
    return run
