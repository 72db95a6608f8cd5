"""`pipeline dlq`: dead letters as brokers keep them, counted, chosen, and sent again once."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipelines.scene import bury, stored
from tests.spark.scrapes import scrape

from rocketspark.admin import Admin
from rocketspark.admin.messages.search import Search
from rocketspark.cli.main import run as rocketspark
from rocketspark.client import AsyncProducer, Producer
from rocketspark.errors import ConfigError, NoReply, RouteNotFound
from rocketspark.model import Message, MessageQueue, ReceivedMessage
from rocketspark.protocol.message import properties
from rocketspark.protocol.trace import Consumed, Received, encode
from rocketspark.spark.metrics.listening import listen_to_pipeline
from rocketspark.spark.pipelines import dlq, dlq_resend
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.options import Choice, ResendOptions
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.tables.client_access import Access
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("`dlq`: counted, sampled, chosen, sent again once")

COUNT = 12


@pytest.fixture
def dead(cluster: Cluster, producer: Producer, topic: str) -> tuple[str, str, list[ReceivedMessage]]:
    """A topic, a group, and the messages of the topic, all of which are dead letters of the group."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    for n in range(COUNT):
        producer.send(
            Message(
                topic=topic,
                body=b"order %d" % n,
                tag="refund" if n % 3 == 0 else "sale",
                keys=[f"k{n}", "all"],
                properties={"number": str(n)},
                sharding_key=f"customer-{n % 2}",
                flag=n,
            )
        )
    messages = sorted(stored(cluster, topic, COUNT), key=lambda m: int(m.properties["number"]))
    bury(cluster, group, messages)
    return topic, group, messages


def what(message: ReceivedMessage) -> tuple[Any, ...]:
    """What a resend keeps."""
    own = {k: v for k, v in message.properties.items() if k == "number"}
    key = message.properties.get(properties.SHARDING_KEY)
    return (message.body, message.tag, message.keys, own, message.flag, key)


def test_letters_are_counted_and_shown(
    spark: SparkSession,
    cluster: Cluster,
    producer: Producer,
    make_topic: Callable[..., str],
    dead: tuple[str, str, list[ReceivedMessage]],
) -> None:
    topic, group, messages = dead
    # The traces tell how the group's listener failed with two of them, the one twice.
    traces = make_topic(queues=1, brokers=1)
    for message, context, time_ms in ((messages[0], 1, 5), (messages[0], 2, 9), (messages[1], 4, 7)):
        request = {"request_id": f"R{time_ms}", "message_id": message.message_id, "group": group, "keys": ""}
        before = Received(time_ms=time_ms, region="R", retry_times=0, **request)
        after = Consumed(**request, cost_ms=0, success=False, context=context, time_ms=time_ms)
        producer.send(traces, (encode(before) + encode(after)).encode())
    report = dlq.run(spark, cluster.namesrv, Choice(groups=[group]), trace_topic=traces, samples=2)
    assert report.letters == COUNT
    assert {(h.group, h.topic, h.tag, h.error): h.letters for h in report.heaps} == {
        (group, topic, "sale", ""): 7,
        (group, topic, "refund", ""): 3,
        (group, topic, "refund", "exception"): 1,
        (group, topic, "sale", "failed"): 1,
    }
    assert all((h.least_attempts, h.most_attempts, h.ages) == (1, 1, {"under 1 h": h.letters}) for h in report.heaps)
    first, second = report.samples
    assert (first["message_id"], first["body"], first["error"]) == (messages[0].message_id, "order 0", "exception")
    assert (second["keys"], second["properties"], second["tag"]) == (["k1", "all"], {"number": "1"}, "sale")

    def chosen(**fields: Any) -> int:
        return dlq.run(spark, cluster.namesrv, Choice(groups=[group], **fields), samples=0).letters

    start_ms = messages[0].store_time_ms
    condition = "reconsumeTimes = 1 and flag > 3"
    assert chosen(tags=["refund"], keys=["k3", "k4", "k6"], topics=[topic], sql=condition, since_ms=start_ms) == 1
    assert chosen(ids=[messages[2].message_id], until_ms=start_ms) == 0
    with pytest.raises(ConfigError, match="no dead letters of group nobody; these groups have some: .*" + group):
        dlq.run(spark, cluster.namesrv, Choice(groups=["nobody"]))


def test_each_letter_is_sent_again_once(
    spark: SparkSession,
    cluster: Cluster,
    dead: tuple[str, str, list[ReceivedMessage]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, group, messages = dead

    def resend(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        call = ["pipeline", "dlq", "-g", group, "-n", cluster.namesrv, "--resend", "--json", *arguments]
        assert rocketspark(call) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    dry = resend("--tag", "refund", "--dry-run")
    assert (dry["chosen"], dry["sent"], dry["already_there"]) == (4, 0, 0)
    some = resend("--tag", "refund")
    assert (some["chosen"], some["sent"], some["already_there"]) == (4, 4, 0)
    rest = resend()
    assert (rest["chosen"], rest["sent"], rest["already_there"]) == (COUNT, COUNT - 4, 4)
    assert [(t["group"], t["topic"], t["target"]) for t in rest["targets"]] == [(group, topic, topic)]
    assert resend()["sent"] == 0
    again = [m for m in stored(cluster, topic, 2 * COUNT) if "originPlace" in m.properties]
    assert sorted(map(what, again), key=str) == sorted(map(what, messages), key=str)
    assert {m.properties["originMessageId"] for m in again} == {m.message_id for m in messages}
    assert len({m.message_id for m in again}) == COUNT
    # Those of one sharding key are in one queue, in the order they died in.
    for queue in {(m.broker_name, m.queue_id) for m in again}:
        rest_of = [int(m.properties["number"]) for m in again if (m.broker_name, m.queue_id) == queue]
        by_key = [[n for n in rest_of if n % 2 == key and n % 3] for key in (0, 1)]
        assert by_key == [sorted(numbers) for numbers in by_key]


def test_pipeline_and_command_see_what_the_other_sent(
    spark: SparkSession, cluster: Cluster, dead: tuple[str, str, list[ReceivedMessage]]
) -> None:
    topic, group, _ = dead
    with Admin(cluster.namesrv) as admin:
        by_command = admin.resend_dead_letters(group, search=Search(tag="refund"))
        assert [r.outcome for r in by_command] == ["sent"] * 4
        by_pipeline = dlq_resend.run(spark, cluster.namesrv, Choice(groups=(group,)))
        assert (by_pipeline.chosen, by_pipeline.sent, by_pipeline.already_there) == (COUNT, COUNT - 4, 4)
        assert [r.outcome for r in admin.resend_dead_letters(group)] == ["already"] * COUNT
    assert len(stored(cluster, topic, 2 * COUNT)) == 2 * COUNT


@pytest.mark.shows("mended: `dlq --resend` with options of `-o` that choose letters sends them again each time")
@pytest.mark.parametrize("name", ["sql", "endingTimestamp", "startingOffsets"])
def test_options_that_choose_letters_say_nothing_of_their_resends(
    spark: SparkSession, cluster: Cluster, dead: tuple[str, str, list[ReceivedMessage]], name: str
) -> None:
    topic, group, _ = dead
    letters = stored(cluster, f"%DLQ%{group}", COUNT)
    places: dict[str, dict[str, int]] = {}
    for letter in letters:
        places.setdefault(letter.broker_name, {})[str(letter.queue_id)] = 0
    value = {
        "sql": "RETRY_TOPIC IS NOT NULL",
        "endingTimestamp": str(max(letter.store_time_ms for letter in letters) + 1),
        "startingOffsets": json.dumps({f"%DLQ%{group}": places}),
    }[name]
    where = Connection(cluster.namesrv, options={name: value})
    runs = [dlq_resend.run(spark, where, Choice(groups=[group]), ResendOptions()) for _ in range(2)]
    assert [(r.sent, r.already_there) for r in runs] == [(COUNT, 0), (0, COUNT)]
    assert len(stored(cluster, topic, 2 * COUNT)) == 2 * COUNT


def test_lost_answers_and_an_end_in_the_midst_send_nothing_twice(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    dead: tuple[str, str, list[ReceivedMessage]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, group, messages = dead
    target = make_topic()
    monkeypatch.setattr(dlq_resend, "DOUBT_S", 0.0)
    send = AsyncProducer.send_packed
    calls = 0

    async def unanswered(self: AsyncProducer, *arguments: Any) -> Any:
        """Of four sends one is stored and one is not, and nobody is told of either; the seventh ends the run."""
        nonlocal calls
        calls += 1
        if calls == 7:
            raise MemoryError
        if calls % 4 == 0:
            raise NoReply("lost on its way")
        result = await send(self, *arguments)
        if calls % 4 == 1:
            raise NoReply("its answer was lost")
        return result

    monkeypatch.setattr(AsyncProducer, "send_packed", unanswered)
    choice = Choice(groups=[group])
    with pytest.raises(MemoryError):
        dlq_resend.run(spark, cluster.namesrv, choice, ResendOptions(to=target))
    done = dlq_resend.run(spark, cluster.namesrv, choice, ResendOptions(to=target))
    assert done.already_there > 0
    assert (done.already_there + done.sent, done.failed) == (COUNT, 0)
    assert sorted(map(what, stored(cluster, target, COUNT)), key=str) == sorted(map(what, messages), key=str)


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, str, str]]:
    """A cluster, a topic with a queue on each of two brokers, and a group with six dead letters on each."""
    with run_cluster(brokers=2) as cluster:
        with Producer(cluster.namesrv) as producer:
            producer.create_topic("pairs", queue_count=1)
            for number in range(COUNT):
                producer.send("pairs", b"%d" % number, queue=MessageQueue("pairs", f"broker-{'ab'[number % 2]}", 0))
        bury(cluster, "pair", stored(cluster, "pairs", COUNT))
        yield cluster, "pairs", "pair"


def without(cluster: Cluster, topic: str, broker_name: str) -> None:
    """Kill a broker, and wait until no route names it."""
    cluster.kill_master(broker_name)
    with Admin(cluster.namesrv) as admin:
        while broker_name in {q.queue.broker_name for q in admin.show_topic(topic).queues}:
            time.sleep(0.01)


@pytest.mark.shows("mended: `dlq` sends letters again whose resends lie on a broker that is away")
@pytest.mark.parametrize("by_command", [False, True])
def test_a_broker_that_is_away_hides_no_resend(
    spark: SparkSession, pair: tuple[Cluster, str, str], by_command: bool
) -> None:
    cluster, topic, group = pair

    def resend() -> int:
        if not by_command:
            return dlq_resend.run(spark, cluster.namesrv, Choice(groups=[group])).sent
        with Admin(cluster.namesrv) as admin:
            return sum(one.outcome == "sent" for one in admin.resend_dead_letters(group))

    assert resend() == COUNT
    without(cluster, topic, "broker-b")
    assert resend() == 0
    cluster.start_again("broker-b")
    assert len(stored(cluster, topic, 2 * COUNT)) == 2 * COUNT


@pytest.mark.shows("mended: `dlq --resend` sends letters twice if a broker dies meanwhile")
def test_a_broker_that_dies_during_a_resend(
    spark: SparkSession, pair: tuple[Cluster, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic, group = pair
    monkeypatch.setattr(dlq_resend, "DOUBT_S", 0.01)
    monkeypatch.setattr(dlq_resend, "IN_FLIGHT_MAX", 4)
    send, sent = AsyncProducer.send_packed, 0

    async def dying(self: AsyncProducer, *arguments: Any) -> Any:
        nonlocal sent
        result = await send(self, *arguments)
        sent += 1
        if sent == 7:
            await asyncio.to_thread(without, cluster, topic, "broker-b")
        return result

    monkeypatch.setattr(AsyncProducer, "send_packed", dying)
    with pytest.raises(ConfigError, match="broker 'broker-b' is away, so it cannot be seen which letters"):
        dlq_resend.run(spark, cluster.namesrv, Choice(groups=[group]))
    cluster.start_again("broker-b")
    done = dlq_resend.run(spark, cluster.namesrv, Choice(groups=[group]))
    assert (done.already_there + done.sent, done.failed) == (COUNT, 0)
    assert len(stored(cluster, topic, 2 * COUNT)) == 2 * COUNT


@pytest.mark.shows(
    "`--metrics-port` of pipelines; `archive` in both forms with durations of micro-batches and the lag by "
    "topic; `restore`, `replay`, `dlq --resend` with durations of chunks"
)
def test_to_the_group_alone(
    spark: SparkSession, cluster: Cluster, dead: tuple[str, str, list[ReceivedMessage]]
) -> None:
    topic, group, messages = dead
    with pytest.raises(RouteNotFound, match="letters would go to topic 'not-there'"):
        dlq_resend.run(spark, cluster.namesrv, Choice(groups=[group]), ResendOptions(to="not-there"))
    choice = Choice(groups=[group], keys=["k5"])
    progress = Progress("dlq")
    with listen_to_pipeline(spark, cluster.namesrv, Access(), progress, 0) as listening:
        for sent in (1, 0):
            assert (
                dlq_resend.run(spark, cluster.namesrv, choice, ResendOptions(to_group=True), progress=progress).sent
                == sent
            )
        found = scrape(listening.url)
    assert found.value("rocketspark_stream_batch_duration_seconds_count", query="dlq") == 1
    assert found.value("rocketspark_stream_rows_total", query="dlq") == 1
    (again,) = stored(cluster, f"%RETRY%{group}", 1)
    assert (what(again), again.properties["RETRY_TOPIC"]) == (what(messages[5]), topic)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "x"], "need it"),
        (["--resend"], "name the groups"),
        (["--resend", "-g", "g", "--to", "x", "--to-group"], "give one of them"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rocketspark(["pipeline", "dlq", *arguments]) == 2
    assert text in capsys.readouterr().err
