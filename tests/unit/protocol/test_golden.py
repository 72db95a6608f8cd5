"""Every captured frame: the same bytes back, the same values by name, the same JSON in the bodies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.protocol import golden
from tests.unit.protocol.golden import Captured

from rocketspark.broker.consumers.consumer_offsets import encode_offsets
from rocketspark.broker.messages.schedule_messages import encode_delay_offsets
from rocketspark.errors import FrameError
from rocketspark.model.text import string_hash
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import ONEWAY_FLAG, RESPONSE_FLAG
from rocketspark.protocol.json import bodies, java_json

# Ext fields of the captures that no typed header names.
IGNORED_EXT = {
    "AccessKey": "access control signs whole frames; not part of a request's own fields",
    "Signature": "access control, as above",
    "ReqT": "a mark of the pull consumer's request kind; servers make nothing of it",
    "lo": "RPC field of static topics: `logical queue`",
}


def value_of(body: bytes) -> Any:
    return json.loads(java_json.standardize(body))


def is_json(body: bytes) -> bool:
    return body[:1] in (b"{", b"[")


def test_the_whole_capture_is_there() -> None:
    found = golden.frames()
    assert len(found) == 1751
    assert Counter(f.binary for f in found) == {False: 1624, True: 127}
    assert len({f.scenario for f in found}) == 148


@pytest.mark.shows("protocol: golden frames byte for byte")
def test_every_frame_comes_back_byte_for_byte() -> None:
    for captured in golden.frames():
        frame = frames.decode(captured.data)
        assert frames.encode(frame) == captured.data, captured.where


def test_every_header_is_read_as_the_capture_read_it() -> None:
    for captured in golden.frames():
        frame = frames.decode(captured.data)
        wanted = captured.header
        assert (frame.code, frame.opaque, frame.flag) == (wanted["code"], wanted["opaque"], wanted["flag"])
        assert (frame.language, frame.version) == (wanted["language"], wanted["version"]), captured.where
        assert (frame.remark, frame.ext or {}) == (wanted.get("remark"), captured.ext), captured.where
        assert bool(frame.flag & RESPONSE_FLAG) == captured.is_reply
        assert bool(frame.flag & ONEWAY_FLAG) == bool(wanted["flag"] & 2)
        assert frame.serialization == (frames.BINARY if captured.binary else frames.JSON)


def test_json_headers_written_in_the_other_form_hold_the_same() -> None:
    crossed = 0
    for captured in golden.frames():
        frame = frames.decode(captured.data)
        if frame.code > 32767:
            frame.serialization = frames.BINARY
            with pytest.raises(FrameError, match="does not fit a binary header"):
                frames.encode(frame)
            continue
        frame.serialization = frames.JSON if captured.binary else frames.BINARY
        other = frames.decode(frames.encode(frame))
        # A binary header has no way to tell an empty table from none, nor an empty remark.
        assert (other.code, other.opaque, other.flag, other.version, other.language, other.remark or None) == (
            *(frame.code, frame.opaque, frame.flag, frame.version, frame.language),
            frame.remark or None,
        ), captured.where
        assert (other.ext or {}) == (frame.ext or {}), captured.where
        crossed += 1
    assert crossed > 1700


STREAM = b"".join(f.data for f in golden.frames()[:400])


@pytest.mark.shows("frames in both serializations, partial and coalesced reads")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40), st.booleans())
def test_the_splitter_gives_the_same_frames_however_the_stream_is_chopped(sizes: list[int], tiny: bool) -> None:
    stream = b"".join(f.data for f in golden.frames()[:6]) if tiny else STREAM
    if tiny:
        sizes = [size % 7 + 1 for size in sizes]
    splitter = frames.Splitter()
    found = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        turn += 1
        found += splitter.feed(stream[at : at + size])
        at += size
    assert splitter.held == 0
    assert b"".join(frames.join(header, body, form) for form, header, body in found) == stream
    assert len(found) == (6 if tiny else 400)


def test_the_splitter_takes_the_whole_capture_in_one_piece_and_byte_by_byte() -> None:
    stream = b"".join(f.data for f in golden.frames())
    whole = frames.Splitter().feed(stream)
    assert [(form == frames.BINARY, header, body) for form, header, body in whole] == [
        (f.binary, f.header_bytes, f.body) for f in golden.frames()
    ]
    single = frames.Splitter()
    first = golden.frames()[0]
    got = [one for i in range(len(first.data)) for one in single.feed(first.data[i : i + 1])]
    assert got == [(frames.JSON, first.header_bytes, first.body)]


def kind_of(captured: Captured) -> type[headers.Header] | None:
    if not captured.is_reply:
        return headers.REQUEST_HEADERS.get(captured.header["code"])
    code = captured.request_code
    if captured.header["code"] != 0 and not (code == RequestCode.PULL_MESSAGE and captured.ext):
        return None
    return headers.REPLY_HEADERS.get(code) if code is not None and captured.ext else None


@pytest.mark.shows("typed headers equal as values both ways")
def test_typed_headers_hold_every_value_both_ways() -> None:
    seen: Counter[tuple[bool, int]] = Counter()
    for captured in golden.frames():
        kind = kind_of(captured)
        if kind is None or captured.where == "raw_errors[4]":
            continue
        header = headers.from_ext(kind, captured.ext)
        written = headers.to_ext(header)
        lost = captured.ext.keys() - written.keys() - IGNORED_EXT.keys()
        assert not lost, f"{captured.where}: {kind.__name__} drops {lost}"
        for name, value in captured.ext.items():
            assert name in IGNORED_EXT or written[name] == value, f"{captured.where}: {name}"
        assert headers.from_ext(kind, written) == header, captured.where
        seen[captured.is_reply, captured.request_code if captured.is_reply else captured.header["code"]] += 1
    asked = {code for reply, code in seen if not reply}
    answered = {code for reply, code in seen if reply}
    # Codes with a typed header of which the capture has no frame.
    assert headers.REQUEST_HEADERS.keys() - asked == {
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        # Our own.
        RequestCode.SEND_HALF_BATCH,
        RequestCode.END_HALF_RANGES,
        RequestCode.FORGET_TOPIC_OF_BROKER,
    }
    assert headers.REPLY_HEADERS.keys() - answered == {
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.SEND_HALF_BATCH,
    }


def test_the_capture_s_broken_send_names_what_is_missing() -> None:
    captured = next(f for f in golden.frames() if f.where == "raw_errors[4]")
    with pytest.raises(FrameError, match=r"SendHeader: .*`e`"):
        headers.from_ext(headers.SendHeader, captured.ext)


def test_one_pass_decoders_read_what_the_general_way_reads() -> None:
    decoded = 0
    for captured in golden.frames():
        kind = None if captured.is_reply else headers.REQUEST_HEADERS.get(captured.header["code"])
        if kind is None or captured.where == "raw_errors[4]":
            continue
        general = headers.from_frame(kind, frames.decode(captured.data))
        if captured.binary:
            assert general.ext == headers.from_ext(kind, captured.ext)
            continue
        request = headers.request_decoder(kind).decode(captured.header_bytes)
        for field in ("code", "ext", "opaque", "flag", "language", "version"):
            assert getattr(request, field) == getattr(general, field), captured.where
        head = headers.head_decoder.decode(captured.header_bytes)
        assert (head.code, head.opaque, head.flag, head.language) == (
            *(request.code, request.opaque, request.flag, request.language),
        )
        assert headers.decode_ext(kind, head.ext) == request.ext
        decoded += 1
    assert decoded > 700


def test_every_json_body_becomes_standard_json() -> None:
    dialects = total = 0
    for captured in golden.frames():
        if not is_json(captured.body):
            continue
        total += 1
        standard = java_json.standardize(captured.body)
        json.loads(standard)
        assert java_json.standardize(standard) is standard, captured.where
        dialects += standard != captured.body
    assert (total, dialects) == (426, 38)


def route(captured: Captured) -> bytes:
    body = java_json.decode(captured.body, bodies.RouteBody)
    quoted = b'"brokerAddrs":{"' in captured.body
    return bodies.encode_route(body.broker_datas, body.queue_datas, order_conf=body.order_topic_conf, quoted_ids=quoted)


def as_(kind: type[Any], encode: Callable[[Any], bytes] = bodies.encode) -> Callable[[Captured], bytes]:
    return lambda captured: encode(java_json.decode(captured.body, kind))


# What the capture has and we leave out when we write.
DROPPED = {
    "groupTopicMap": "of newer releases; writers may omit it",
    "pullOffsetTable": "of newer releases; writers may omit it",
}
# What we always write and some clients leave out: readers take the default.
ADDED = {
    "onlyThisBroker": False,
    "heartbeatFingerprint": 0,
    "withoutSub": False,
    "expressionType": "TAG",
    "classFilterMode": False,
    "unitMode": False,
}


def assert_same(written: Any, captured: Any, where: str) -> None:
    """Equal at every depth, but for DROPPED and ADDED."""
    if isinstance(captured, dict):
        assert isinstance(written, dict), where
        for name in captured.keys() - DROPPED.keys():
            assert_same(written[name], captured[name], f"{where}.{name}")
        for name in written.keys() - captured.keys():
            assert ADDED[name] == written[name], f"{where}.{name}"
    elif isinstance(captured, list):
        assert len(written) == len(captured), where
        for i, (one, other) in enumerate(zip(written, captured, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    else:
        assert written == captured, where


# (is reply, code): how often it was captured, how we write it again.
WRITTEN: dict[tuple[bool, int], tuple[int, Callable[[Captured], bytes]]] = {
    (True, RequestCode.GET_ROUTEINFO_BY_TOPIC): (161, route),
    (True, RequestCode.GET_BROKER_CLUSTER_INFO): (23, as_(bodies.ClusterInfo, bodies.encode_cluster_info)),
    (False, RequestCode.HEART_BEAT): (69, as_(bodies.Heartbeat)),
    (True, RequestCode.GET_CONSUMER_LIST_BY_GROUP): (53, as_(bodies.ConsumerList)),
    (False, RequestCode.LOCK_BATCH_MQ): (18, as_(bodies.LockRequest)),
    (True, RequestCode.LOCK_BATCH_MQ): (18, as_(bodies.LockReply)),
    (False, RequestCode.UNLOCK_BATCH_MQ): (4, as_(bodies.LockRequest)),
    (False, RequestCode.REGISTER_BROKER): (13, as_(bodies.RegisterBrokerBody)),
    (True, RequestCode.GET_TOPIC_CONFIG): (3, as_(bodies.TopicConfig)),
    (True, RequestCode.GET_ALL_TOPIC_CONFIG): (2, as_(bodies.TopicConfigTable)),
    (True, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): (3, as_(bodies.GroupConfigTable)),
    (True, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER): (1, as_(bodies.TopicList)),
    (True, RequestCode.GET_TOPICS_BY_CLUSTER): (1, as_(bodies.TopicList)),
    (True, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS): (1, as_(bodies.TopicList)),
    (True, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER): (2, as_(bodies.TopicList)),
    (True, RequestCode.GET_KVLIST_BY_NAMESPACE): (1, as_(bodies.KvTable)),
    (True, RequestCode.GET_ALL_CONSUMER_OFFSET): (1, as_(bodies.OffsetTable, encode_offsets)),
    (True, RequestCode.GET_ALL_DELAY_OFFSET): (1, as_(bodies.DelayOffsetTable, encode_delay_offsets)),
}


@pytest.mark.parametrize(
    ("is_reply", "code"), WRITTEN, ids=lambda v: v.name if isinstance(v, RequestCode) else ("reply" if v else "ask")
)
def test_bodies_are_written_as_they_were_read(is_reply: bool, code: int) -> None:
    count, write = WRITTEN[is_reply, code]
    met = 0
    for captured in golden.frames():
        of = captured.request_code if captured.is_reply else captured.header["code"]
        if (captured.is_reply, of) != (is_reply, code) or not is_json(captured.body):
            continue
        assert_same(value_of(write(captured)), value_of(captured.body), captured.where)
        met += 1
    assert met == count


def test_routes_and_cluster_info_keep_the_dialect() -> None:
    """Broker ids stand bare or quoted where the capture has them so."""
    bare = 0
    for captured in golden.frames():
        if not captured.is_reply or not is_json(captured.body):
            continue
        if captured.request_code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            assert route(captured) == captured.body, captured.where
            bare += b'"brokerAddrs":{0' in captured.body
        elif captured.request_code == RequestCode.GET_BROKER_CLUSTER_INFO:
            info = java_json.decode(captured.body, bodies.ClusterInfo)
            assert bodies.encode_cluster_info(info) == captured.body, captured.where
    assert bare > 0


def test_heartbeats_become_subscriptions_and_back() -> None:
    seen = 0
    for captured in golden.frames():
        if captured.header["code"] != RequestCode.HEART_BEAT or captured.is_reply:
            continue
        for consumer in java_json.decode(captured.body, bodies.Heartbeat).consumer_data_set:
            for body in consumer.subscription_data_set:
                value = body.subscription()
                again = bodies.SubscriptionBody.of(value)
                assert again.subscription() == value
                assert (again.topic, again.sub_string, again.sub_version) == (
                    *(body.topic, body.sub_string, body.sub_version),
                )
                assert value.codes == {string_hash(tag) for tag in value.tags}
                assert value.is_all == (body.sub_string == "*" and body.expression_type == "TAG")
                seen += 1
    assert seen > 50


def test_a_route_body_becomes_a_topic_route() -> None:
    captured = next(f for f in golden.frames() if f.where == "route_existing[1]")
    found = bodies.decode_route("GoldTopic", captured.body)
    raw = json.loads(captured.body)
    assert [b.broker_name for b in found.brokers] == [b["brokerName"] for b in raw["brokerDatas"]]
    assert found.brokers[0].master == raw["brokerDatas"][0]["brokerAddrs"]["0"]
    assert len(found.write_queues()) == raw["queueDatas"][0]["writeQueueNums"]
    assert len(found.read_queues()) == raw["queueDatas"][0]["readQueueNums"]


def test_object_keys_and_number_keys_are_written_as_captured() -> None:
    captured = next(
        f for f in golden.frames() if f.is_reply and f.request_code == RequestCode.GET_TOPIC_STATS_INFO and f.body
    )
    table = value_of(captured.body)["offsetTable"]
    rows = [(json.loads(key), value) for key, value in table.items()]
    written = b'{"offsetTable":' + java_json.encode_object_keys(rows)
    assert captured.body.startswith(written)
    offsets = next(
        f for f in golden.frames() if f.is_reply and f.request_code == RequestCode.GET_ALL_CONSUMER_OFFSET and f.body
    )
    for name, queues in java_json.decode(offsets.body, bodies.OffsetTable).offset_table.items():
        assert msgspec.json.encode(name) + b":" + java_json.encode_number_keys(queues) in offsets.body
