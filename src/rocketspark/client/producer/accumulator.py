"""The accumulator: gathers many small sends into one request. Rule: each send has its own result; what is gathered for
one queue goes in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.client.producer.gathered_sends import (
    BatchOutcome,
    EncodedMessage,
    Gatherable,
    encode,
    lead_of,
    takes_batches,
)
from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, batch_message, queue_of_key
from rocketspark.client.producer.send_path import SendPath
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, NotSent
from rocketspark.model import Message, MessageFields, MessageQueue
from rocketspark.protocol.message import batch
from rocketspark.protocol.message.batch_columns import AFTER_ID
from rocketspark.protocol.message.message_ids import ID_CHARACTERS, UniqueIdBlocks

# A topic or one of its queues; with False, if the flush is not waited for.
Kind = str | MessageQueue | tuple[str | MessageQueue, bool]

# Of a message without properties of its own: what stands before its id, and all bytes but the body's.
_LEAD, _AROUND_BYTES = lead_of(len(AFTER_ID))
_pack_head = batch.pack_head
_COUNT_MAX = batch.COUNT_MAX
# A message's pieces in a batch's body: all before its body, the body, what stands before its id, the id, the rest.
_PIECES, _ID_AT = 5, 3
# So many tags and sharding keys are kept with their encoded properties.
KNOWN_MAX = 1 << 14
# This part of a full batch goes to a queue to which nothing is on its way: each queue gathers for itself, and what is
# in flight may not fill one. Less would cost more requests than the wait is worth.
ENOUGH = 0.25
# A batch whose time is over is held while another is on its way to its queue, and takes more; but no longer than this
# part of its time budget, which runs already.
HELD = 1 / 8


class _Known(msgspec.Struct):
    """The encoded properties of messages with some tag and sharding key, and the queue of that key among the topic's
    `queues`.
    """

    field_count: int
    tail: bytes
    lead: bytes
    around_bytes: int
    queue: MessageQueue | None
    queues: tuple[MessageQueue, ...]


class Gathered(msgspec.Struct, eq=False):
    """What one request will hold: messages of one kind, encoded but for their ids, and who waits for each.

    `pieces`: five of each message, of which the id is empty. `own_ids`: by number, of messages that had an id before;
    then the first piece holds all of the message. `look_bytes`: at this size the accumulator looks whether it is to be
    sent. `due_s`: the monotonic time since when it is held, 0 if it is not.
    """

    topic: str
    queue: MessageQueue | None
    wait_store_ok: bool
    timer: asyncio.Handle
    look_bytes: float
    due_s: float = 0.0
    sends: list[Gatherable] = []
    pieces: list[bytes] = []
    own_ids: dict[int, str] = {}
    size: int = 0

    def __len__(self) -> int:
        return len(self.sends)

    def drop_cancelled(self) -> list[Gatherable]:
        """Drop the messages that nobody waits for any more, and return who waited for them."""
        # Whole sends have ids of their own; of all others `given_up` says all.
        if not [1 for send in self.sends if send.given_up] and not any(self.sends[n].cancelled() for n in self.own_ids):
            return []
        dropped = [send for send in self.sends if send.cancelled()]
        if dropped:
            left = [number for number, send in enumerate(self.sends) if not send.cancelled()]
            self.own_ids = {at: self.own_ids[number] for at, number in enumerate(left) if number in self.own_ids}
            self.sends = [self.sends[number] for number in left]
            self.pieces = [piece for n in left for piece in self.pieces[_PIECES * n : _PIECES * (n + 1)]]
        return dropped

    def packed(self, new_ids: str) -> tuple[PreparedMessage, Sequence[str]]:
        """Return the message of the request, a batch or the only message by itself, and the ids of the messages.

        `new_ids`: an id for each, comma separated.
        """
        ids, in_body = new_ids.split(","), new_ids.encode().split(b",")
        for number, own in self.own_ids.items():
            ids[number], in_body[number] = own, b""
        self.pieces[_ID_AT::_PIECES] = in_body
        body = b"".join(self.pieces)
        if len(ids) == 1:
            flag, body, text = batch.decode(body)[0]
            return PreparedMessage(self.topic, body, text.decode(), 0, flag, ids[0]), ids
        return batch_message(self.topic, body, ",".join(ids), wait_store_ok=self.wait_store_ok), ids


class Accumulator:
    """Gathers sends of one kind until they are `bytes_max` bytes together, or the first of them has waited for
    `linger_ms`.

    With `linger_ms` 0 the sends of one turn of the loop go together, and nothing waits. A full batch is a send by
    `path`, with up to `attempts` attempts, whose time budget begins then. Sends to one queue go in the order in which
    they came: each batch, and each send that goes alone, waits for the one before. While a batch is on its way to a
    queue, the next one gathers on, until it is full; once none is, a quarter of `bytes_max` is enough.
    """

    def __init__(
        self,
        path: SendPath[InFlightSend],
        attempts: int,
        packing: PackingSettings,
        *,
        linger_ms: float,
        bytes_max: int,
    ) -> None:
        if not linger_ms >= 0 or bytes_max < 1:
            raise ConfigError("linger_ms must be 0 or more, batch_bytes 1 or more")
        self._path = path
        self._known_queues = path.attempts.known_queues
        self._attempts = attempts
        self._packing = packing
        self._linger_s = linger_ms / 1000
        self._bytes_max = bytes_max
        self._enough_bytes = ENOUGH * bytes_max if linger_ms else bytes_max
        # Larger bodies do not go the short way; nor any of a producer with a namespace, which `encode` puts before.
        self._simple_max = 0 if packing.namespace else min(packing.over_bytes - 1, packing.body_bytes_max)
        # By topic, tag and sharding key: to look one up by all three at once takes twice as long.
        self._known: dict[str, dict[str | None, dict[str | None, _Known]]] = {}
        self._known_count = 0
        # By topic: sends by sharding key that wait for the route, in the order in which they came.
        self._unrouted: dict[str, list[tuple[str, Gatherable, EncodedMessage | None]]] = {}
        self._routing = Tasks()
        self._waiting: dict[Kind, Gathered] = {}
        # How many batches each queue has that have not ended.
        self._on_way: dict[MessageQueue, int] = {}
        # Made on the loop: a fork of the process that made the producer must not have the same ones.
        self._ids: UniqueIdBlocks | None = None

    # -- messages of which nothing but their part of a batch is made ---------------------------------------------

    def encode(self, message: Message, queue: MessageQueue | None) -> EncodedMessage | None:
        """Encode a message for `add_part`, in any thread; None if it has to go alone, or may have to.

        Raises MessageIllegal as a send does.
        """
        made = encode(message, self._packing)
        if made is None or queue is None:
            return made
        made.queue = self._path.full_queue(made.topic, queue)
        return made

    def is_simple(self, topic: str, body: bytes, fields: MessageFields) -> bool:
        """Tell whether `add_simple` may take a message, or else `encode` will, as one like it was gathered before; in
        any thread.

        A message without fields is always like another. Raises MessageIllegal for a topic that nobody may send to.
        """
        if type(body) is not bytes or not 0 < len(body) <= self._simple_max:
            return False
        return takes_batches(topic) and (not fields or self._known_as(topic, fields) is not None)

    def add_simple(self, topic: str, body: bytes | None, fields: MessageFields, waiting: Gatherable) -> bool:
        """Take a message with no fields but a tag and a sharding key, if one like it was gathered before: a third of
        what the general way costs.

        False if not: then `encode` and `add_part` take it. Called on the loop. Raises as they do.
        """
        if type(body) is not bytes:
            return False
        queue: MessageQueue | None = None
        tail, lead, around = AFTER_ID, _LEAD, _AROUND_BYTES
        if fields:
            known = self._known_as(topic, fields)
            if known is None:
                return False
            tail, lead, around, queue = known.tail, known.lead, known.around_bytes, known.queue
            if queue is not None and (known.queues is not self._known_queues(topic) or self._unrouted):
                return False
        length = len(body)
        if not 0 < length <= self._simple_max:
            return False
        size = length + around
        kind = topic if queue is None else queue
        together = self._waiting.get(kind)
        if together is None or together.size + size > self._bytes_max:
            if together is None:
                self._path.check_started()
                if not takes_batches(topic):
                    return False
            together = self._begin(topic, queue, True)
        size += together.size
        together.pieces += (_pack_head(length + around, 0, 0, 0, length), body, lead, b"", tail)
        sends = together.sends
        sends.append(waiting)
        together.size = size
        if size >= together.look_bytes or len(sends) >= _COUNT_MAX:
            self._look(kind, together)
        return True

    def _known_as(self, topic: str, fields: MessageFields) -> _Known | None:
        try:
            known = self._known[topic][fields.get("tag")][fields.get("sharding_key")]
        except (KeyError, TypeError):  # Such a tag may be no text.
            return None
        return known if known.field_count == len(fields) else None

    def add_part(self, message: EncodedMessage, waiting: Gatherable) -> None:
        """Take a message, to be sent with others later. Raises StateError if the producer is not started, or on another
        loop.
        """
        self._path.check_started()
        queue, key, simple = message.queue, message.sharding_key, message.simple
        if queue is None and key:
            queue = self._queue_of(message.topic, key, waiting, message)
            if queue is None:
                return
        if simple is not None and message.queue is None:
            self._note(message, simple, queue)
        self._gather(message.topic, queue, message.wait_store_ok, waiting, message.head, message.tail)

    def _note(
        self, message: EncodedMessage, simple: tuple[str, str | None, str | None], queue: MessageQueue | None
    ) -> None:
        """Keep what messages like this one have in common."""
        if self._known_count >= KNOWN_MAX:
            self._known.clear()
            self._known_count = 0
        topic, tag, key = simple
        of_tag = self._known.setdefault(topic, {}).setdefault(tag, {})
        self._known_count += key not in of_tag
        lead, around = lead_of(len(message.tail))
        queues = self._known_queues(topic)
        of_tag[key] = _Known(2 - simple.count(None), message.tail, lead, around, queue, queues)

    # -- whole sends ---------------------------------------------------------------------------------------------

    def add(self, send: InFlightSend) -> bool:
        """Take a send, to be sent with others later. False if it cannot be gathered: then the caller sends it alone,
        now.
        """
        if send.queue is None and send.sharding_key:
            send.queue = self._queue_of(send.out.topic, send.sharding_key, send, None)
            if send.queue is None:
                return True
        return self._place(send)

    def _queue_of(
        self, topic: str, key: str, waiting: Gatherable, message: EncodedMessage | None
    ) -> MessageQueue | None:
        """Return the queue of a sharding key; None if the route is not known, or others wait for it: then `waiting`
        waits with them.
        """
        unrouted = self._unrouted.get(topic)
        if unrouted is None:
            queues = self._known_queues(topic)
            if queues:
                return queue_of_key(key, queues)
            unrouted = self._unrouted[topic] = []
            self._routing.begin(self._route(topic))
        unrouted.append((key, waiting, message))
        return None

    async def _route(self, topic: str) -> None:
        path = self._path
        try:
            queues = await path.attempts.queues(topic, path.attempts.end_s(None))
        except BaseException as e:
            BatchOutcome(None, e).tell([waiting for _, waiting, _ in self._unrouted.pop(topic)])
            if not isinstance(e, Exception):
                raise
            return
        for key, waiting, message in self._unrouted.pop(topic):
            try:
                queue = queue_of_key(key, queues)
                if message is not None:
                    self._gather(topic, queue, message.wait_store_ok, waiting, message.head, message.tail)
                    continue
                assert isinstance(waiting, InFlightSend)
                waiting.queue = queue
                if not waiting.done() and not self._place(waiting):
                    waiting.begin_now()
            except Exception as e:
                BatchOutcome(None, e).tell([waiting])

    def _place(self, send: InFlightSend) -> bool:
        out, queue = send.out, send.queue
        if not send.gathers:
            assert queue is not None
            self._flush(_kind(out.topic, queue, True))
            self._flush(_kind(out.topic, queue, False))
            send.follow(queue)
            return False
        item = batch.encode_item(out.flag, out.body, out.properties.encode())
        self._gather(out.topic, queue, send.wait_store_ok, send, item, b"", out.message_id)
        return True

    # -- batches -------------------------------------------------------------------------------------------------

    def _gather(
        self,
        topic: str,
        queue: MessageQueue | None,
        wait_store_ok: bool,
        waiting: Gatherable,
        head: bytes,
        tail: bytes,
        own_id: str | None = None,
    ) -> None:
        kind = _kind(topic, queue, wait_store_ok)
        size = len(head) + len(tail) + (ID_CHARACTERS if own_id is None else 0)
        together = self._waiting.get(kind)
        if together is None or together.size + size > self._bytes_max:
            together = self._begin(topic, queue, wait_store_ok)
        if own_id is not None:
            together.own_ids[len(together)] = own_id
        together.sends.append(waiting)
        together.pieces += (head, b"", b"", b"", tail)
        together.size += size
        if together.size >= together.look_bytes or len(together) >= _COUNT_MAX:
            self._look(kind, together)

    def _begin(self, topic: str, queue: MessageQueue | None, wait_store_ok: bool) -> Gathered:
        """Begin what the next request of a kind will hold, behind what waits of the kind."""
        kind = _kind(topic, queue, wait_store_ok)
        self._flush(kind)
        if queue is not None:
            # Never both at once: the queue's order.
            self._flush(_kind(topic, queue, not wait_store_ok))
        loop = asyncio.get_running_loop()
        if self._linger_s:
            timer: asyncio.Handle = loop.call_later(self._linger_s, self._be_due, kind)
        else:
            timer = loop.call_soon(self._be_due, kind)
        look_bytes = self._bytes_max if queue is None else self._enough_bytes
        together = self._waiting[kind] = Gathered(topic, queue, wait_store_ok, timer, look_bytes)
        return together

    def _look(self, kind: Kind, together: Gathered) -> None:
        """Send a batch that is full; or, at the end of the loop's turn, one that is large enough and whose queue is
        free.
        """
        if together.size >= self._bytes_max or len(together) >= _COUNT_MAX:
            self._flush(kind)
            return
        # Once only: when its queue becomes free, this is looked at again.
        together.look_bytes = self._bytes_max
        if together.queue not in self._on_way:
            self._flush_soon(kind, together)

    def _be_due(self, kind: Kind) -> None:
        """Send a batch whose time is over, or hold it while another is on its way to its queue."""
        together = self._waiting[kind]
        if together.queue not in self._on_way:
            self._flush(kind)
            return
        together.due_s = machine.monotonic()
        together.timer = asyncio.get_running_loop().call_later(HELD * self._path.timeout_s, self._flush, kind)

    def _flush_soon(self, kind: Kind, together: Gathered) -> None:
        """Send a batch once the callbacks of this turn have run, which may add to it."""
        together.timer.cancel()
        together.timer = asyncio.get_running_loop().call_soon(self._flush, kind)

    def note_end(self, queue: MessageQueue) -> None:
        """Send what waited for the end of a batch to this queue, after the callers of that, who may add to it, are
        woken.
        """
        left = self._on_way[queue] - 1
        if left:
            self._on_way[queue] = left
            return
        del self._on_way[queue]
        for kind in (queue, (queue, False)):
            together = self._waiting.get(kind)
            if together is not None and (together.due_s or together.size >= self._enough_bytes):
                self._flush_soon(kind, together)

    def _flush(self, kind: Kind) -> None:
        together = self._waiting.pop(kind, None)
        if together is None:
            return
        together.timer.cancel()
        dropped = together.drop_cancelled()
        if dropped:
            BatchOutcome(None, NotSent("nobody waits for it: nothing was sent")).tell(dropped)
        if not together.sends:
            return
        if self._ids is None:
            self._ids = UniqueIdBlocks()
        queue = together.queue
        out, ids = together.packed(self._ids.joined(len(together)))
        whole = Batch(
            self._path, out, None, None, None, self._attempts, sends=together.sends, ids=ids, gathering=self, to=queue
        )
        if queue is not None:
            whole.follow(queue)
            self._on_way[queue] = self._on_way.get(queue, 0) + 1
            if together.due_s:
                whole.end_s -= whole.began_s - together.due_s
        whole.begin_now()

    async def close(self) -> None:
        """Send what waits, and wait for all."""
        while self._waiting or self._routing:
            for kind in list(self._waiting):
                self._flush(kind)
            if self._routing:
                await asyncio.wait(self._routing)


class Batch(InFlightSend, kw_only=True):
    """Sends that go in one request; each gets its own part of the result, or the error."""

    sends: Sequence[Gatherable]
    ids: Sequence[str]
    gathering: Accumulator
    # The queue for which it was gathered.
    to: MessageQueue | None

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Give each send of the batch its part of the result, or the error."""
        BatchOutcome(result, error, self.ids).tell(self.sends)
        if self.to is not None:
            self.gathering.note_end(self.to)


def _kind(topic: str, queue: MessageQueue | None, wait_store_ok: bool) -> Kind:
    return (queue or topic) if wait_store_ok else (queue or topic, False)
