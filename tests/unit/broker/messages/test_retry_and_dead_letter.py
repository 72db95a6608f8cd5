"""Where a failed message goes, decided without a broker."""

from __future__ import annotations

import pytest
from tests.live.support import send_header

from rocketspark.broker.messages import retry_and_dead_letter
from rocketspark.protocol.message import message_ids, properties, record
from rocketspark.protocol.message.record import Record

HOST = message_ids.pack_host("127.0.0.1", 10911)


def failed(topic: str = "T", reconsume_times: int = 0, **pairs: str) -> Record:
    data = record.encode(
        topic=topic.encode(),
        queue_id=3,
        queue_offset=5,
        position=1000,
        body=b"work",
        properties=properties.encode(pairs).encode(),
        flag=1,
        sys_flag=0,
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=2,
        store_host=HOST,
        reconsume_times=reconsume_times,
        prepared_position=0,
    )
    return record.decode(data)


ID = message_ids.offset_message_id(HOST, 1000)


@pytest.mark.parametrize(("times", "level"), [(0, 3), (1, 4), (15, 18)])
def test_the_broker_s_own_choice_of_the_level_grows(times: int, level: int) -> None:
    plan = retry_and_dead_letter.route(failed(reconsume_times=times, TAGS="a"), "G", delay_level=0, max_times=16)
    assert (plan.topic, plan.dead, plan.reconsume_times) == ("%RETRY%G", False, times + 1)
    assert plan.properties == {
        "TAGS": "a",
        "RETRY_TOPIC": "T",
        "WAIT": "false",
        "ORIGIN_MESSAGE_ID": ID,
        "DELAY": str(level),
    }


def test_the_record_s_own_crc_does_not_go_along() -> None:
    plan = retry_and_dead_letter.route(failed(TAGS="a", **{"__CRC32#": "0123456789"}), "G", delay_level=0, max_times=16)
    assert "__CRC32#" not in plan.properties


def test_the_consumer_s_choice_is_taken() -> None:
    plan = retry_and_dead_letter.route(failed(), "G", delay_level=7, max_times=16)
    assert (plan.dead, plan.properties["DELAY"]) == (False, "7")


@pytest.mark.parametrize(
    ("times", "level", "limit", "dead"),
    [(16, 0, 16, True), (15, 0, 16, False), (17, 5, 16, True), (0, -1, 16, True), (0, 0, 0, True), (3, 0, 3, True)],
)
def test_after_the_last_attempt_it_is_a_dead_letter(times: int, level: int, limit: int, dead: bool) -> None:
    plan = retry_and_dead_letter.route(
        failed(reconsume_times=times, DELAY="5"), "G", delay_level=level, max_times=limit
    )
    assert plan.dead == dead
    assert plan.topic == ("%DLQ%G" if dead else "%RETRY%G")
    assert (plan.properties["DELAY"] == "0") == dead
    assert (plan.properties["RETRY_TOPIC"], plan.properties["ORIGIN_MESSAGE_ID"]) == ("T", ID)


@pytest.mark.parametrize(
    ("stated", "of_group", "times", "dead"),
    [(None, 3, 3, False), (None, 3, 4, True), (2, 3, 2, False), (2, 3, 3, True), (5, 3, 5, False)],
)
def test_what_a_consumer_stores_itself_is_a_dead_letter_after_the_times_it_states(
    stated: int | None, of_group: int, times: int, dead: bool
) -> None:
    header = send_header("%RETRY%G", 0, max_reconsume_times=stated, reconsume_times=times)
    assert retry_and_dead_letter.is_dead_letter(header, of_group) is dead


def test_the_first_topic_and_id_are_kept_and_what_parking_added_is_not() -> None:
    before = {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "A0",
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
        "DELAY": "3",
    }
    plan = retry_and_dead_letter.route(failed("%RETRY%G", 1, **before), "G", delay_level=0, max_times=16)
    assert plan.properties == {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "A0",
        "DELAY": "4",
        "WAIT": "false",
    }
    dead = retry_and_dead_letter.route(failed("%RETRY%G", 16, **before), "G", delay_level=0, max_times=16)
    assert dead.properties == before | {"DELAY": "0", "WAIT": "false"}


def stored(text: bytes) -> Record:
    data = record.encode(
        topic=b"T",
        queue_id=3,
        queue_offset=5,
        position=1000,
        body=b"work",
        properties=text,
        flag=1,
        sys_flag=0,
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=2,
        store_host=HOST,
        reconsume_times=0,
        prepared_position=0,
    )
    return record.decode(data)


@pytest.mark.shows("mended: a message near 32 KB or with 0x01 in its properties cannot be sent back")
def test_a_value_with_a_control_character_stays_as_it_is() -> None:
    text = b"UNIQ_KEY\x01U1\x02mine\x01a\x01b\x02odd\x01\xff\xfe\x02WAIT\x01true\x02"
    plan = retry_and_dead_letter.route(stored(text), "G", delay_level=0, max_times=16)
    kept = b"UNIQ_KEY\x01U1\x02mine\x01a\x01b\x02odd\x01\xff\xfe\x02"
    assert plan.stored.startswith(kept)
    added = properties.decode(plan.stored.removeprefix(kept).decode())
    assert added == {"RETRY_TOPIC": "T", "DELAY": "3", "WAIT": "false", "ORIGIN_MESSAGE_ID": ID}


@pytest.mark.shows("mended: a message near 32 KB or with 0x01 in its properties cannot be sent back")
def test_properties_near_their_limit_come_again_without_what_they_can_do_without() -> None:
    needed = len(properties.encode({"RETRY_TOPIC": "T", "DELAY": "3"}))
    told = len(properties.encode({"WAIT": "false", "ORIGIN_MESSAGE_ID": ID}))
    room = properties.BYTES_MAX - retry_and_dead_letter.PARKED_BYTES - needed
    for size, whole in ((room - told, True), (room - told + 1, False), (room, False)):
        text = b"mine\x01" + b"x" * (size - 6) + b"\x02"
        plan = retry_and_dead_letter.route(stored(text), "G", delay_level=0, max_times=16)
        assert ("ORIGIN_MESSAGE_ID" in plan.properties, "WAIT" in plan.properties) == (whole, whole)
        assert plan.stored.startswith(text)
        assert len(plan.stored) + retry_and_dead_letter.PARKED_BYTES <= properties.BYTES_MAX
        assert (plan.properties["RETRY_TOPIC"], plan.properties["DELAY"]) == ("T", "3")


@pytest.mark.shows("mended: a message without room for a retry's properties held its consumer up for ever")
@pytest.mark.parametrize("long", ["mine", "KEYS"])
def test_a_dead_letter_has_room_whatever_it_holds(long: str) -> None:
    text = b"UNIQ_KEY\x01U1\x02%b\x01" % long.encode()
    text += b"x" * (properties.BYTES_MAX - len(text) - 10) + b"\x02short\x01s\x02"
    plan = retry_and_dead_letter.route(stored(text), "G", delay_level=-1, max_times=16)
    assert plan.properties == {"UNIQ_KEY": "U1", "short": "s", "RETRY_TOPIC": "T", "DELAY": "0"}
    many = b"".join(b"%04d\x01v\x02" % n for n in range(4680))
    assert len(many) == 32760
    plan = retry_and_dead_letter.route(stored(many), "G", delay_level=-1, max_times=16)
    assert properties.BYTES_MAX - 7 < len(plan.stored) <= properties.BYTES_MAX
    assert plan.properties["RETRY_TOPIC"] == "T"
    assert properties.fitted(text, len(text)) is text
