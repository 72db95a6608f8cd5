"""Message to what is sent, and the rules for topics, groups, bodies and batches."""

from __future__ import annotations

import enum
import random
import zlib
from typing import Any

import pytest

from rocketspark.client import validators
from rocketspark.client.producer.given_columns import Given, check_rows
from rocketspark.client.producer.prepared_message import (
    PackingSettings,
    key_of,
    make_message,
    pack,
    pack_batch,
    queue_of_key,
    split,
)
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model import Message, MessageFields, MessageQueue
from rocketspark.model.allocation import bucket_of
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties

pytestmark = pytest.mark.shows(
    "a broker as NameServer, times as text, a nameless property, over 30,000 messages in a batch",
)

PACKING = PackingSettings()


def test_all_fields_become_properties() -> None:
    message = Message(
        topic="t",
        body=b"b",
        tag="A",
        keys=["k1", "k2"],
        properties={"a": "b"},
        sharding_key="x",
        delay_level=3,
        flag=7,
        wait_store_ok=False,
    )
    before = repr(message)
    out = pack(message, PACKING)
    assert repr(message) == before
    assert properties.decode(out.properties) == {
        "UNIQ_KEY": out.message_id,
        "WAIT": "false",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "x",
        "DELAY": "3",
        "a": "b",
    }
    assert (out.topic, out.body, out.sys_flag, out.flag) == ("t", b"b", 0, 7)


class Fruit(str, enum.Enum):  # noqa: UP042 - what is older than StrEnum is meant
    APPLE = "apple"


def test_texts_of_an_enumeration_are_sent_as_their_values() -> None:
    apple = Fruit.APPLE
    message = Message("t", b"b", tag=apple, keys=[apple], sharding_key=apple, properties={apple: apple})
    found = properties.decode(pack(message, PACKING).properties)
    plain = Message("t", b"b", tag="apple", keys=["apple"], sharding_key="apple", properties={"apple": "apple"})
    rows = check_rows("t", Given([b"b"], [apple], [[apple]], [apple], {apple: [apple]}), PACKING)
    assert (
        b"".join(piece if isinstance(piece, bytes) else piece[0] for piece in rows.pieces).decode()
        in pack(plain, PACKING).properties
    )
    assert found | {"UNIQ_KEY": ""} == properties.decode(pack(plain, PACKING).properties) | {"UNIQ_KEY": ""}


def test_every_send_has_an_id_of_its_own() -> None:
    message = Message(topic="t", body=b"b")
    assert len({pack(message, PACKING).message_id for _ in range(1000)}) == 1000


@pytest.mark.parametrize("keys", ["k1 k2", ("k1", "k2")])
def test_keys_as_text_or_list(keys: str | tuple[str, ...]) -> None:
    out = pack(Message(topic="t", body=b"b", keys=keys), PACKING)
    assert properties.decode(out.properties)["KEYS"] == "k1 k2"


@pytest.mark.shows("mended: compress at 4 KiB")
@pytest.mark.parametrize(("size", "sys_flag"), [(4095, 0), (4096, 0x301)])
def test_a_body_over_the_limit_is_compressed(size: int, sys_flag: int) -> None:
    out = pack(Message(topic="t", body=b"z" * size), PACKING)
    assert out.sys_flag == sys_flag
    assert (zlib.decompress(out.body) if sys_flag else out.body) == b"z" * size


@pytest.mark.parametrize(("kind", "sys_flag"), [("lz4", 0x101), ("zstd", 0x201), ("zlib", 0x301)])
def test_compression_kinds(kind: str, sys_flag: int) -> None:
    assert pack(Message(topic="t", body=b"z" * 5000), PACKING._replace(kind=kind)).sys_flag == sys_flag


@pytest.mark.parametrize("kind", ["lz4", "zstd", "zlib"])
def test_a_body_that_does_not_shrink_stays_as_it_is(kind: str) -> None:
    body = random.Random(7).randbytes(5000)
    out = pack(Message(topic="t", body=body), PACKING._replace(kind=kind))
    assert (out.body, out.sys_flag) == (body, 0)


ILLEGAL = {
    "topic empty": Message(topic="", body=b"b"),
    "topic blank": Message(topic="  ", body=b"b"),
    "topic character": Message(topic="a b", body=b"b"),
    "topic unicode": Message(topic="tópic", body=b"b"),
    "topic newline": Message(topic="abc\n", body=b"b"),
    "topic long": Message(topic="a" * 128, body=b"b"),
    "topic of the broker": Message(topic="SCHEDULE_TOPIC_XXXX", body=b"b"),
    "body empty": Message(topic="t", body=b""),
    "body text": Message(topic="t", body="text"),  # type: ignore[arg-type]
    "body large": Message(topic="t", body=b"b" * ((4 << 20) + 1)),
    "key blank": Message(topic="t", body=b"b", keys=["a b"]),
    "key empty": Message(topic="t", body=b"b", keys=[""]),
    "tag control": Message(topic="t", body=b"b", tag="a\x01b"),
    "property system": Message(topic="t", body=b"b", properties={"KEYS": "x"}),
    "property control": Message(topic="t", body=b"b", properties={"a": "\x02"}),
    "property empty": Message(topic="t", body=b"b", properties={"a": ""}),
    "properties long": Message(topic="t", body=b"b", properties={"a": "x" * 32768}),
    "delay level": Message(topic="t", body=b"b", delay_level=-1),
}


@pytest.mark.shows("message too large, empty or illegal topic and group")
@pytest.mark.parametrize("name", ILLEGAL)
def test_what_breaks_a_rule_is_refused(name: str) -> None:
    with pytest.raises(MessageIllegal):
        pack(ILLEGAL[name], PACKING)


def test_the_longest_that_is_allowed() -> None:
    out = pack(Message(topic="%|" + "a" * 125, body=b"b" * (4 << 20)), PACKING)
    assert len(out.topic) == 127


@pytest.mark.parametrize("group", ["", "a b", "g" * 121, "DEFAULT_PRODUCER", "grüppe"])
def test_groups_that_cannot_be(group: str) -> None:
    with pytest.raises(MessageIllegal):
        validators.check_group(group)


def test_batch_layout_and_ids() -> None:
    messages = [Message(topic="t", body=b"%d" % i, tag="A", flag=i) for i in range(3)]
    out = pack_batch(messages, PACKING)
    items = batch.decode(out.body)
    assert [(i.flag, i.body) for i in items] == [(0, b"0"), (1, b"1"), (2, b"2")]
    ids = [properties.decode(i.properties.decode())["UNIQ_KEY"] for i in items]
    assert out.message_id == ",".join(ids)
    outer = properties.decode(out.properties)
    assert set(outer) == {"UNIQ_KEY", "WAIT"}
    assert outer["UNIQ_KEY"] not in ids
    assert out.code == RequestCode.SEND_BATCH_MESSAGE


def test_a_batch_is_never_compressed() -> None:
    out = pack_batch([Message(topic="t", body=b"z" * 9000)], PACKING)
    assert out.sys_flag == 0
    assert batch.decode(out.body)[0].body == b"z" * 9000


MIXED = {
    "none": [],
    "topics": [Message(topic="t", body=b"b"), Message(topic="u", body=b"b")],
    "wait": [Message(topic="t", body=b"b"), Message(topic="t", body=b"b", wait_store_ok=False)],
    "sharding": [Message(topic="t", body=b"b", sharding_key="a"), Message(topic="t", body=b"b")],
    "delay": [Message(topic="t", body=b"b", delay_level=1)],
    "retry": [Message(topic="%RETRY%g", body=b"b")],
    "large": [Message(topic="t", body=b"b" * (3 << 20))] * 2,
    # A reply with all their ids would be over what a client reads.
    "many": [Message(topic="t", body=b"b")] * 30_001,
}


@pytest.mark.parametrize("name", MIXED)
def test_batches_that_cannot_be(name: str) -> None:
    with pytest.raises(MessageIllegal):
        pack_batch(MIXED[name], PACKING)


def test_what_is_split_is_no_larger_than_a_batch_may_be() -> None:
    message = Message(topic="t", body=b"b")
    assert [len(each) for each in split([message] * 30_001, 4 << 20)] == [30_000, 1]


def test_message_and_fields_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="not both"):
        make_message(Message(topic="t", body=b"b"), None, {"tag": "A"})


def test_queue_of_a_key_is_javas() -> None:
    queues = [MessageQueue("t", "b", i) for i in range(4)]
    # "polygenelubricants" hashes to Integer.MIN_VALUE in Java, "x" to 120, "order-1" to -1207111310.
    assert [queue_of_key(k, queues).queue_id for k in ("x", "polygenelubricants", "order-1")] == [
        120 % 4,
        0,
        1207111310 % 4,
    ]


def test_priority_and_lite_topic_are_properties_and_a_lite_topic_decides_the_queue() -> None:
    message = Message("t", b"b", priority=3, lite_topic="chat-7")
    pairs = properties.decode(pack(message, PackingSettings()).properties)
    assert (pairs["_SYS_MSG_PRIORITY_"], pairs["__LITE_TOPIC"]) == ("3", "chat-7")
    queues = [MessageQueue("t", "b", i) for i in (2, 0, 1)]
    key = key_of(message)
    assert key is not None
    # As Guava's consistentHash of Java's hash of the name, over queues in order.
    assert queue_of_key(key, queues).queue_id == bucket_of("chat-7", 3)
    assert key_of(Message("t", b"b", sharding_key="k", lite_topic="chat-7")) == "k"
    assert key_of(Message("t", b"b")) is None
    names = ("", "a b", "x" * 65)
    for wrong in ({"priority": -1}, {"priority": True}, *({"lite_topic": name} for name in names)):
        given: Any = wrong
        with pytest.raises(MessageIllegal):
            pack(Message("t", b"b", **given), PackingSettings())


def test_the_fields_of_a_send_call_are_a_messages() -> None:
    # A transaction gives its id itself.
    assert [*MessageFields.__annotations__, "transaction_id"] == [*Message.__struct_fields__[2:]]


@pytest.mark.shows(
    "mended: arguments of other types were an AttributeError from within; a time of delivery as a float was "
    "sent as text that no broker reads, or a ValueError"
)
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"properties": {"a": 5}}, "'a': 5: names and values are texts"),
        ({"properties": {"a": 0}}, "'a': 0: names and values are texts"),
        ({"properties": {5: "a"}}, "5: 'a': names and values are texts"),
        ({"properties": {"a": None}}, "'a' has no value"),
        ({"properties": {"": "a"}}, "a property with the value 'a' has no name"),
        ({"properties": ["a"]}, "a dict of texts is needed"),
        ({"keys": 5}, "keys 5: a list of texts is needed"),
        ({"delay_level": "1"}, "delay level '1': a whole number is needed"),
        ({"delay_level": 1.5}, "delay level 1.5: a whole number is needed"),
        ({"delay_ms": "5"}, "delay_ms '5': a whole number of ms is needed"),
        ({"deliver_at_ms": 1e12}, "deliver_at_ms 1000000000000.0: a whole number of ms is needed"),
    ],
)
def test_values_of_other_types_are_named(fields: MessageFields, says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        pack(make_message("t", b"b", dict(fields)), PACKING)  # type: ignore[arg-type]
    with pytest.raises(MessageIllegal, match=says):
        pack(Message(topic="t", body=b"b", **fields), PACKING)


def test_what_is_no_batch() -> None:
    one = Message(topic="t", body=b"b")
    for given in (one, (each for each in [one]), ["b"], {one.topic: one}):
        with pytest.raises(MessageIllegal, match="a batch is a list of Messages"):
            pack_batch(given, PACKING)  # type: ignore[arg-type]
