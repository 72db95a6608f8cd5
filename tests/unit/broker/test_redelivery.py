"""Where a failed message goes, decided without a broker."""

from __future__ import annotations

import pytest

from rocketspark.broker import redelivery
from rocketspark.protocol import message_ids, properties, record
from rocketspark.protocol.record import Record

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
    plan = redelivery.route(failed(reconsume_times=times, TAGS="a"), "G", delay_level=0, max_times=16)
    assert (plan.topic, plan.dead, plan.reconsume_times) == ("%RETRY%G", False, times + 1)
    assert plan.properties == {
        "TAGS": "a",
        "RETRY_TOPIC": "T",
        "WAIT": "false",
        "ORIGIN_MESSAGE_ID": ID,
        "DELAY": str(level),
    }


def test_the_record_s_own_crc_does_not_go_along() -> None:
    plan = redelivery.route(failed(TAGS="a", **{"__CRC32#": "0123456789"}), "G", delay_level=0, max_times=16)
    assert "__CRC32#" not in plan.properties


def test_the_consumer_s_choice_is_taken() -> None:
    plan = redelivery.route(failed(), "G", delay_level=7, max_times=16)
    assert (plan.dead, plan.properties["DELAY"]) == (False, "7")


@pytest.mark.parametrize(
    ("times", "level", "limit", "dead"),
    [(16, 0, 16, True), (15, 0, 16, False), (17, 5, 16, True), (0, -1, 16, True), (0, 0, 0, True), (3, 0, 3, True)],
)
def test_after_the_last_attempt_it_is_a_dead_letter(times: int, level: int, limit: int, dead: bool) -> None:
    plan = redelivery.route(failed(reconsume_times=times, DELAY="5"), "G", delay_level=level, max_times=limit)
    assert plan.dead == dead
    assert plan.topic == ("%DLQ%G" if dead else "%RETRY%G")
    assert (plan.properties["DELAY"] == "0") == dead
    assert (plan.properties["RETRY_TOPIC"], plan.properties["ORIGIN_MESSAGE_ID"]) == ("T", ID)


def test_the_first_topic_and_id_are_kept_and_what_parking_added_is_not() -> None:
    before = {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "A0",
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
        "DELAY": "3",
    }
    plan = redelivery.route(failed("%RETRY%G", 1, **before), "G", delay_level=0, max_times=16)
    assert plan.properties == {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "A0",
        "DELAY": "4",
        "WAIT": "false",
    }
    dead = redelivery.route(failed("%RETRY%G", 16, **before), "G", delay_level=0, max_times=16)
    assert dead.properties == before | {"DELAY": "0", "WAIT": "false"}
