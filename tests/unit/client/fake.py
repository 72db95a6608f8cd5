"""A NameServer and a broker in memory, for tests of the client alone: it does what it is told, errors included."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from rocketspark.model import MessageQueue
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.message import batch, properties, record
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply, request
from rocketspark.transport.server import Server

Rule = Callable[[Any, bytes], tuple[int, str] | None]


class FakeBroker:
    """Keeps records by topic and queue. `rules`: by request code, may answer with an error first.

    `sends`: (topic, queue id, properties, body) as they came; `requests`: how many of each code.
    """

    def __init__(self, name: str = "broker-a") -> None:
        self.name = name
        self.rules: dict[int, Rule] = {}
        self.requests: defaultdict[int, int] = defaultdict(int)
        self.sends: list[headers.SendHeader] = []
        self.send_backs: list[headers.SendBackHeader] = []
        self.heartbeats: list[bodies.Heartbeat] = []
        self.unregistered: list[headers.UnregisterClientHeader] = []
        self.queues: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.minima: dict[tuple[str, int], int] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.committed: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
        self.owners: dict[tuple[str, MessageQueue], str] = {}
        self.groups: defaultdict[str, dict[str, Peer]] = defaultdict(dict)
        self.position = 0
        self.reply_code = 0
        self.suggested = 0
        self.silent: set[int] = set()
        self.deleted: set[str] = set()
        self._stored = asyncio.Event()
        routes = Routes()
        for code, handler in {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._ok,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.GET_TOPIC_CONFIG: self._config,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }.items():
            routes.add(code, self._guard(handler))
        self.routes = routes
        self.server = Server(routes, on_close=self._gone)

    async def start(self, port: int = 0) -> FakeBroker:
        await self.server.start("127.0.0.1", port)
        return self

    @property
    def address(self) -> str:
        return self.server.address

    def _guard(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(peer: Peer, asked: Any, body: bytes) -> Any:
            self.requests[asked.code] += 1
            if asked.code in self.silent:
                return None
            rule = self.rules.get(asked.code)
            error = rule(asked.ext, body) if rule else None
            if error is not None:
                return reply(asked.opaque, error[0], remark=error[1])
            return handler(peer, asked, body)

        return guarded

    # -- messages ------------------------------------------------------------------------------------------------

    def put(self, topic: str, queue_id: int, body: bytes, pairs: str = "", **fields: Any) -> int:
        queue = self.queues[topic, queue_id]
        data = record.encode(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=len(queue),
            position=self.position,
            body=body,
            properties=pairs.encode(),
            born_time_ms=1_700_000_000_000,
            store_time_ms=int(time.time() * 1000),
            **fields,
        )
        self.position += len(data)
        queue.append(data)
        self.look_again()
        return len(queue) - 1

    def look_again(self) -> None:
        """Let held pulls look at the queues, once: an event that stays set would let them look without an end."""
        self._stored.set()
        self._stored = asyncio.Event()

    def _send(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        header = asked.ext
        self.sends.append(header)
        if asked.code == RequestCode.SEND_BATCH_MESSAGE:
            items = batch.decode(body)
        else:
            items = [batch.BatchItem(header.flag, body, header.properties.encode())]
        first = len(self.queues[header.topic, header.queue_id])
        ids = []
        for item in items:
            ids.append(f"{self.position:032X}")
            self.put(
                header.topic,
                header.queue_id,
                item.body,
                item.properties.decode(),
                sys_flag=header.sys_flag,
                flag=item.flag,
                reconsume_times=header.reconsume_times,
            )
        unique = properties.find(header.properties.encode(), b"UNIQ_KEY") or b""
        return reply(
            asked.opaque,
            self.reply_code,
            headers.SendReply(
                message_id=",".join(ids), queue_id=header.queue_id, queue_offset=first, transaction_id=unique.decode()
            ),
        )

    def _pull(self, peer: Peer, asked: Any, body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        header = asked.ext
        if header.sys_flag & 1:
            self.offsets[header.group, header.topic, header.queue_id] = header.commit_offset
        found = self._read(asked)
        if found is not None or not header.sys_flag & 2:
            return found or self._pulled(asked, ResponseCode.PULL_NOT_FOUND, header.queue_offset)
        return self._wait(asked)

    async def _wait(self, asked: Any) -> bytes:
        end = time.monotonic() + asked.ext.suspend_ms / 1000
        while (left := end - time.monotonic()) > 0:
            if found := self._read(asked):
                return found
            try:
                async with asyncio.timeout(left):
                    await self._stored.wait()
            except TimeoutError:
                break
        return self._pulled(asked, ResponseCode.PULL_NOT_FOUND, asked.ext.queue_offset)

    def _read(self, asked: Any) -> bytes | None:
        header = asked.ext
        queue = self.queues[header.topic, header.queue_id]
        lowest = self.minima.get((header.topic, header.queue_id), 0)
        if header.queue_offset < lowest:
            return self._pulled(asked, ResponseCode.PULL_OFFSET_MOVED, lowest)
        if header.queue_offset > len(queue):
            return self._pulled(asked, ResponseCode.PULL_OFFSET_MOVED, len(queue))
        part = queue[header.queue_offset : header.queue_offset + header.count_max]
        if not part:
            return None
        return self._pulled(asked, 0, header.queue_offset + len(part), b"".join(part))

    def _pulled(self, asked: Any, code: int, next_offset: int, body: bytes = b"") -> bytes:
        size = len(self.queues[asked.ext.topic, asked.ext.queue_id])
        header = headers.PullReply(
            next_offset=next_offset, min_offset=0, max_offset=size, suggested_broker_id=self.suggested
        )
        return reply(asked.opaque, code, header, body, remark="fake")

    def _send_back(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        header = asked.ext
        self.send_backs.append(header)
        for queue in list(self.queues.values()):
            for data in queue:
                stored = record.decode(data)
                if stored.position == header.physical_offset:
                    pairs = properties.decode(stored.properties.decode())
                    pairs.setdefault("RETRY_TOPIC", stored.topic.decode())
                    times = stored.reconsume_times + 1
                    text = properties.encode(pairs)
                    topic = f"{'%DLQ%' if header.delay_level < 0 else '%RETRY%'}{header.group}"
                    self.put(topic, 0, stored.body, text, reconsume_times=times, sys_flag=stored.sys_flag)
                    return reply(asked.opaque)
        return reply(asked.opaque, 1, remark="no such message")

    # -- offsets -------------------------------------------------------------------------------------------------

    def _committed(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        header = asked.ext
        offset = self.offsets.get((header.group, header.topic, header.queue_id))
        if offset is None:
            return reply(asked.opaque, ResponseCode.QUERY_NOT_FOUND, remark="none")
        return reply(asked.opaque, 0, headers.OffsetReply(offset=offset))

    def _commit(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        header = asked.ext
        self.offsets[header.group, header.topic, header.queue_id] = header.commit_offset
        self.committed[header.group, header.topic, header.queue_id].append(header.commit_offset)
        return reply(asked.opaque)

    def _max(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        size = len(self.queues[asked.ext.topic, asked.ext.queue_id])
        return reply(asked.opaque, 0, headers.OffsetReply(offset=size))

    def _min(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        lowest = self.minima.get((asked.ext.topic, asked.ext.queue_id), 0)
        return reply(asked.opaque, 0, headers.OffsetReply(offset=lowest))

    def _search(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        queue = self.queues[asked.ext.topic, asked.ext.queue_id]
        times = [record.decode(data).store_time_ms for data in queue]
        found = next((i for i, t in enumerate(times) if t >= asked.ext.time_ms), len(times))
        return reply(asked.opaque, 0, headers.OffsetReply(offset=found))

    # -- groups --------------------------------------------------------------------------------------------------

    def _heartbeat(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        beat = java_json.decode(body, bodies.Heartbeat)
        self.heartbeats.append(beat)
        for consumer in beat.consumer_data_set:
            if self.groups[consumer.group_name].get(beat.client_id) is not peer:
                self.groups[consumer.group_name][beat.client_id] = peer
                self._notify(consumer.group_name)
        return reply(asked.opaque, 0, headers.HeartbeatReply())

    def _notify(self, group: str) -> None:
        header = headers.ConsumerListHeader(group=group)
        for member in self.groups[group].values():
            member.send(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, opaque=member.next_opaque(), flag=2))

    def _unregister(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        self.unregistered.append(asked.ext)
        group = asked.ext.consumer_group
        if group and self.groups[group].pop(asked.ext.client_id, None):
            self._notify(group)
        return reply(asked.opaque)

    def _gone(self, peer: Peer) -> None:
        for group, members in self.groups.items():
            for client_id in [c for c, p in members.items() if p is peer]:
                del members[client_id]
                self._notify(group)

    def _members(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        ids = list(self.groups[asked.ext.group])
        if not ids:
            return reply(asked.opaque, 1, remark="no consumer for this group")
        return reply(asked.opaque, 0, None, bodies.encode(bodies.ConsumerList(consumer_id_list=ids)))

    def _lock(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        wanted = java_json.decode(body, bodies.LockRequest)
        own = wanted.client_id
        got = [q for q in wanted.mq_set if self.owners.setdefault((wanted.consumer_group, q.queue()), own) == own]
        return reply(asked.opaque, 0, None, bodies.encode(bodies.LockReply(lock_ok_mq_set=got)))

    def _unlock(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        wanted = java_json.decode(body, bodies.LockRequest)
        for queue in wanted.mq_set:
            if self.owners.get((wanted.consumer_group, queue.queue())) == wanted.client_id:
                del self.owners[wanted.consumer_group, queue.queue()]
        return reply(asked.opaque)

    # -- topics --------------------------------------------------------------------------------------------------

    def _ok(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        return reply(asked.opaque)

    def _delete(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        self.deleted.add(asked.ext.topic)
        return reply(asked.opaque)

    def _config(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        return reply(asked.opaque, 0, None, bodies.encode(bodies.TopicConfig(topic_name=asked.ext.topic)))


class FakeNamesrv:
    """Knows what `topics` says: topic to {broker name: queues}."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = {b.name: b for b in brokers}
        self.topics: dict[str, dict[str, int]] = {}
        self.perms: dict[str, int] = {}
        self.fetches: defaultdict[str, int] = defaultdict(int)
        self.delay_s = 0.0
        self.slaves: dict[str, dict[int, str]] = {}
        # Instead of the brokers' own: addresses by id, by broker name.
        self.addresses: dict[str, dict[int, str]] = {}
        routes = Routes()
        routes.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        routes.add(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster)
        routes.add(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._topics)
        routes.add(RequestCode.DELETE_TOPIC_IN_NAMESRV, self._delete)
        self.server = Server(routes)

    async def start(self) -> FakeNamesrv:
        await self.server.start("127.0.0.1", 0)
        return self

    @property
    def address(self) -> str:
        return self.server.address

    def _datas(self, names: list[str]) -> list[bodies.BrokerDataBody]:
        return [
            bodies.BrokerDataBody(
                cluster="C",
                broker_name=n,
                broker_addrs=self.addresses.get(n) or {0: self.brokers[n].address} | self.slaves.get(n, {}),
            )
            for n in names
        ]

    async def _route(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        topic = asked.ext.topic
        self.fetches[topic] += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        counts = self.topics.get(topic)
        if counts is None and topic.startswith("%RETRY%"):
            counts = dict.fromkeys(self.brokers, 1)
        if counts is None:
            return reply(asked.opaque, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        perms = self.perms
        queues = [
            bodies.QueueDataBody(
                broker_name=b,
                read_queue_nums=n,
                write_queue_nums=n,
                perm=perms.get(f"{topic}@{b}", perms.get(topic, 6)),
            )
            for b, n in counts.items()
        ]
        return reply(asked.opaque, 0, None, bodies.encode_route(self._datas(list(counts)), queues))

    def _cluster(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        info = bodies.ClusterInfo(
            broker_addr_table={d.broker_name: d for d in self._datas(list(self.brokers))},
            cluster_addr_table={"C": list(self.brokers)},
        )
        return reply(asked.opaque, 0, None, bodies.encode_cluster_info(info))

    def _topics(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        return reply(asked.opaque, 0, None, bodies.encode(bodies.TopicList(topic_list=list(self.topics))))

    def _delete(self, peer: Peer, asked: Any, body: bytes) -> bytes:
        self.topics.pop(asked.ext.topic, None)
        return reply(asked.opaque)


class Fake:
    """A NameServer with brokers `broker-a`, `broker-b`, …; an async context manager."""

    def __init__(self, broker_count: int = 1, **topics: int) -> None:
        self._count = broker_count
        self._topics = topics

    async def __aenter__(self) -> Fake:
        self.brokers = [await FakeBroker(f"broker-{chr(97 + i)}").start() for i in range(self._count)]
        self.broker = self.brokers[0]
        self.names = await FakeNamesrv(*self.brokers).start()
        self.names.topics = {t: {b.name: n for b in self.brokers} for t, n in self._topics.items()}
        self.namesrv = self.names.address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.names.server.close()
        for broker in self.brokers:
            await broker.server.close()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine function, run on a loop of its own for at most 2 minutes."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 120))

    return run


async def until(condition: Callable[[], Any], timeout_s: float = 120) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.002)
