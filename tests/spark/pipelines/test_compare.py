"""`pipeline audit --against`: equal and unequal multisets of messages, from topics and from an archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import make_message
from tests.spark.pipelines.scene import repeat, stored

from rocketspark.cli.main import run as rocketspark
from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.message import origins
from rocketspark.spark.pipelines import archive
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`audit`: counts, gaps, duplicates, lag; one place against another; exit status")


@pytest.fixture
def compare(cluster: Cluster, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """compare(*arguments): exit code and result of the command; it takes the session that is there."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = rocketspark(["pipeline", "audit", *arguments, "-n", cluster.namesrv, "--json"])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, json.loads(out)

    return run


def test_copies_and_what_they_lack(
    cluster: Cluster, producer: Producer, make_topic: Callable[..., str], compare: Callable[..., Any]
) -> None:
    one, other = make_topic(), make_topic(queues=1, brokers=1)
    count = 40
    for n in range(count):
        producer.send(make_message(one, n))
    messages = {m.properties["number"]: m for m in stored(cluster, one, count)}

    def copy(number: int, **changes: Any) -> None:
        labels = {
            origins.ORIGIN_MESSAGE_ID: messages[str(number)].message_id,
            origins.RESTORE_ID: "r",
            # Of an exactly-once write, as a copy by `dedupe` has it.
            "DEDUPE_KEY": f"query/0/0/{number}",
        }
        message = make_message(other, number)
        message.properties = message.properties | labels
        for name, value in changes.items():
            setattr(message, name, value)
        producer.send(message)

    for n in range(3, count):
        copy(n)
    code, found = compare(one, "--against", other)
    assert code == 3
    assert (found["missing"], found["extra"], found["changed"], found["ok"]) == (3, 0, 0, False)
    assert {d["message_id"] for d in found["differences"]} == {messages[str(n)].message_id for n in range(3)}

    copy(0, body=b"changed")
    copy(1, tag="Z")
    copy(2, keys=["all", "k"])
    producer.send(other, b"of its own")
    copy(5)
    code, found = compare(one, "--against", other)
    assert (code, found["missing"], found["extra"], found["changed"]) == (3, 0, 2, 3)
    assert (found["one_messages"], found["other_messages"]) == (count, count + 2)

    code, found = compare(one, "--against", one)
    assert (code, found["ok"], found["one_checksum"]) == (0, True, found["other_checksum"])


def test_an_archive_holds_what_the_topic_held(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    topic: str,
    make_topic: Callable[..., str],
    load: Callable[..., object],
    compare: Callable[..., Any],
    tmp_path: Path,
) -> None:
    load(topic, 500)
    queue = MessageQueue(topic, "broker-a", 0)
    repeat(cluster, Message(topic=topic, body=b"twice"), "TWICE", [queue, queue])
    archive.run(spark, cluster.namesrv, [topic], tmp_path / "archive")
    code, found = compare(topic, "--against-archive", str(tmp_path / "archive"))
    assert (code, found["one_messages"], found["other_messages"]) == (0, 502, 502)
    assert found["one_checksum"] == found["other_checksum"] != "0" * 16
    # The second one of the pair is one too many in the topic once it comes a third time.
    repeat(cluster, Message(topic=topic, body=b"twice"), "TWICE", [queue])
    code, found = compare(topic, "--against-archive", str(tmp_path / "archive"), "--by", "content")
    assert (code, found["missing"], found["extra"]) == (3, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a", "b", "--against", "c"], "one topic is compared at a time"),
        (["a", "--against", "c", "--group", "g"], "have no meaning"),
        (["a", "--against-namesrv", "x:1"], "name the topic there"),
        (["a", "--by", "luck", "--against", "b"], "id or content is needed"),
        (["a", "--ignore", "late"], "no kind of finding"),
        (["a", "--since", "soon"], "'soon': a time such as"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rocketspark(["pipeline", "audit", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_errors_end_with_1(cluster: Cluster, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert rocketspark(["pipeline", "audit", "not-there", "-n", cluster.namesrv]) == 1
    assert "no topic 'not-there'" in capsys.readouterr().err
