"""What clients do beside faults: operations as data, drawn by seed, done by the real clients and noted as values.

Rule: an operation is done at its time or as soon after it as its client is free; one that is left out (where a failing
seed is shrunk) changes no other.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.simulation.histories import Acked, Committed, Ended, Read, Recalled, Sent, noted
from tests.simulation.nodes import Cluster
from tests.simulation.world import BEGIN_S, Node, Process, World, wait_until

from rocketspark import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTransactionProducer,
    Message,
    MessageQueue,
    ReceivedMessage,
    RocketSparkError,
    SendResult,
    TransactionState,
)
from rocketspark.errors import UsageError
from rocketspark.protocol.message.message_ids import parse_offset_message_id

TOPICS = tuple(f"t-{name}" for name in ("plain", "keyed", "batch", "delay", "timer", "trans", "pop"))
PLAIN, KEYED, BATCHED, DELAYED, TIMED, ENDED, POPPED = TOPICS
PULLED, PUSHED = (PLAIN, KEYED, BATCHED, ENDED), (PLAIN, KEYED, DELAYED, TIMED, ENDED)
Operation = dict[str, Any]
IsOver = Callable[[], bool]
ERRORS = (RocketSparkError, OSError)
SEND_TIMEOUT_MS = 2000
INVISIBLE_S = 8.0
# How often each kind is drawn.
KINDS = {"send": 8, "keyed": 6, "batch": 3, "oneway": 1, "delay": 1, "timer": 2, "transaction": 4, "pop": 4}


def draw_operations(
    chance: random.Random, *, clients: int, count: int, begin_s: float, end_s: float
) -> list[Operation]:
    """Draw what producers do; each has the name of its client, its time, and a number that its bodies are made of."""
    kinds = [kind for kind, weight in KINDS.items() for _ in range(weight)]
    found = []
    for number in range(count):
        operation: Operation = {
            "number": number,
            "at": round(chance.uniform(begin_s, end_s), 3),
            "client": f"producer-{chance.randrange(clients)}",
            "kind": chance.choice(kinds),
            "bytes": chance.choice([0, 0, 0, 300, 3000]),
        }
        match operation["kind"]:
            case "keyed":
                # A key is of one client: what the order is of two that send at once nobody promises.
                operation["key"] = f"{operation['client']}-{chance.randrange(3)}"
                operation["count"] = chance.choice([1, 1, 3, 6])
            case "batch":
                operation["count"] = chance.randint(2, 8)
            case "delay":
                operation["level"] = chance.choice([1, 2, 3])
            case "timer":
                operation["after_ms"] = chance.randint(2, 25) * 1000
                operation["recall"] = chance.random() < 0.4
            case "transaction":
                operation["outcome"] = chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                # What `execute` says; the rest is told when the broker asks.
                operation["says"] = chance.random() < 0.7
        found.append(operation)
    return sorted(found, key=lambda operation: operation["at"])


def draw_members(
    chance: random.Random, *, end_s: float, groups: Sequence[str] = ("pull", "push", "pop", "follow")
) -> list[Operation]:
    """Draw who reads, from when to when, and how it ends; the last of each group stays."""
    found: list[Operation] = []
    for how in groups:
        stays = {"how": how, "name": f"{how}-0", "from": 0.0, "until": 0.0, "dies": False}
        found.append(stays)
        for number in range(1, chance.randint(1, 3) if how != "follow" else 1):
            begin_s = chance.uniform(0, end_s * 0.7)
            found.append(
                {
                    "how": how,
                    "name": f"{how}-{number}",
                    "from": round(begin_s, 3),
                    "until": round(begin_s + chance.uniform(1, end_s / 2), 3),
                    "dies": chance.random() < 0.5,
                }
            )
    return found


def body_of(number: int, part: int = 0) -> str:
    return f"{number}.{part}"


class Workload:
    """The clients of one run. `retries`: of the producers."""

    def __init__(self, world: World, cluster: Cluster, *, retries: int) -> None:
        self.world, self.cluster = world, cluster
        self.retries = retries
        self.stopped = False
        # How a transaction is to end, by its body; the listener and the check say so.
        self.outcomes: dict[str, str] = {}

    def note(self, value: Any) -> None:
        self.world.record("saw", **noted(value))

    def now_ms(self) -> int:
        """True time, in ms since 1970."""
        return int((BEGIN_S + self.world.now_s) * 1000)

    # -- producers -----------------------------------------------------------------------------------------------

    async def in_turn(self, steps: Iterable[Operation], do: Callable[[Operation], Awaitable[Any]]) -> None:
        """Do steps one after the other, each at its time or as soon after it as may be."""
        for step in steps:
            await wait_until(self.world, step["at"])
            await do(step)

    async def produce(self, node: Node, operations: Iterable[Operation]) -> None:
        """Do the operations of one client, one after the other."""
        options: dict[str, Any] = {"send_timeout_ms": SEND_TIMEOUT_MS, "retries": self.retries}
        async with (
            AsyncProducer(self.cluster.namesrv_address, f"{node.name}-g", **options) as producer,
            AsyncTransactionProducer(
                self.cluster.namesrv_address, "transactions", listener=_Listener(self), **options
            ) as transactions,
        ):
            await self.in_turn(operations, lambda operation: self._do(node, producer, transactions, operation))
            # Who goes away is asked about no transaction.
            while not self.stopped:
                await asyncio.sleep(0.5)

    async def _do(
        self, node: Node, producer: AsyncProducer, transactions: AsyncTransactionProducer, operation: Operation
    ) -> None:
        number, kind = operation["number"], operation["kind"]
        body = body_of(number)
        content = _content(body, operation["bytes"])
        match kind:
            case "send" | "pop":
                topic = POPPED if kind == "pop" else PLAIN
                await self.sent(kind, node, (body,), lambda: producer.send(Message(topic, content)))
            case "keyed":
                await self._keyed(node, producer, operation)
            case "batch":
                bodies = tuple(body_of(number, part) for part in range(operation["count"]))
                batch = [Message(BATCHED, _content(each, operation["bytes"])) for each in bodies]
                await self.sent(kind, node, bodies, lambda: producer.send_batch(batch))
            case "oneway":
                await self.sent(kind, node, (body,), lambda: producer.send_oneway(Message(PLAIN, content)))
            case "delay":
                due_ms = self.now_ms() + [1000, 5000, 10_000][operation["level"] - 1]
                message = Message(DELAYED, content, delay_level=operation["level"])
                await self.sent(kind, node, (body,), lambda: producer.send(message), due_ms=due_ms)
            case "timer":
                await self._timer(node, producer, operation, body, content)
            case "transaction":
                await self._transaction(node, transactions, operation, body, content)

    async def sent(
        self,
        way: str,
        node: Node,
        bodies: tuple[str, ...],
        send: Callable[[], Awaitable[SendResult | None]],
        **more: Any,
    ) -> SendResult | None:
        began_s = self.world.now_s
        about = {"way": way, "client": node.name, "bodies": bodies, "began_s": began_s, **more}
        about["attempts"] = 1 if way == "oneway" else self.retries + 1
        try:
            result = await send()
        except UsageError:
            raise
        except ERRORS as e:
            self.note(Sent(ended_s=self.world.now_s, status="", error=f"{type(e).__name__}: {e}"[:120], **about))
            return None
        if result is None:
            self.note(Sent(ended_s=self.world.now_s, status="", error="one way", **about))
            return None
        host, _, position = parse_offset_message_id(result.offset_message_id.split(",")[0])
        self.note(
            Sent(
                ended_s=self.world.now_s,
                status=result.status.name,
                place=(result.queue.topic, result.queue.queue_id, result.queue_offset),
                host=host,
                position=position,
                handle=result.recall_handle or "",
                **about,
            )
        )
        return result

    async def send_each(self, node: Node, topic: str, queues: int, steps: list[Operation]) -> None:
        """Send a message to a queue of its number for each step, whose `body` says what."""

        def message_of(step: Operation) -> Message:
            return Message(topic, _content(step["body"], step.get("bytes", 0)))

        def queue_of(step: Operation) -> MessageQueue:
            return MessageQueue(topic, self.cluster.name, step["number"] % queues)

        await self.send_messages(node, f"{node.name}-g", topic, steps, message_of, queue_of)

    async def send_messages(
        self,
        node: Node,
        group: str,
        way: str,
        steps: list[Operation],
        message_of: Callable[[Operation], Message],
        queue_of: Callable[[Operation], MessageQueue | None] = lambda step: None,
    ) -> None:
        """Send the message of each step as a producer of a group, to the queue that `queue_of` names, or to any."""
        async with AsyncProducer(
            self.cluster.namesrv_address, group, send_timeout_ms=SEND_TIMEOUT_MS, retries=self.retries
        ) as producer:

            async def send(step: Operation) -> None:
                message, queue = message_of(step), queue_of(step)
                await self.sent(way, node, (step["body"],), lambda: producer.send(message, queue=queue))

            await self.in_turn(steps, send)

    async def _keyed(self, node: Node, producer: AsyncProducer, operation: Operation) -> None:
        """Send messages of one key without waiting for the one before: the producer keeps their order."""
        key = operation["key"]
        sends = []
        for part in range(operation["count"]):
            body = body_of(operation["number"], part)
            message = Message(KEYED, _content(body, operation["bytes"]), sharding_key=key)
            send = self.sent("keyed", node, (body,), lambda message=message: producer.send(message), key=key)
            sends.append(asyncio.ensure_future(send))
        for each in sends:
            await each

    async def _timer(
        self, node: Node, producer: AsyncProducer, operation: Operation, body: str, content: bytes
    ) -> None:
        # By the broker's clock, which may be another than the true one: `delay_ms` is counted by it.
        due_ms = self.now_ms() + operation["after_ms"]
        message = Message(TIMED, content, delay_ms=operation["after_ms"])
        result = await self.sent("timer", node, (body,), lambda: producer.send(message), due_ms=due_ms)
        if result is None or not operation["recall"] or not result.recall_handle:
            return
        began_s = self.world.now_s
        is_ok = await _is_taken(producer.recall(TIMED, result.recall_handle, timeout_ms=SEND_TIMEOUT_MS))
        self.note(Recalled(body, began_s, self.world.now_s, is_ok))

    async def _transaction(
        self, node: Node, producer: AsyncTransactionProducer, operation: Operation, body: str, content: bytes
    ) -> None:
        self.outcomes[body] = operation["outcome"]
        result = await self.sent(
            "transaction",
            node,
            (body,),
            lambda: self._half(producer, Message(ENDED, content), says=operation["says"]),
        )
        if result is not None:
            self.note(Ended(body, operation["outcome"], self.world.now_s))

    async def _half(self, producer: AsyncTransactionProducer, message: Message, *, says: bool) -> SendResult:
        found = await producer.send_in_transaction(message, argument=says)
        return found.sent

    # -- consumers -----------------------------------------------------------------------------------------------

    async def consume(self, node: Node, member: Operation, read: Callable[..., Awaitable[Any]] | None = None) -> None:
        """Be a member of a group until its time, or to the end; `read(node, is_over)`: if not as its kind does."""
        await asyncio.sleep(member["from"])
        until_s = self.world.now_s + member["until"] - member["from"] if member["until"] else 1e9
        how: dict[str, Callable[..., Awaitable[Any]]] = {"pull": self.pull, "push": self.push, "pop": self.pop}
        read = read or how.get(member["how"], self._follow)
        while True:
            try:
                return await read(node, lambda: self.stopped or self.world.now_s >= until_s)
            except UsageError:
                raise
            except ERRORS:
                # One that is to stay is started again, as no NameServer may have answered it.
                if self.stopped or member["until"]:
                    raise
            await asyncio.sleep(1)

    def begin(self, member: Operation, read: Callable[..., Awaitable[Any]] | None = None) -> Process:
        """Start a member on its machine, and have it killed at its time if it is one that dies."""
        node = self.world.node(member["name"])
        if member["dies"]:
            self.world.at(member["until"], node.kill)
        return node.start(lambda node: self.consume(node, member, read))

    def begin_readers(
        self, members: Iterable[Operation], groups: Mapping[str, str], topics: Sequence[str]
    ) -> list[Process]:
        """Start members that read topics, each in the group that `groups` has for how it reads."""

        def reading(how: str) -> Callable[..., Awaitable[Any]]:
            read = {"pull": self.pull, "push": self.push, "pop": self.pop}[how]
            return lambda node, is_over: read(node, is_over, groups[how], topics)

        return [self.begin(member, reading(member["how"])) for member in members]

    async def pull(self, node: Node, ended: IsOver, group: str = "pull", topics: Sequence[str] = PULLED) -> None:
        """Read as a member of a group that polls."""
        # How often each queue was given up. That it is held again is told late, once all are: after its first messages.
        given_up: Counter[tuple[str, int]] = Counter()

        async def revoked(queues: list[MessageQueue]) -> None:
            given_up.update((queue.topic, queue.queue_id) for queue in queues)

        async with AsyncPullConsumer(
            self.cluster.namesrv_address,
            group,
            consume_from="first",
            commit_interval_ms=1000,
            rebalance_interval_ms=5000,
            on_revoked=revoked,
        ) as consumer:
            for topic in topics:
                consumer.subscribe(topic)
            while not ended():
                asked_s = self.world.now_s
                for message in await self.tried(consumer.poll(500, count_max=3)):
                    session = f"{node.name}/{given_up[message.topic, message.queue_id]}"
                    self.read(group, group, node, session, message, asked_s)
                await asyncio.sleep(0.05)

    async def tried(self, ask: Awaitable[list[ReceivedMessage]]) -> list[ReceivedMessage]:
        try:
            return await ask
        except ERRORS:
            await asyncio.sleep(0.5)
            return []

    async def push(self, node: Node, ended: IsOver, group: str = "push", topics: Sequence[str] = PUSHED) -> None:
        """Read as a member of a group that listens."""

        async def listen(message: ReceivedMessage) -> bool:
            self.read(group, group, node, "", message, self.world.now_s)
            # Some fail once, and come again by the group's retry topic.
            fails = message.topic == PLAIN and zlib.crc32(message.body) % 20 == 0
            return not fails or message.reconsume_times > 0

        await self.listened(ended, group, topics, listen)

    async def listened(
        self,
        ended: IsOver,
        group: str,
        topics: Sequence[str],
        listen: Callable[[ReceivedMessage], Awaitable[bool]],
        **options: Any,
    ) -> None:
        """Be a member of a group whose listener is `listen`, until it is over; `options`: more of the consumer's."""
        consumer = AsyncPushConsumer(
            self.cluster.namesrv_address,
            group,
            consume_from="first",
            commit_interval_ms=1000,
            rebalance_interval_ms=5000,
            **options,
        )
        for topic in topics:
            consumer.subscribe(topic)
        consumer.listen(listen)
        async with consumer:
            while not ended():
                await asyncio.sleep(0.5)

    async def pop(self, node: Node, ended: IsOver, group: str = "pop", topics: Sequence[str] = (POPPED,)) -> None:
        """Read as a member of a group that pops."""
        async with AsyncSimpleConsumer(
            self.cluster.namesrv_address, group, consume_from="first", invisible_ms=INVISIBLE_S * 1000
        ) as consumer:
            for topic in topics:
                consumer.subscribe(topic)
            while not ended():
                asked_s = self.world.now_s
                for message in await self.tried(consumer.receive(8, timeout_ms=1000)):
                    self.read(group, group, node, "", message, asked_s, invisible_s=INVISIBLE_S)
                    await self._settle_popped(consumer, message, group)

    async def _settle_popped(self, consumer: AsyncSimpleConsumer, message: ReceivedMessage, group: str) -> None:
        body = _body(message)
        # By the body: most are acknowledged at once; some renewed first, some left to come again the first time.
        turn = zlib.crc32(body.encode()) % 10
        if turn == 0 and message.reconsume_times == 0:
            return
        if turn == 1:
            began_s = self.world.now_s
            is_ok = await _is_taken(consumer.change_invisible_time(message, 2 * INVISIBLE_S * 1000))
            self.note(Acked(group, body, began_s, self.world.now_s, is_ok, 2 * INVISIBLE_S))
        began_s = self.world.now_s
        is_ok = await _is_taken(consumer.ack(message))
        self.note(Acked(group, body, began_s, self.world.now_s, is_ok))

    async def _follow(self, node: Node, ended: IsOver) -> None:
        """Read each queue of a topic by itself, from its begin, without a group's help; now and then from an offset."""
        async with AsyncPullConsumer(self.cluster.namesrv_address, "follow", auto_commit=False) as consumer:
            queues: list[MessageQueue] = []
            while not queues and not ended():
                try:
                    queues = await consumer.queues(PLAIN)
                    await consumer.assign(queues)
                    for queue in queues:
                        await consumer.seek(queue, 0)
                except ERRORS:
                    queues = []
                    await asyncio.sleep(0.5)
            while not ended():
                asked_s = self.world.now_s
                for message in await self.tried(consumer.poll(500)):
                    self.read("follow", "follow", node, node.name, message, asked_s)

    def read(
        self,
        how: str,
        group: str,
        node: Node,
        session: str,
        message: ReceivedMessage,
        asked_s: float,
        invisible_s: float = 0.0,
    ) -> None:
        topic = message.read_from or message.topic
        self.note(
            Read(
                how,
                group,
                node.name,
                session,
                _body(message),
                (topic, message.queue_id, message.queue_offset),
                self.world.now_s,
                asked_s,
                message.reconsume_times,
                invisible_s,
                self.now_ms(),
            )
        )

    async def commits(self, node: Node) -> None:
        """Note what the groups have committed."""
        async with AsyncPullConsumer(self.cluster.namesrv_address, "pull", auto_commit=False) as consumer:
            for topic in PULLED:
                for queue in await self._tried_queues(consumer, topic):
                    offset = await consumer.committed(queue)
                    if offset is not None:
                        self.note(Committed("pull", topic, queue.queue_id, offset, self.world.now_s))

    async def _tried_queues(self, consumer: AsyncPullConsumer, topic: str) -> list[MessageQueue]:
        try:
            return await consumer.queues(topic)
        except ERRORS:
            return []


class _Listener:
    """Says how transactions end: at once, or when it is asked."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    async def execute(self, message: Message, transaction: Any) -> TransactionState:
        if not transaction.argument:
            return TransactionState.UNKNOWN
        return TransactionState(self._workload.outcomes[_text(message.body)])

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState(self._workload.outcomes[_body(message)])


async def _is_taken(request: Awaitable[object]) -> bool:
    """Tell whether the broker said yes."""
    try:
        await request
    except ERRORS:
        return False
    return True


def _content(body: str, more: int) -> bytes:
    return f"{body} ".encode() + bytes([65 + len(body) % 26]) * more


def _text(content: bytes) -> str:
    return content.split(b" ", 1)[0].decode()


def _body(message: ReceivedMessage) -> str:
    return _text(message.body)
