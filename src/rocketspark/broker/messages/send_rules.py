"""The rules for sends: which a broker takes, and which are plain. It decides and stores nothing.

Rule: every check that a send has to pass stands here once: permission, topic, queue, kind, sizes. What the disk says
comes from the store as an error, for which `refused` has the reply; that it is too full, `storage.retention` says.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.topics import Topics, check_inner_batch, has_batch_queues, has_compaction
from rocketspark.errors import MessageIllegal, RecordError, ServerError, StoreError, StoreFull
from rocketspark.model.route import PERM_WRITE
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol import light_queues, lite_topics
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import batch, properties, sysflags
from rocketspark.store.store import Store

# A topic's filter type: its messages have the flag of many tags.
MULTI_TAG = "MULTI_TAG"
# Sends with one of these are checked further: of a transaction, or of several messages in one record.
_CHECKED_FLAGS = sysflags.TRANSACTION_MASK | sysflags.INNER_BATCH
# Flags and properties that do not matter to the broker when it stores a message.
_PLAIN_FLAGS = sysflags.COMPRESSED | sysflags.MULTI_TAGS | sysflags.COMPRESSION_MASK
_PLAIN_NAMES = frozenset(
    b"UNIQ_KEY KEYS TAGS WAIT BUYER_ID INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL MSG_TYPE"
    b" __SHARDINGKEY PGROUP RECONSUME_TIME BORN_TIMESTAMP".split()
)
# Queues of no topic that parked messages may go to until the broker starts again.
STRAY_QUEUES_MAX = 1000
# Of an open half message its unique id and its producer group stay in memory.
HALF_NAMES_MAX = 1024
# The handle that a message was popped with, which senders that pass it on leave in it. RocketMQ (SendMessageProcessor,
# 5.5.0) drops it from what is sent alone; in an item of a batch, or a reply, it would stay and acknowledge another.
NOT_IN_BATCHES = frozenset((properties.POP_HANDLE.encode(),))
_LIGHT = frozenset((light_queues.DISPATCH, light_queues.OFFSETS))
# A message's priority, a number: the queue that it goes to.
PRIORITY = b"_SYS_MSG_PRIORITY_"
LITE_TOPIC = properties.LITE_TOPIC.encode()
# Who has one of these is of another type (rule: TopicMessageType, 5.5.0).
_OTHER_TYPES = frozenset(b"DELAY TIMER_DELIVER_MS TIMER_DELAY_SEC TIMER_DELAY_MS __SHARDINGKEY".split())
_SYSTEM_NAMES = frozenset(name.encode() for name in properties.SYSTEM_NAMES)


class MessageSettings(NamedTuple):
    """The broker settings that concern messages. `marks`: properties added to each (region, trace, cluster)."""

    body_bytes_max: int
    marks: dict[str, str]
    writable: bool = True
    transactions: bool = True
    # 0 without light queues.
    light_queues_max: int = 0
    broker_name: str = ""

    @classmethod
    def of(cls, settings: BrokerSettings) -> MessageSettings:
        """Return the part of a broker's settings that concerns messages."""
        s = settings
        return cls(
            body_bytes_max=s.message_bytes_max,
            marks={"MSG_REGION": s.region, "TRACE_ON": "true" if s.trace_on else "false", "CLUSTER": s.cluster_name},
            writable=bool(s.broker_permission & PERM_WRITE),
            transactions=not s.reject_transactions,
            light_queues_max=s.light_queues_max if s.light_queues else 0,
            broker_name=s.broker_name,
        )


@dataclass(frozen=True, slots=True)
class PlainSends:
    """The sends that differ from one seen before only in queue, ids, keys, tags and time, and may be stored as sent.

    It is valid while `SendRules.is_current` says so. `queue_count`: sends to queue ids below it are taken; `marks`: the
    properties that the broker adds.
    """

    topic: str
    queue_count: int
    marks: bytes
    settings: MessageSettings
    generation: int


class SendRules:
    """The rules for what clients send, under the present settings and topics."""

    def __init__(self, store: Store, topics: Topics, settings: MessageSettings) -> None:
        self._consume_queues = store.consume_queues
        self._deleted_topics = store.deleted_topics
        self._topics = topics
        self._topic_table = topics.table
        # Queues that parked messages went to and no topic has.
        self._stray: set[tuple[str, int]] = set()
        # Their queues are not those that sends name.
        self.static_topics: Container[str] = ()
        self.configure(settings)

    def configure(self, settings: MessageSettings) -> None:
        """Change the settings from the next message on."""
        self._settings = settings
        self.writable = settings.writable
        self.body_bytes_max = settings.body_bytes_max
        self.marks = properties.encode(settings.marks).encode()
        # A reply keeps what it says of its cluster (rule: ReplyMessageProcessor, 5.5.0).
        self.reply_marks = properties.encode(
            {k: v for k, v in settings.marks.items() if k != properties.CLUSTER}
        ).encode()
        # Properties that no sender may set.
        self.owned = NOT_IN_BATCHES | {name.encode() for name in settings.marks}
        # Those whose messages are not laid out together, in a batch and in one of half messages.
        light = _LIGHT if settings.light_queues_max else frozenset[bytes]()
        self.alone, self.alone_half = NOT_IN_BATCHES | light, self.owned | light

    def check_writable(self) -> None:
        """Raise ServerError 16 while the broker takes no messages from clients."""
        if not self.writable:
            raise ServerError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._settings.broker_name}] sending message is forbidden"
            )

    def admit(self, h: SendHeader) -> int | None:
        """Return the queue of a send, chosen here if the send names none; None if `topic_for` must create the topic.

        Raises ServerError for a send that is not allowed.
        """
        config = self._topic_table.get(h.topic)
        if config is None:
            return None
        if not self.writable or h.topic in topic_names.NOT_SENDABLE or h.sys_flag & _CHECKED_FLAGS:
            self.topic_for(h)
        queue_id = h.queue_id
        if queue_id < 0:
            return any_queue(config.write_queue_nums)
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {h.topic}: readQueueNums {config.read_queue_nums},"
                f" writeQueueNums {config.write_queue_nums}",
            )
        return queue_id

    def sys_flag(self, h: SendHeader) -> int:
        """Return the system flag for a message (not a batch): the send's, with MULTI_TAGS if its topic has that type.

        Rule: SendMessageProcessor, 5.x.
        """
        config = self._topic_table.get(h.topic)
        has_many = config is not None and config.topic_filter_type == MULTI_TAG
        return h.sys_flag | sysflags.MULTI_TAGS if has_many else h.sys_flag

    def topic_for(self, h: SendHeader, by: str = "") -> TopicConfig:
        """Return the topic of a send, created if it does not exist. `by`: the sender's address.

        Raises ServerError for a send that is not allowed. The checks come in the order of 5.5.0: a broker that takes
        nothing, the name, a topic of the system, transactions, batches, whether the topic exists.
        """
        self.check_writable()
        topic_names.check_topic(h.topic)
        if self._settings.light_queues_max and h.topic.startswith(topic_names.LIGHT_PREFIX):
            name = light_queues.DISPATCH.decode()
            raise illegal(f"{h.topic} is a light queue: send to a topic, with the property {name}={h.topic}")
        if h.topic in topic_names.NOT_SENDABLE:
            raise ServerError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{h.topic}] is forbidden.")
        if not self._settings.transactions and h.sys_flag & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_PREPARED:
            raise ServerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._settings.broker_name}] sending transaction message is forbidden",
            )
        config = self._topic_table.get(h.topic)
        check_inner_batch(h.topic, config, h.sys_flag)
        if config is not None:
            return config
        if h.topic.startswith(topic_names.RETRY_PREFIX):
            return self._topics.ensure(h.topic, by=by)
        return self._topics.create_for_send(h.topic, h.default_topic, h.default_topic_queue_count, by=by)

    def admit_reply(self, h: SendHeader) -> int:
        """Return the queue to store a reply message in. Raises ServerError if it is not allowed (msgCheck, 5.x)."""
        if h.topic in self._topic_table:
            self.topic_for(h)
            if h.sys_flag & (_CHECKED_FLAGS | sysflags.NEED_UNWRAP):
                raise illegal("a reply is neither a transaction's nor a batch")
        queue_id = self.admit(h)
        if queue_id is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{h.topic}] not exist, apply first please!")
        return queue_id

    def admit_parked(self, topic: str, queue_id: int, position: int) -> None:
        """Raise ServerError 13 if a parked message is for a queue that no topic has, and too many such queues exist.

        `position`: where the message is parked. A topic that the master before made for it and told nobody of is made.

        Each queue has files. Such messages come up because topics are deleted or made smaller while messages wait, and
        because clients can write to the timers' own topic where a message is to go.
        """
        elected_at = self._topics.elected_at
        if topic not in self._topic_table and self._deleted_topics().get(topic, 0) <= position < elected_at:
            self._topics.find_missing({topic: (queue_id,)})
        config = self._topic_table.get(topic)
        if config is not None and queue_id < max(config.write_queue_nums, config.read_queue_nums):
            return
        if (topic, queue_id) not in self._stray:
            if len(self._stray) >= STRAY_QUEUES_MAX:
                raise illegal(f"queue {queue_id} of topic {topic} is of no topic, and too many are already")
            self._stray.add((topic, queue_id))

    def check_light(self, topic: bytes, values: Iterable[bytes]) -> None:
        """Look at the light queues that a message, or those of a batch, name.

        `values`: the property INNER_MULTI_DISPATCH of each.
        Raises ServerError 13 for a name that none may have and for a lite topic of another topic, 2017 if the broker
        may make no more of them.
        """
        most = self._settings.light_queues_max
        if not most or not light_queues.takes_part(topic):
            return
        found, queues = dict[bytes, None](), self._consume_queues
        for names in map(light_queues.names_in, values):
            if len(names) > light_queues.NAMES_MAX:
                raise illegal(f"it names {len(names)} light queues, at most {light_queues.NAMES_MAX} are taken")
            found |= dict.fromkeys(names)
        for name in found:
            text = shown(name.decode("utf-8", "replace"))
            if not light_queues.is_light(name):
                raise illegal(f"names of light queues begin with {topic_names.LIGHT_PREFIX}, {text!r} does not")
            parent = lite_topics.above(name.decode())
            if parent is not None and parent.encode() != topic:
                # The right to send is asked for this topic alone.
                raise illegal(f"{text!r} is a lite topic of {shown(parent)}: send to that topic")
            if not queues.can_have(name):
                raise illegal(
                    f"no folder can have the name of the light queue {text!r}: leave out slashes, or shorten it"
                )
        new = {name for name in found if queues.find(name.decode(), light_queues.QUEUE_ID) is None}
        if new and queues.light_count + len(new) > most:
            raise ServerError(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"the broker has {queues.light_count} light queues, at most {most} are made: set maxLmqConsumeQueueNum",
            )

    def to_lite_topic(self, topic: str, stored: bytes, pairs: dict[bytes, bytes]) -> bytes:
        """Return the properties of a send to a lite topic, with its light queue in place of others that it names.

        Raises ServerError 13 for a name that no lite topic may have, of which RocketMQ would make another queue.
        """
        name = pairs[LITE_TOPIC]
        if not name or not self._settings.light_queues_max:
            return stored
        if b"," in name or lite_topics.SEPARATOR.encode() in name:
            text = shown(name.decode("utf-8", "replace"))
            raise illegal(f"the lite topic {text!r} has a comma or {lite_topics.SEPARATOR} in its name: leave it out")
        pairs[light_queues.DISPATCH] = queue = b"%b%b$%b" % (lite_topics.NAME_PREFIX.encode(), topic.encode(), name)
        return properties.with_value(stored, light_queues.DISPATCH, queue)

    def check_key(self, topic: str, keys: Iterable[bytes]) -> None:
        """Raise ServerError 13 if one of the messages sent to a topic with compaction has no key: it would not be kept.

        `keys`: the KEYS of each, b"" without any. Rule for single messages: SendMessageProcessor, 5.x.
        """
        config = self._topic_table.get(topic)
        if config is not None and has_compaction(config) and not all(each.strip() for each in keys):
            raise ServerError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")

    def by_priority(self, h: SendHeader, queue_id: int, stored: bytes, pairs: dict[bytes, bytes]) -> tuple[int, bytes]:
        """Return the queue and the properties of a send with a priority: the queue of that number, or the last one.

        A message of another type loses its priority; of one that is no number below 2^31 nothing is made.
        """
        config, number = self._topic_table.get(h.topic), whole_number(pairs[PRIORITY], high=INT_MAX)
        if number is None or config is None or h.topic in self.static_topics:
            return queue_id, stored
        if not _OTHER_TYPES.isdisjoint(pairs) or pairs.get(b"TRAN_MSG", b"").lower() == b"true":
            return queue_id, self.as_sent(stored, pairs, frozenset((PRIORITY,)))
        return max(min(number, config.write_queue_nums - 1), 0), stored

    def check_half(self, pairs: Mapping[bytes, bytes]) -> None:
        """Raise ServerError 13 for a half message whose names are too long to be kept until it ends."""
        size = len(pairs.get(b"UNIQ_KEY", b"")) + len(pairs.get(b"PGROUP", b""))
        if size > HALF_NAMES_MAX:
            raise illegal(f"UNIQ_KEY and PGROUP of a half message have {size} bytes, the limit is {HALF_NAMES_MAX}")

    def admit_back(self, config: TopicConfig) -> None:
        """Raise ServerError 16 if a topic's permission lets no failed messages in, as it lets producers' in."""
        if not config.perm & PERM_WRITE:
            raise ServerError(
                ResponseCode.NO_PERMISSION, f"the topic[{config.topic_name}] sending message is forbidden"
            )

    def as_sent(self, stored: bytes, pairs: dict[bytes, bytes], owned: frozenset[bytes] | None = None) -> bytes:
        """Return a send's properties without those that no sender may set (`owned`), which leave `pairs` too."""
        owned = self.owned if owned is None else owned
        if owned.isdisjoint(pairs):
            return stored
        for name in owned & pairs.keys():
            del pairs[name]
        return properties.without(stored, owned)

    def plain_sends(self, h: SendHeader, names: frozenset[bytes]) -> PlainSends | None:
        """Return the PlainSends of sends like this one; None if `admit` and `accept` have to look at each of them.

        `names`: the names of the send's properties.
        """
        config = self._topic_table.get(h.topic)
        stored_bytes = len(h.properties.removesuffix(properties.PAIR_END).encode()) + 1 + len(self.marks)
        if (
            config is None
            or not self.writable
            or config.topic_filter_type == MULTI_TAG
            or has_compaction(config)
            or h.topic in self.static_topics
            or h.topic in topic_names.NOT_SENDABLE
            or h.topic.startswith("%")
            or h.sys_flag & ~_PLAIN_FLAGS
            or not names & _SYSTEM_NAMES <= _PLAIN_NAMES
            or not self.alone_half.isdisjoint(names)
            or PRIORITY in names
            or LITE_TOPIC in names
            or len(h.topic.encode()) > topic_names.TOPIC_LENGTH_MAX
            or stored_bytes > properties.BYTES_MAX
        ):
            return None
        queue_count = max(config.write_queue_nums, config.read_queue_nums)
        return PlainSends(h.topic, queue_count, self.marks, self._settings, self._consume_queues.generation)

    def is_current(self, plain: PlainSends | None) -> bool:
        """Tell whether settings, topic and queues are still those under which a PlainSends was made."""
        if plain is None or (config := self._topic_table.get(plain.topic)) is None:
            return False
        queue_count, readable = config.write_queue_nums, config.read_queue_nums
        return (
            plain.settings is self._settings
            and config.topic_filter_type != MULTI_TAG
            and plain.generation == self._consume_queues.generation
            and plain.queue_count == (queue_count if queue_count > readable else readable)
        )

    def check_batch(self, h: SendHeader, body: bytes) -> bool:
        """Tell whether the topic stores a batch as one record. Raises ServerError 13 for a batch not allowed."""
        if len(body) > self.body_bytes_max:
            raise illegal(f"a batch of {len(body)} bytes, limit {self.body_bytes_max}")
        if h.topic.startswith(topic_names.RETRY_PREFIX):
            raise ServerError(ResponseCode.MESSAGE_ILLEGAL, f"batches cannot be sent to the retry topic {h.topic}")
        config = self._topic_table[h.topic]
        if has_compaction(config):
            self.check_key(h.topic, (properties.find(item.properties, b"KEYS") or b"" for item in items_of(body)))
        return has_batch_queues(config)


def layout_of(body: bytes) -> batch.Layout | None:
    """Return the layout of a batch; None if `items_of` must decode it. Raises ServerError 13 for too many messages."""
    try:
        return batch.scan(body)
    except RecordError as e:
        raise illegal(str(e)) from e


def items_of(body: bytes) -> list[batch.BatchItem]:
    """Return the messages of a batch. Raises ServerError 13 if there are none or they cannot be read."""
    try:
        items = batch.decode(body)
    except RecordError as e:
        raise illegal(str(e)) from e
    if not items:
        raise illegal("the batch is empty")
    return items


def illegal(why: str) -> ServerError:
    """Return the error for a message that no broker may take (code 13)."""
    return ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {why}")


def refused(error: StoreError | MessageIllegal | struct.error) -> ServerError:
    """Return the error that a sender gets when the store cannot take a message."""
    if isinstance(error, MessageIllegal):
        return illegal(str(error))
    if isinstance(error, struct.error):
        return illegal(f"a number is out of range: {error}")
    what = "the disk is full" if isinstance(error, StoreFull) else "the store is not writable"
    return ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {what}: {error}")


def any_queue(count: int) -> int:
    """Return a random queue id below `count`, for senders that leave the choice to the broker."""
    return machine.randrange(count) if count > 0 else 0
