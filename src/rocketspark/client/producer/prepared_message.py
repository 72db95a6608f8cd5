"""A Message prepared for sending: checked, compressed, its properties as text. Pure; the Message stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rocketspark.client import validators
from rocketspark.client.validators import unknown_argument
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, namespace
from rocketspark.model.allocation import bucket_of
from rocketspark.model.message import make
from rocketspark.model.text import string_hash
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, compression, properties
from rocketspark.protocol.message.message_ids import unique_ids


class PreparedMessage(msgspec.Struct, frozen=True, gc=False):
    """One send, prepared: a message, or a batch (`message_id` then holds every message's id, comma separated)."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    message_id: str
    code: int = RequestCode.SEND_MESSAGE_V2


class PackingSettings(NamedTuple):
    """Settings for preparing messages. `kind`: zlib, lz4 or zstd; `over_bytes`: bodies from there on are compressed."""

    over_bytes: int = 4096
    kind: str = "zlib"
    level: int = 5
    body_bytes_max: int = validators.BODY_BYTES_MAX
    namespace: str = ""


# Of a send call, beside the fields of its message.
SEND_ARGUMENTS = ("queue", "selector", "argument", "timeout_ms")
_PLAIN = PackingSettings(over_bytes=1 << 40)


def make_message(message: Message | str, body: bytes | None, fields: MessageFields) -> Message:
    """Return the message of a send call, given whole or as topic, body and fields. Raises UsageError for a
    mix of both.
    """
    if isinstance(message, Message):
        if body is not None or fields:
            raise UsageError("give a Message, or a topic with body and fields, not both; set the fields on the Message")
        return message
    if body is None and not isinstance(message, str):
        kind = type(message).__name__
        raise UsageError(f"a send takes a Message, or the name of a topic and a body, not {kind}: make a Message of it")
    if body is None:
        raise MessageIllegal(f"message for topic {message!r}: no body was given", topic=message)
    if "properties" in fields:
        fields["properties"] = dict(_mapping(fields["properties"] or {}, message))
    try:
        made: Message = make(Message, message, body, **fields)
        return made
    except TypeError:
        known = (*Message.__struct_fields__, *SEND_ARGUMENTS)
        for name in fields.keys() - known:
            raise unknown_argument("a send", name, known) from None
        raise


def pack(message: Message, packing: PackingSettings, unique_id: str | None = None) -> PreparedMessage:
    """Prepare one message for sending. `unique_id`: the id to send it under, if it was sent before. Raises
    MessageIllegal naming the rule.
    """
    topic, body = message.topic, message.body
    validators.check_target(topic)
    if type(body) is not bytes or not 0 < len(body) <= packing.body_bytes_max:
        validators.check_body(topic, body, packing.body_bytes_max)
    unique_id = unique_id or unique_ids.next()
    text = properties_text(message, unique_id)
    if type(message.flag) is not int or not -(1 << 31) <= message.flag < 1 << 31:
        raise MessageIllegal(f"flag {message.flag!r}: a whole number of 32 bits is needed", topic=topic)
    sys_flag = 0
    if len(body) >= packing.over_bytes:
        body, sys_flag = shrink(body, packing)
    if packing.namespace:
        topic = namespace.wrap(packing.namespace, topic)
    return PreparedMessage(topic, body, text, sys_flag, message.flag, unique_id)


def shrink(body: bytes, packing: PackingSettings) -> tuple[bytes, int]:
    """Compress a body; returns it with the sysFlag bits that say so.

    If that makes it no smaller, the body comes back as it was, with 0: larger, it could exceed the broker's limit.
    """
    smaller, sys_flag = compression.deflate(body, packing.kind, packing.level)
    return (smaller, sys_flag) if len(smaller) < len(body) else (body, 0)


def pack_batch(messages: Sequence[Message], packing: PackingSettings) -> PreparedMessage:
    """Prepare a batch for sending; never compressed.

    Raises MessageIllegal: all must share topic, `wait_store_ok` and sharding key; no delays, no retry topics; at most
    4 MiB together (rule: MessageBatch, 5.x).
    """
    if not messages:
        raise MessageIllegal("the batch is empty")
    if not isinstance(messages, Sequence) or not all(isinstance(each, Message) for each in messages):
        raise MessageIllegal("a batch is a list of Messages; send takes a single one")
    if len(messages) > batch.COUNT_MAX:
        # A reply names each: with more of them its header is over what clients take.
        text = f"the batch has {len(messages)} messages; at most {batch.COUNT_MAX} are allowed: send it in parts"
        raise MessageIllegal(text, topic=messages[0].topic)
    first = messages[0]
    validators.check_batch_target(first.topic)
    items, ids = [], []
    for message in messages:
        if message.topic != first.topic:
            raise MessageIllegal(f"a batch has one topic, not {first.topic!r} and {message.topic!r}", topic=first.topic)
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageIllegal("all messages of a batch have the same wait_store_ok", topic=first.topic)
        if message.sharding_key != first.sharding_key:
            raise MessageIllegal("all messages of a batch have the same sharding key: it names one queue")
        if message.delay_level or message.delay_ms or message.deliver_at_ms:
            raise MessageIllegal("a message of a batch cannot be delayed; send it alone", topic=first.topic)
        if message.priority is not None or message.lite_topic is not None:
            text = "a message of a batch has no priority and no lite topic; send it alone"
            raise MessageIllegal(text, topic=first.topic)
        validators.check_body(message.topic, message.body, packing.body_bytes_max)
        ids.append(unique_ids.next())
        items.append(batch.BatchItem(message.flag, message.body, properties_text(message, ids[-1]).encode()))
    body = batch.encode(items)
    if len(body) > packing.body_bytes_max:
        text = f"the batch has {len(body)} bytes; at most {packing.body_bytes_max} are allowed: send it in parts"
        raise MessageIllegal(text, topic=first.topic)
    topic = namespace.wrap(packing.namespace, first.topic)
    return batch_message(topic, body, ",".join(ids), wait_store_ok=first.wait_store_ok)


def batch_message(topic: str, body: bytes, ids: str, *, wait_store_ok: bool = True) -> PreparedMessage:
    """Return the message of a batch send, which has an id of its own. `ids`: those of its messages, comma separated."""
    wait = "true" if wait_store_ok else "false"
    outer = f"{properties.UNIQUE_ID}\x01{unique_ids.next()}\x02{properties.WAIT}\x01{wait}\x02"
    return PreparedMessage(topic, body, outer, 0, 0, ids, RequestCode.SEND_BATCH_MESSAGE)


def split(messages: Iterable[Message], bytes_max: int = 1 << 20) -> Iterator[list[Message]]:
    """Split messages into batches of at most `bytes_max` bytes and 30,000 messages, in order, for `send_batch`.

    Raises MessageIllegal for a message that is larger by itself (rule: the batches' size as RocketMQ counts it).
    """
    together: list[Message] = []
    total = 0
    for message in messages:
        size = len(message.body) + len(pack(message, _PLAIN).properties.encode()) + 20
        if size > bytes_max:
            text = f"a message for topic {message.topic!r} has {size} bytes with its properties, over {bytes_max}"
            raise MessageIllegal(f"{text}: send it alone", topic=message.topic)
        if total + size > bytes_max or len(together) >= batch.COUNT_MAX:
            yield together
            together, total = [], 0
        together.append(message)
        total += size
    if together:
        yield together


def request_text(correlation_id: str, client_id: str, ttl_ms: float) -> str:
    """Return the properties that make a message a request (rule: DefaultMQProducerImpl.prepareSendRequest, 5.x)."""
    pairs = {
        properties.CORRELATION_ID: correlation_id,
        properties.REPLY_TO_CLIENT: client_id,
        properties.TTL: f"{max(ttl_ms, 0):.0f}",
    }
    return properties.encode(pairs)


def pack_reply(
    request: ReceivedMessage, body: bytes, packing: PackingSettings, own: Mapping[str, str] | None = None
) -> PreparedMessage:
    """Prepare the reply to a request for sending (rule: MessageUtil.createReplyMessage, 5.x). `own`: the application's
    properties.

    Raises UsageError if the message asks for no reply, MessageIllegal for a property that cannot be sent.
    """
    given = request.properties
    cluster, correlation_id = given.get(properties.CLUSTER), given.get(properties.CORRELATION_ID)
    if not cluster or not correlation_id or not given.get(properties.REPLY_TO_CLIENT):
        raise UsageError(f"message {request.message_id} is no request: nobody waits for a reply to it")
    topic = cluster + validators.REPLY_SUFFIX
    validators.check_body(topic, body, packing.body_bytes_max)
    unique_id = unique_ids.next()
    pairs = {
        properties.UNIQUE_ID: unique_id,
        properties.WAIT: "true",
        properties.MESSAGE_TYPE: "reply",
        properties.CORRELATION_ID: correlation_id,
        properties.REPLY_TO_CLIENT: given[properties.REPLY_TO_CLIENT],
        properties.TTL: given.get(properties.TTL, "3000"),
    }
    if own:
        pairs |= _checked_properties(Message(topic, body, properties=own))  # type: ignore[arg-type]
    sys_flag = 0
    if len(body) >= packing.over_bytes:
        body, sys_flag = shrink(body, packing)
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    return PreparedMessage(topic, body, properties.encode(pairs), sys_flag, 0, unique_id, code)


def properties_text(message: Message, unique_id: str) -> str:
    """Return all properties of a message as text, as they are sent. Raises MessageIllegal."""
    # Written out by hand: it runs for every message.
    text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"
    plain = text
    if message.tag:
        text = f"{text}TAGS\x01{_clean(message.tag, 'tag', message)}\x02"
    if message.keys:
        text = f"{text}KEYS\x01{_keys(message)}\x02"
    if message.sharding_key:
        text = f"{text}{properties.SHARDING_KEY}\x01{_clean(message.sharding_key, 'sharding key', message)}\x02"
    if message.delay_level:
        if not hasattr(message.delay_level, "__index__") or message.delay_level < 0:
            text = f"delay level {message.delay_level!r}: a whole number is needed; 0 is none, 1 the first"
            raise MessageIllegal(text, topic=message.topic)
        text = f"{text}DELAY\x01{message.delay_level}\x02"
    if message.delay_ms or message.deliver_at_ms:
        text += _timer(message)
    if message.priority is not None:
        text = f"{text}{properties.PRIORITY}\x01{_priority(message)}\x02"
    if message.lite_topic is not None:
        text = f"{text}{properties.LITE_TOPIC}\x01{validators.check_lite_topic(message.lite_topic)}\x02"
    if message.properties:
        text += properties.encode(_checked_properties(message))
    if not text.isascii():
        _check_encodes(text, message)
    if text is not plain and len(text) > properties.BYTES_MAX // 4 and len(text.encode()) > properties.BYTES_MAX:
        size = len(text.encode())
        raise MessageIllegal(
            f"properties, keys and tag take {size} bytes; at most {properties.BYTES_MAX} are allowed",
            topic=message.topic,
        )
    return text


def _checked_properties(message: Message) -> Mapping[str, str]:
    given: Mapping[str, str] = message.properties
    are_plain = True
    # A dict is a mapping: that is cheaper to see.
    for name, value in (given if type(given) is dict else _mapping(given, message.topic)).items():
        if name in properties.SYSTEM_NAMES:
            argument = properties.ARGUMENTS.get(name)
            meant = f"give {argument} instead" if argument else "it is set by clients and brokers; take another name"
            raise MessageIllegal(f"property {name!r} is RocketMQ's own: {meant}", topic=message.topic)
        if value is None or value == "":
            raise MessageIllegal(f"property {name!r} has no value; leave it out", topic=message.topic)
        if type(value) is not str or type(name) is not str:
            if not isinstance(value, str) or not isinstance(name, str):
                text = f"property {name!r}: {value!r}: names and values are texts; make a str of it"
                raise MessageIllegal(text, topic=message.topic)
            are_plain = False
    return given if are_plain else {_plain(name): _plain(value) for name, value in given.items()}


def _plain(text: str) -> str:
    """Return a text as it is; of an enumeration's member its value, where an f-string has its name."""
    return text if type(text) is str else str.__str__(text)


def _mapping(given: object, topic: str) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise MessageIllegal(f"properties {given!r}: a dict of texts is needed", topic=topic)
    return given


def _check_encodes(text: str, message: Message) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        part = text[e.start : e.end]
        raise MessageIllegal(
            f"tag, keys, sharding key or properties hold {part!r}, half of a character: it cannot be sent",
            topic=message.topic,
        ) from None


def _timer(message: Message) -> str:
    if (message.delay_level != 0) + (message.delay_ms != 0) + (message.deliver_at_ms != 0) > 1:
        raise MessageIllegal("give one of delay_level, delay_ms and deliver_at_ms", topic=message.topic)
    for name in ("delay_ms", "deliver_at_ms"):
        if not hasattr(getattr(message, name), "__index__"):
            text = f"{name} {getattr(message, name)!r}: a whole number of ms is needed; make an int of it"
            raise MessageIllegal(text, topic=message.topic)
    if message.delay_ms < 0 or message.deliver_at_ms < 0:
        raise MessageIllegal("delay_ms and deliver_at_ms are 0 or more", topic=message.topic)
    if message.delay_ms:
        return f"{properties.TIMER_DELAY_MS}\x01{message.delay_ms:d}\x02"
    return f"{properties.TIMER_DELIVER_MS}\x01{message.deliver_at_ms:d}\x02"


def _priority(message: Message) -> int:
    priority = message.priority
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority < 1 << 31:
        raise MessageIllegal(f"priority {priority!r}: a whole number from 0 on is needed", topic=message.topic)
    return priority


def _keys(message: Message) -> str:
    keys = message.keys.split() if isinstance(message.keys, str) else message.keys
    if not isinstance(keys, Iterable):
        raise MessageIllegal(f"keys {keys!r}: a list of texts is needed", topic=message.topic)
    for key in keys:
        if not key or not isinstance(key, str) or len(key.split()) != 1:
            raise MessageIllegal(f"key {key!r}: a key is a text without blanks", topic=message.topic)
    return _clean(" ".join(keys), "keys", message)


def _clean(value: str, what: str, message: Message) -> str:
    if not isinstance(value, str) or "\x01" in value or "\x02" in value:
        raise MessageIllegal(f"{what} {value!r}: a text without 0x01 and 0x02 is needed", topic=message.topic)
    return value if type(value) is str else _plain(value)


class LiteKey(str):
    """A lite topic, in the place of a sharding key: its messages go to one queue, in order."""

    __slots__ = ()


def key_of(message: Message) -> str | None:
    """Return what decides a message's queue, and keeps its order: its sharding key, or its lite topic; None if nothing
    does.
    """
    lite_topic = message.lite_topic
    if lite_topic is None and message.properties:
        # Of a message that is sent once more.
        lite_topic = message.properties.get(properties.LITE_TOPIC)
    if message.sharding_key or not lite_topic:
        return message.sharding_key
    return LiteKey(lite_topic)


def queue_of_key(sharding_key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue of a sharding key: its Java hash over the queue count (rule: SelectMessageQueueByHash, 5.x); of
    a lite topic the one whose broker has it (rule: LiteShardingImpl, 5.5.0).
    """
    if type(sharding_key) is LiteKey:
        return sorted(queues)[bucket_of(sharding_key, len(queues))]
    return queues[abs(string_hash(sharding_key)) % len(queues)]
