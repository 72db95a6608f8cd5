"""Dead letters: where they came from, what they are when sent again, and how bodies are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.admin.messages.dead_letter_rules import DeadLetter, origin_of, outgoing, resend_id
from rocketspark.client.producer.prepared_message import PackingSettings
from rocketspark.protocol.message import properties
from rocketspark.spark.pipelines import dlq_resend
from rocketspark.spark.pipelines.dlq import age_name, shown

LETTER = DeadLetter(
    group="billing",
    topic="orders",
    target="orders",
    place="%DLQ%billing/broker-a/0/7",
    resend_id="F" * 32,
    message_id="M1",
    body=b"body",
    tag="A",
    keys=["k1", "k2"],
    properties={
        "own": "value",
        "KEYS": "k1 k2",
        "TAGS": "A",
        "UNIQ_KEY": "M1",
        "RETRY_TOPIC": "orders",
        "DELAY": "0",
        "MAX_OFFSET": "9",
        "ORIGIN_MESSAGE_ID": "X",
        "WAIT": "false",
        "originPlace": "old",
        "TRAN_MSG": "true",
    },
    flag=5,
    born_ms=10,
    dead_ms=20,
)


def test_what_is_sent() -> None:
    out, sharding_key = outgoing(LETTER, PackingSettings(), to_group=False)
    assert (out.topic, out.body, out.flag, out.message_id, sharding_key) == ("orders", b"body", 5, "F" * 32, None)
    assert properties.decode(out.properties) == {
        "UNIQ_KEY": "F" * 32,
        "WAIT": "true",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "own": "value",
        "originPlace": LETTER.place,
        "originMessageId": "M1",
        "originBornTime": "10",
    }


def test_a_sharding_key_stays_and_a_group_alone_is_told_the_topic() -> None:
    letter = LETTER._replace(target="%RETRY%billing", properties={"__SHARDINGKEY": "customer-7"})
    out, sharding_key = outgoing(letter, PackingSettings(namespace="space"), to_group=True)
    found = properties.decode(out.properties)
    assert (out.topic, sharding_key) == ("%RETRY%space%billing", "customer-7")
    assert (found["__SHARDINGKEY"], found["RETRY_TOPIC"]) == ("customer-7", "space%orders")


@pytest.mark.parametrize(
    ("pairs", "topic"),
    [
        ({"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "%RETRY%billing"}, "orders"),
        ({"DLQ_ORIGIN_TOPIC": "orders"}, "orders"),
        ({"DLQ_ORIGIN_TOPIC": "%RETRY%billing"}, ""),
        ({}, ""),
    ],
)
def test_where_it_came_from(pairs: dict[str, str], topic: str) -> None:
    assert origin_of(pairs) == topic


# The id is what tells a resend: it must never change, whatever the version or the machine.
def test_the_id_of_a_resend_is_that_of_yesterday() -> None:
    assert resend_id("%DLQ%billing/broker-a/0/7", "M1", 1_700_000_000_000) == GOLDEN


GOLDEN = "4E246989B4B48C2C859847B76000A67D"


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 4_000_000_000_000))
def test_ids_look_like_ids_and_tell_letters_apart(place: str, message_id: str, dead_ms: int) -> None:
    found = resend_id(place, message_id, dead_ms)
    assert len(found) == 32
    assert bytes.fromhex(found).hex().upper() == found
    assert found == resend_id(place, message_id, dead_ms)
    others = [(place + "1", message_id, dead_ms), (place, message_id + "1", dead_ms), (place, message_id, dead_ms + 1)]
    assert found not in [resend_id(*other) for other in others]


def test_ages() -> None:
    hour_ms = 3_600_000
    ages = [0, hour_ms - 1, hour_ms, 24 * hour_ms, 7 * 24 * hour_ms]
    assert [age_name(age) for age in ages] == ["under 1 h", "under 1 h", "under 1 d", "under 7 d", "older"]


def test_bodies_are_shown_as_text_or_as_bytes() -> None:
    assert shown("größe\n".encode()) == {"body": "größe\n", "body_bytes": 8}
    assert shown(b"\x00\x01") == {"body_hex": "0001", "body_bytes": 2}
    assert shown(b"\xff" * 300) == {"body_hex": "ff" * 200, "body_bytes": 300}
    # A character of two bytes, cut in two.
    long = shown(b"a" * 199 + "ü".encode() * 50)
    assert long == {"body": "a" * 199, "body_bytes": 299}


@given(st.binary(max_size=400))
def test_any_body_can_be_shown(body: bytes) -> None:
    found = shown(body)
    assert found["body_bytes"] == len(body)
    assert body.startswith(bytes.fromhex(found["body_hex"]) if "body_hex" in found else found["body"].encode())


@pytest.mark.shows("mended: `dlq --resend` of some hundred MiB of letters took the JVM's memory: 100 of 4 MiB ended it")
def test_letters_are_taken_by_their_number_and_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_resend, "PART_BYTES", 10)
    waiting = iter([LETTER._replace(body=bytes(size)) for size in (1, 1, 1, 9, 20, 1)])
    taken = [[len(letter.body) for letter in dlq_resend.take(waiting, 3)] for _ in range(5)]
    assert taken == [[1, 1, 1], [9, 20], [1], [], []]
