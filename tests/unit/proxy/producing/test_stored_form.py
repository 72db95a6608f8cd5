"""What is stored of a message, beside what Apache's proxy 5.5.0 stored of the same; each rule with its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.producing.sent_messages import REFUSED, STORED, TOPIC, message

from rocketspark.protocol.message import properties, sysflags
from rocketspark.proxy.checks import SendLimits, checked_topic
from rocketspark.proxy.message_form import type_of
from rocketspark.proxy.producing.stored_form import StoredForm, delay_level, stored_form
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

pytestmark = pytest.mark.shows(
    "SendMessage: 72 messages are stored, or refused with a code, as Apache's proxy 5.5.0 stored and refused "
    "them; types of topics (40014)",
)

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
CLIENT = "127.0.0.1:5000"
NOW_MS = 1_800_000_000_000
IN_25_HOURS = "2027-01-16T09:00:00.001Z"


def parsed(fields: Any) -> Any:
    return json_format.ParseDict(fields, messages.Message())


def form_of(given_message: Any, limits: SendLimits | None = None) -> StoredForm:
    topic = checked_topic(given_message.topic.name)
    return stored_form(given_message, topic, CLIENT, NOW_MS, limits or SendLimits())


@pytest.mark.parametrize("name", STORED)
def test_stored_as_by_apache(name: str) -> None:
    form, vector = form_of(parsed(STORED[name])), VECTORS[name]
    assert vector["code"] == Code.OK
    pairs = properties.decode(form.properties)
    assert pairs == vector["properties"]
    assert form.sys_flag & ~sysflags.TRANSACTION_PREPARED == vector["sys_flag"]
    assert bool(form.sys_flag & sysflags.TRANSACTION_PREPARED) == ("half" in name)
    assert form.born_time_ms == vector["born_ms"]
    assert form.type == type_of(pairs)
    assert form.message_id == pairs["UNIQ_KEY"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_apaches_code(name: str) -> None:
    fields = json.loads(json.dumps(REFUSED[name]).replace("in 25 hours", IN_25_HOURS))
    with pytest.raises(Refused) as refused:
        form_of(parsed(fields))
    assert refused.value.code == VECTORS[name]["code"]
    assert "\n" not in str(refused.value)


FIELDS = {
    "tag blank": "tag",
    "key blank": "key",
    "message group blank": "message group",
    "129 user properties": "user properties",
    "user key of the system": "user property KEYS",
    "message id blank": "message id",
    "body empty": "body",
    "delivery in 25 hours": "delivery timestamp",
    "recovery of 3601 s": "orphaned transaction recovery duration",
    "topic with dot": "topic",
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_message_names_the_field(name: str) -> None:
    fields = json.loads(json.dumps(REFUSED[name]).replace("in 25 hours", IN_25_HOURS))
    with pytest.raises(Refused, match=f"^{FIELDS[name]}"):
        form_of(parsed(fields))


def broken(**system: Any) -> Any:
    made = parsed(message(messageType="TRANSACTION"))
    for path, value in system.items():
        name, _, field = path.partition("__")
        setattr(getattr(made.system_properties, name), field, value) if field else setattr(
            made.system_properties, name, value
        )
    return made


# What Apache's proxy takes and stores wrong, or answers with an error of its own.
BEYOND_APACHE = [
    ({"message_id": "a\x01b"}, Code.ILLEGAL_MESSAGE_ID),
    ({"trace_context": "a\x02b"}, Code.BAD_REQUEST),
    ({"born_host": "a\x01"}, Code.BAD_REQUEST),
    ({"priority": -1}, Code.BAD_REQUEST),
    ({"body_encoding": 7}, Code.BAD_REQUEST),
    ({"lite_topic": " "}, Code.ILLEGAL_LITE_TOPIC),
    ({"lite_topic": "a/b"}, Code.ILLEGAL_LITE_TOPIC),
    ({"lite_topic": "x" * 65}, Code.ILLEGAL_LITE_TOPIC),
    ({"message_id": "x" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"delivery_timestamp__seconds": 10**15}, Code.ILLEGAL_DELIVERY_TIME),
    ({"delivery_timestamp__nanos": -1}, Code.ILLEGAL_DELIVERY_TIME),
    ({"orphaned_transaction_recovery_duration__nanos": 10**9}, Code.BAD_REQUEST),
]


@pytest.mark.parametrize(("system", "code"), BEYOND_APACHE, ids=str)
def test_refused_beyond_apache(system: dict[str, Any], code: Code) -> None:
    with pytest.raises(Refused) as refused:
        form_of(broken(**system))
    assert refused.value.code == code


def test_a_lite_topic_decides_the_type_and_the_queue_unless_a_message_group_does() -> None:
    form = form_of(broken(lite_topic="chat-7_b", message_type=1))
    assert properties.decode(form.properties)["__LITE_TOPIC"] == "chat-7_b"
    assert (form.type, form.queue_key) == ("LITE", "chat-7_b")
    both = form_of(broken(lite_topic="x" * 64, message_group="g", message_type=1))
    assert (both.type, both.queue_key) == ("FIFO", "g")


def test_a_born_time_that_is_none_is_now() -> None:
    form = form_of(broken(born_timestamp__seconds=10**15))
    assert form.born_time_ms == NOW_MS
    assert "BORN_TIMESTAMP" not in properties.decode(form.properties)


def test_bounds_are_settings_and_the_size_of_the_body_is_bounded() -> None:
    limits = SendLimits(body_bytes_max=10, message_group_bytes_max=3, user_properties_max=1)
    assert form_of(parsed(message(b"x" * 10)), limits).body == b"x" * 10
    for fields, code in (
        (message(b"x" * 11), Code.MESSAGE_BODY_TOO_LARGE),
        (message(messageGroup="abc"), Code.ILLEGAL_MESSAGE_GROUP),
        (message(user={"a": "1", "b": "2"}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ):
        with pytest.raises(Refused) as refused:
            form_of(parsed(fields), limits)
        assert refused.value.code == code
    assert form_of(parsed(message(b"")), SendLimits(empty_bodies=True)).body == b""


def test_delay_levels_where_they_are_wanted() -> None:
    assert [delay_level(ms) for ms in (-1, 0, 999, 1000, 29_999, 30_000, 7_199_999, 7_200_000, 1 << 40)] == [
        *(1, 1, 1, 2, 4, 5, 18, 18, 18)
    ]
    form = form_of(broken(delivery_timestamp__seconds=NOW_MS // 1000 + 6), SendLimits(use_delay_level=True))
    pairs = properties.decode(form.properties)
    assert (pairs["DELAY"], pairs["TIMER_DELIVER_MS"]) == ("3", str(NOW_MS + 6000))


TEXT = st.text(max_size=80) | st.sampled_from(["", " ", "\x01", "\x02", "TAGS", "a|b", "\xa0", "ж" * 40])
STAMP = st.builds(
    lambda seconds, nanos: {"seconds": seconds, "nanos": nanos},
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 31), (1 << 31) - 1),
)
SYSTEM = st.fixed_dictionaries(
    {},
    optional={
        "tag": TEXT,
        "keys": st.lists(TEXT, max_size=3),
        "message_id": TEXT,
        "body_encoding": st.integers(-(1 << 31), (1 << 31) - 1),
        "message_type": st.integers(0, 7),
        "born_timestamp": STAMP,
        "born_host": TEXT,
        "delivery_timestamp": STAMP,
        "delivery_attempt": st.integers(-(1 << 31), (1 << 31) - 1),
        "message_group": TEXT,
        "trace_context": TEXT,
        "orphaned_transaction_recovery_duration": STAMP,
        "priority": st.integers(-(1 << 31), (1 << 31) - 1),
        "lite_topic": TEXT,
    },
)


@settings(max_examples=150, deadline=None)
@given(TEXT | st.just(TOPIC), st.dictionaries(TEXT, TEXT, max_size=4), SYSTEM, st.binary(max_size=20))
def test_any_message_is_stored_as_told_or_refused(
    topic: str, user: dict[str, str], system: dict[str, Any], body: bytes
) -> None:
    made = messages.Message(
        topic=messages.Resource(name=topic),
        user_properties=user,
        system_properties=messages.SystemProperties(**system),
        body=body,
    )
    try:
        form = form_of(made)
    except Refused:
        return
    pairs = properties.decode(form.properties)
    assert form.properties.count("\x01") == form.properties.count("\x02")
    assert {n: v for n, v in user.items() if n and v and n not in ("TRACE_CONTEXT",)}.items() <= pairs.items()
    assert form.body == body
    assert form.type == type_of(pairs)
    assert pairs["UNIQ_KEY"] == system["message_id"]
