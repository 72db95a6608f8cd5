"""A deflated registration: read and written; anything else is a ProtocolError."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.protocol.json.registrations import encode_compressed

from rocketspark.errors import ProtocolError
from rocketspark.model import typed_json
from rocketspark.protocol.json import bodies, java_json, registration
from rocketspark.protocol.json.bodies import (
    DataVersion,
    QueueMapping,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from rocketspark.protocol.json.registration import INFLATED_BYTES_MAX, decode_compressed, decode_plain


def part(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


VERSION = part(b'{"counter":7,"stateVersion":1,"timestamp":1795215160000}')


def number(n: int) -> bytes:
    return n.to_bytes(4, "big")


def test_a_registration_laid_out_by_hand() -> None:
    lines = part(b"TopicTest 8 4 6 SINGLE_TAG") + part(b'M 1 2 7 MULTI_TAG {"queue.type":"BatchCQ"}')
    found = decode_compressed(zlib.compress(VERSION + number(2) + lines + part(b'["f:1"]') + number(0)))
    table = found.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(state_version=1, timestamp=1_795_215_160_000, counter=7)
    assert table.topic_config_table == {
        "TopicTest": TopicConfig(topic_name="TopicTest", read_queue_nums=8, write_queue_nums=4, perm=6),
        "M": TopicConfig(
            topic_name="M",
            read_queue_nums=1,
            write_queue_nums=2,
            perm=7,
            topic_filter_type="MULTI_TAG",
            attributes={"queue.type": "BatchCQ"},
        ),
    }
    assert found.filter_server_list == ["f:1"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"7"},"topicConfigTable":{"A":{"topicName":"A","perm":"6"},'
        b'"B":{"topicName":"B","order":true,"attributes":{"a":"b"}}}},"filterServerList":["f:1"]}',
        b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"S":{"topic":"S","currIdMap":{0:0,3:1}}},'
        b'"topicConfigTable":{"S":{"topicName":"S"}}}}',
        b"{}",
    ],
    ids=["plain", "number keys", "nothing"],
)
def test_a_plain_registration_is_read_topic_by_topic_as_in_one(body: bytes) -> None:
    assert decode_plain(body) == java_json.decode(body, RegisterBrokerBody)
    for cut in (body[:-1], body.replace(b'"topicName":"S"', b'"perm":4'), body.replace(b"}", b"x", 1)):
        if cut != body:
            with pytest.raises(ProtocolError):
                decode_plain(cut)


@given(
    st.dictionaries(st.text(), st.dictionaries(st.text(), st.sampled_from(["", '"', "},", "a}}", "\\", '\\"},']))),
    st.integers(1, 300),
)
def test_topics_read_in_pieces_are_those_read_in_one(attributes: dict[str, dict[str, str]], piece: int) -> None:
    """Whatever stands in names and attributes that looks like the end of a topic."""
    topics = {name: TopicConfig(topic_name=name, attributes=those) for name, those in attributes.items()}
    body = bodies.encode(RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=topics)))
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(registration, "_PIECE_BYTES", piece)
        assert decode_plain(body) == java_json.decode(body, RegisterBrokerBody)
        wrong = body.replace(b'"perm":6', b'"perm":{}', 1)
        if wrong != body:
            with pytest.raises(ProtocolError):
                decode_plain(wrong)


def test_no_call_reads_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {f"t{n}": TopicConfig(topic_name=f"t{n}", attributes={"a": "b"}) for n in range(5000)}
    body = bodies.encode(RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=topics)))
    read: list[int] = []
    made = typed_json.decoder
    whole = typed_json.decoder(dict[str, TopicConfig], strict=False)

    class Counted:
        def decode(self, text: bytes) -> dict[str, TopicConfig]:
            read.append(len(text))
            return whole.decode(text)

    monkeypatch.setattr(
        registration.typed_json,
        "decoder",
        lambda kind, strict: Counted() if "dict" in str(kind) else made(kind, strict=strict),
    )
    assert decode_plain(body).topic_config_serialize_wrapper.topic_config_table == topics
    assert len(read) > 40
    assert max(read) < 17_000


def test_mappings_of_static_topics_are_read() -> None:
    head = VERSION + number(1) + part(b"S 2 2 6 SINGLE_TAG") + part(b"[]")
    # As Java writes it: keys that are numbers have no quotes.
    text = (
        b'{"bname":"a","currIdMap":{0:0,3:1},"dirty":false,"epoch":1795215160000,"scope":"__global__","topic":"S",'
        b'"totalQueues":4}'
    )
    found = decode_compressed(zlib.compress(head + number(1) + part(text))).topic_config_serialize_wrapper
    mapping = QueueMapping(topic="S", total_queues=4, bname="a", epoch=1_795_215_160_000, curr_id_map={0: 0, 3: 1})
    assert found.topic_queue_mapping_info_map == {"S": mapping}
    body = RegisterBrokerBody(topic_config_serialize_wrapper=found)
    assert decode_compressed(encode_compressed(body)) == body
    # Brokers before 5.0 end with their filters.
    assert decode_compressed(zlib.compress(head)).topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


TOPICS = st.dictionaries(
    st.text("abcXYZ-_%|09", min_size=1, max_size=10),
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 7), st.dictionaries(st.text("a.b"), st.text())),
    max_size=5,
)


@given(TOPICS, st.integers(0, 2**40), st.lists(st.text(max_size=5), max_size=2))
def test_what_is_written_is_read(
    topics: dict[str, tuple[int, int, int, dict[str, str]]], time_ms: int, f: list[str]
) -> None:
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            topic_config_table={
                name: TopicConfig(
                    topic_name=name, read_queue_nums=reads, write_queue_nums=writes, perm=perm, attributes=attributes
                )
                for name, (reads, writes, perm, attributes) in topics.items()
            },
            data_version=DataVersion(timestamp=time_ms, counter=3),
        ),
        filter_server_list=f,
    )
    assert decode_compressed(encode_compressed(body)) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        number(9) + b"{}",
        part(b"nope") + number(0),
        VERSION,
        VERSION + b"\0\0",
        VERSION + number(2**32 - 1) + part(b"T 1 1 6 SINGLE_TAG"),
        VERSION + number(1) + part(b"T 1 1 6"),
        VERSION + number(1) + part(b"T one 1 6 SINGLE_TAG"),
        VERSION + number(1) + part(b"T " + b"9" * 5000 + b" 1 6 SINGLE_TAG"),
        VERSION + number(1) + part("T ² 1 6 SINGLE_TAG".encode()),
        VERSION + number(1) + part(b"T 9999999999 1 6 SINGLE_TAG"),
        VERSION + number(1) + part(b"T 1 1 6 SINGLE_TAG nope"),
        VERSION + number(1) + part(b"T 1 1 6 SINGLE_TAG " + b"[" * 9000),
        VERSION + number(2**32 - 1) + b"\0" * 4_000_000,
        VERSION + number(0),
        VERSION + number(0) + part(b"{}"),
        VERSION + number(0) + part(b"[]") + number(1),
        VERSION + number(0) + part(b"[]") + number(1) + part(b'{"topic":"S","currIdMap":{"x":1}}'),
        VERSION + number(0) + part(b"[]") + number(1) + part(b'{"topic":"S","totalQueues":2147483648}'),
    ],
    ids=range(19),
)
def test_parts_that_do_not_fit(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_compressed(zlib.compress(data))


def test_what_does_not_inflate() -> None:
    for body in (b"", b"{}", b"\x78\x9c\xff\xff", zlib.compress(VERSION + number(0) + part(b"[]"))[:-10]):
        with pytest.raises(ProtocolError):
            decode_compressed(body)


@settings(max_examples=300)
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_registration_or_a_protocol_error(data: bytes, headed: bool) -> None:
    for body in (data, zlib.compress(VERSION + data if headed else data)):
        try:
            decode_compressed(body)
        except ProtocolError:
            pass


@pytest.mark.shows("mended: deflated registrations inflate up to 256 MiB")
def test_a_registration_that_inflates_without_end_is_refused_before_it_is_read() -> None:
    padding = (INFLATED_BYTES_MAX + 1) * b"\0"
    with pytest.raises(ProtocolError, match="over 32 MiB"):
        decode_compressed(zlib.compress(VERSION + number(0) + part(b"[]") + number(0) + padding, 1))
