"""Topics, queues, brokers and NameServers that come and go while a stream runs: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheCluster
from tests.spark.conftest import read_rows
from tests.spark.stage import Stage, staged
from tests.support.patience import LIMIT_MS

from rocketspark.client import Producer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import ConfigError, NotSent, RocketSparkError, RouteNotFound
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.spark.pipelines import audit
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.parts.archive_batches import MicroBatches
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.read.queue_discovery import QueueGone
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.export_topic import export_topic
from rocketspark.tables.offset_ranges import Offsets, from_json
from rocketspark.tables.options import parse_read
from rocketspark.tables.read import batch, pull_records
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows(
    "`failOnDataLoss`; topics, queues, brokers and NameServers that come and go under a stream",
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "broker-a", "broker-b") as made:
        yield made


class Stream:
    """A reader driven as Spark drives one, each micro-batch from the offset before. `rows`: all that came."""

    def __init__(self, stage: Stage | ApacheCluster, topic: str = "", **options: str) -> None:
        given = {"namesrv": stage.namesrv, "startingOffsets": "earliest", **options}
        self._options = given | ({"topic": topic} if topic else {})
        self.reader = self.made()
        self.at = self.reader.initialOffset()
        self.rows: list[str] = []

    def made(self) -> StreamReader:
        return StreamReader(READ_SCHEMA, parse_read(self._options, streaming=True))

    def restart(self) -> None:
        """As a query that goes on from its checkpoint."""
        self.reader.stop()
        self.reader = self.made()

    def goes_on(self, **options: str) -> None:
        """As a query that goes on from its checkpoint with other options."""
        self._options |= options
        self.restart()

    def run(self) -> list[str]:
        """One micro-batch; what it read, in order."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, ReadAllAvailable())))
        parts = self.reader.partitions(self.at, end)
        rows = [row["body"].decode() for p in parts for b in self.reader.read(p) for row in b.to_pylist()]
        self.at = end
        self.rows += rows
        return sorted(rows)

    def places(self) -> dict[str, int]:
        return {f"{q.broker_name}/{q.queue_id}": n for q, n in sorted(from_json(self.at).items())}


# What each queue of each broker holds after queues were added.
COUNTS = {"broker-a": (3, 0, 3), "broker-b": (0, 3, 0)}


class Sender:
    """Messages numbered in one run, so that none is like another."""

    def __init__(self, stage: Stage | ApacheCluster) -> None:
        self._stage = stage
        self.sent: list[str] = []

    def __call__(self, topic: str, broker: str, queue: int = 0, count: int = 3) -> list[str]:
        place = MessageQueue(topic, broker, queue)
        bodies = [f"{topic} {len(self.sent) + i}" for i in range(count)]
        with Producer(self._stage.namesrv, "goings") as producer:
            for body in bodies:
                sent = producer.send(Message(topic=topic, body=body.encode()), queue=place)
            # The official broker answers a send before its queue shows the message.
            while producer.max_offset(place) <= sent.queue_offset:
                time.sleep(0.01)
        self.sent += bodies
        return sorted(bodies)


@pytest.fixture
def send(stage: Stage) -> Sender:
    return Sender(stage)


def test_a_broker_that_stops_keeps_its_place(stage: Stage, send: Sender) -> None:
    stage.create("t", 1)
    stream = Stream(stage, "t")
    send("t", "broker-a"), send("t", "broker-b")
    assert stream.run() == send.sent
    missed = send("t", "broker-b")
    stage.stop("broker-b")
    new = send("t", "broker-a")
    assert stream.run() == new
    assert stream.run() == []
    # A query that is started meanwhile goes on as well.
    stream.restart()
    new = send("t", "broker-a")
    assert stream.run() == new
    assert stream.places() == {"broker-a/0": 9, "broker-b/0": 3}
    stage.start("broker-b")
    assert stream.run() == missed
    assert sorted(stream.rows) == sorted(send.sent)


@pytest.mark.shows("mended: a topic no longer read ends the query when it is deleted")
def test_a_topic_that_is_no_longer_read_is_nobody_s_concern(
    stage: Stage, send: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("t", "extra"):
        stage.create(topic, 1)
        send(topic, "broker-a")
    stream = Stream(stage, "t,extra")
    assert len(stream.run()) == 6
    stream._options["topic"] = "t"
    stream.restart()
    new = send("t", "broker-a")
    assert stream.run() == new
    stage.delete("extra")
    new = send("t", "broker-a")
    assert stream.run() == new
    assert "away" not in caplog.text
    # It keeps its place, so that what became of it is told when it is wanted again.
    stream._options["topic"] = "t,extra"
    stream.restart()
    with pytest.raises(QueueGone, match="topic 'extra'"):
        stream.run()


@pytest.mark.shows("a stream started while a broker of its unfinished micro-batch is away")
def test_a_broker_that_stops_between_planning_and_reading_is_waited_for(
    stage: Stage, send: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("t", 1)
    stream = Stream(stage, "t")
    wanted = sorted(send("t", "broker-a") + send("t", "broker-b"))
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    stage.stop("broker-b")
    parts = stream.reader.partitions(stream.at, end)
    stage.start("broker-b")
    assert sorted(r["body"].decode() for p in parts for b in stream.reader.read(p) for r in b.to_pylist()) == wanted
    # A new query knows no address of a broker that is away: the driver died with it, in this micro-batch.
    stage.stop("broker-b")
    stream.restart()
    parts = stream.reader.partitions(stream.at, end)
    monkeypatch.setattr(pull_records, "RETRIES", pull_records.RETRIES._replace(attempts_max=1, budget_s=0.0))
    with pytest.raises(NotSent, match="broker 'broker-b' has no topic 't' now: start it"):
        [batch for part in parts for batch in stream.reader.read(part)]
    stage.start("broker-b")
    assert sorted(r["body"].decode() for p in parts for b in stream.reader.read(p) for r in b.to_pylist()) == wanted


@pytest.mark.shows("mended: a broker that never comes back holds a micro-batch that was begun for ever")
def test_a_broker_that_never_comes_back_is_left_out_of_a_micro_batch(
    stage: Stage, send: Sender, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_records, "RETRIES", pull_records.RETRIES._replace(attempts_max=1, budget_s=0.0))
    stage.create("t", 1)
    stream = Stream(stage, "t", failOnDataLoss="false")
    wanted, others = send("t", "broker-a"), send("t", "broker-b")
    end = json.loads(json.dumps(stream.reader.latestOffset(stream.at, ReadAllAvailable())))

    def rows() -> list[str]:
        parts = stream.reader.partitions(stream.at, end)
        return sorted(r["body"].decode() for p in parts for b in stream.reader.read(p) for r in b.to_pylist())

    # What the options name no more is read all the same while it is there.
    del stream._options["topic"]
    stream._options["assign"] = '{"t": {"broker-a": [0]}}'
    stream.restart()
    assert rows() == sorted(wanted + others)
    stage.stop("broker-b")
    stream.restart()
    assert rows() == wanted
    assert "its broker is away, and the options name the queue no more" in caplog.text
    stream.at = end
    assert stream.run() == []
    assert stream.places() == {"broker-a/0": 3, "broker-b/0": 3}
    # That messages are lost must be allowed.
    stream.at = stream.made().initialOffset()
    stream._options["failOnDataLoss"] = "true"
    stream.restart()
    with pytest.raises(NotSent, match=r"now: start it, or leave it out .option assign; a stream"):
        rows()


def test_available_now_ends_without_a_broker_that_is_away(stage: Stage, send: Sender) -> None:
    stage.create("t", 1)
    stream = Stream(stage, "t")
    send("t", "broker-b")
    stage.stop("broker-b")
    wanted = send("t", "broker-a")
    stream.reader.prepareForTriggerAvailableNow()
    stage.start("broker-b")
    send("t", "broker-a")
    assert stream.run() == wanted
    assert stream.run() == []


@pytest.mark.shows("mended: messages on a broker where their topic may not be read are passed over without a word")
def test_a_topic_that_may_be_read_on_one_of_two_brokers(
    stage: Stage, send: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    stage.create("t", 1)
    on_a, on_b = send("t", "broker-a"), send("t", "broker-b")
    stage.permit("t", "broker-b", 2)
    text = "topic 't' may not be read on broker 'broker-b', whose messages are left out"
    with pytest.raises(ConfigError, match=text):
        read_rows("body", namesrv=stage.namesrv, topic="t")
    with pytest.raises(ConfigError, match=text):
        read_rows("body", namesrv=stage.namesrv, assign='{"t": [0]}')
    with pytest.raises(ConfigError, match=text):
        audit.ask(Connection(stage.namesrv), ["t"], [])
    for options in ({"topic": "t", "failOnDataLoss": "false"}, {"topicPattern": "t"}):
        caplog.clear()
        rows = read_rows("body", namesrv=stage.namesrv, **options)
        assert sorted(row["body"].decode() for row in rows) == on_a
        assert [r.getMessage() for r in caplog.records if text in r.getMessage()]
    # What the stream was not let to read comes once it may be read.
    caplog.clear()
    stream = Stream(stage, "t")
    assert (stream.run(), stream.run()) == (on_a, [])
    assert len([r for r in caplog.records if text in r.getMessage()]) == 1
    stage.permit("t", "broker-b", 6)
    assert stream.run() == on_b
    # A broker that holds nothing keeps nobody from reading.
    stage.create("empty", 1)
    stage.permit("empty", "broker-b", 2)
    assert read_rows("body", namesrv=stage.namesrv, topic="empty") == []


def test_no_nameserver_for_a_while(stage: Stage, send: Sender) -> None:
    stage.create("t", 1)
    stream = Stream(stage, "t")
    send("t", "broker-a")
    stream.run()
    more = send("t", "broker-b")
    stage.stop_namesrv()
    assert stream.run() == more
    # One that has just started knows nothing until brokers register.
    stage.start_namesrv()
    assert stream.run() == []
    assert stream.places() == {"broker-a/0": 3, "broker-b/0": 3}


def test_queues_that_are_added_are_read_from_their_beginning(stage: Stage, send: Sender) -> None:
    stage.create("t", 1, "broker-a")
    stream = Stream(stage, "t", startingOffsets="latest")
    stage.create("t", 3, "broker-a", "broker-b")
    new = sorted(send("t", "broker-a", 2) + send("t", "broker-b", 1) + send("t", "broker-a", 0))
    before = stream.at
    assert stream.run() == new
    assert stream.places() == {
        **{f"broker-a/{i}": (3, 0, 3)[i] for i in range(3)},
        "broker-b/0": 0,
        "broker-b/1": 3,
    } | {"broker-b/2": 0}
    # Run again by another driver it is the same micro-batch, though the log tells only where it ends.
    end = stream.at
    send("t", "broker-b", 1)
    stream.restart()
    parts = stream.reader.partitions(before, end)
    assert sorted(r["body"].decode() for p in parts for b in stream.reader.read(p) for r in b.to_pylist()) == new


def test_queues_that_are_taken_away_are_data_loss_only_if_something_is_left_in_them(stage: Stage, send: Sender) -> None:
    stage.create("t", 3, "broker-a")
    stream = Stream(stage, "t")
    send("t", "broker-a", 1)
    stream.run()
    stage.create("t", 1, "broker-a")
    new = send("t", "broker-a", 0)
    assert stream.run() == new
    assert stream.places() == {"broker-a/0": 3, "broker-a/1": 3, "broker-a/2": 0}
    stage.create("t", 3, "broker-a")
    new = send("t", "broker-a", 1)
    assert stream.run() == new
    left = send("t", "broker-a", 2)
    stage.create("t", 2, "broker-a")
    with pytest.raises(QueueGone, match=r"queue 2 of topic 't' on broker 'broker-a', read up to offset 0, is gone"):
        stream.run()
    lenient = Stream(stage, "t", failOnDataLoss="false")
    lenient.at = stream.at
    assert lenient.run() == []
    # It keeps its place, should the topic get it back.
    assert lenient.places() == {"broker-a/0": 3, "broker-a/1": 6, "broker-a/2": 0}
    stage.create("t", 3, "broker-a")
    assert lenient.run() == left


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted(stage: Stage, send: Sender, fail: bool) -> None:
    stage.create("t", 1)
    stage.create("u", 1, "broker-a")
    stream = Stream(stage, "t,u", failOnDataLoss=str(fail))
    send("t", "broker-a"), send("u", "broker-a")
    stream.run()
    stage.delete("t")
    more = send("u", "broker-a")
    if fail:
        with pytest.raises(QueueGone, match=r"gone \(the topic was deleted\); set failOnDataLoss to false"):
            stream.run()
        return
    assert stream.run() == more
    assert list(stream.places()) == ["broker-a/0"]
    assert stream.run() == []
    stream.restart()
    with pytest.raises(RouteNotFound, match="no topic 't'"):
        stream.run()
    # Made anew it is new, and read from its beginning.
    stage.create("t", 1)
    anew = send("t", "broker-a", count=1)
    assert stream.run() == anew
    assert sorted(stream.rows) == sorted(send.sent)


@pytest.mark.shows("a topic made anew under a stream, also grown past its offset; under a planned micro-batch")
@pytest.mark.parametrize("count", [2, 5, 9])
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_made_anew_before_the_stream_looks(stage: Stage, send: Sender, fail: bool, count: int) -> None:
    """It holds fewer messages than before, as many, or more."""
    stage.create("t", 1, "broker-a")
    stream = Stream(stage, "t", failOnDataLoss=str(fail), minMessagesPerTrigger="1")
    send("t", "broker-a", count=5)
    stream.run()
    stage.delete("t")
    stage.create("t", 1, "broker-a")
    anew = send("t", "broker-a", count=count)
    if fail:
        with pytest.raises(DataLost, match="made anew"):
            stream.run()
        return
    stream.restart()
    assert stream.run() == anew
    assert stream.places() == {"broker-a/0": count}
    assert stream.run() == []
    # Known now: a stream that begins with it, and goes on, is not told again.
    other = Stream(stage, "t")
    assert other.run() == anew
    other.restart()
    more = send("t", "broker-a")
    assert other.run() == stream.run() == more


@pytest.mark.shows("mended: a broker on an empty store that grew past a stream's place: messages passed over, untold")
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_broker_that_lost_its_store(stage: Stage, send: Sender, fail: bool, is_running: bool) -> None:
    stage.create("t", 1, "broker-a")
    stream = Stream(stage, "t", failOnDataLoss=str(fail))
    send("t", "broker-a", count=5)
    stream.run()
    stage.move("broker-a")  # With its store: it is the same.
    more = send("t", "broker-a", count=2)
    assert stream.run() == more
    if not is_running:
        stream.reader.stop()
    stage.lose_store("broker-a")
    stage.create("t", 1, "broker-a")
    anew = send("t", "broker-a", count=9)
    if not is_running:
        stream.restart()
    if fail:
        with pytest.raises(DataLost, match=r"messages from 7 on .* are gone \(its broker has another store now"):
            stream.run()
        return
    assert stream.run() == anew
    assert stream.run() == []
    # Of a store that held nothing nothing was lost.
    stage.lose_store("broker-a")
    stage.create("t", 1, "broker-a")
    other = Stream(stage, "t")
    assert other.run() == []
    stage.lose_store("broker-a")
    stage.create("t", 1, "broker-a")
    assert other.run() == []
    assert send("t", "broker-a", count=2) == other.run()


@pytest.mark.shows("mended: an export that goes on beside an empty store takes that store's messages for its own")
def test_an_export_whose_broker_lost_its_store(
    stage: Stage, send: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": stage.namesrv, "topic": "t", "columns": "queueOffset,body"}
    to, whole = tmp_path / "f.jsonl", batch.read
    stage.create("t", 2, "broker-a")
    send("t", "broker-a", 0, 4), send("t", "broker-a", 1, 4)
    with monkeypatch.context() as patched:
        patched.setattr(batch, "read", lambda *how: chain(whole(*how), ended()))
        with pytest.raises(Ended):
            export_topic(given, to)
    noted = to.with_name("f.jsonl.part").read_bytes()
    assert noted
    stage.lose_store("broker-a")
    stage.create("t", 2, "broker-a")
    send("t", "broker-a", 1, 9), send("t", "broker-a", 0, 9)
    with pytest.raises(DataLost, match="its broker has another store now"):
        export_topic(given, to)
    export_topic(given | {"failOnDataLoss": "false"}, to)
    assert to.read_bytes() == noted


@pytest.mark.shows(
    "mended: an archive of one topic hides from the next run of another that their broker lost its store"
)
def test_an_archive_of_several_topics_whose_broker_lost_its_store(stage: Stage, send: Sender) -> None:
    archive = partial(archived, stage, Kept())

    for topic in ("t", "u"):
        stage.create(topic, 1, "broker-a")
        send(topic, "broker-a", count=5)
    assert archive("t") == archive("u") == 5
    stage.move("broker-a")
    assert archive("t") == 0
    stage.lose_store("broker-a")
    for topic in ("t", "v"):
        stage.create(topic, 1, "broker-a")
        send(topic, "broker-a", count=9)
    with pytest.raises(
        ConfigError, match="broker 'broker-a' has another store now than when topic 't' of this archive"
    ):
        archive("v")
    with pytest.raises(DataLost, match="its broker has another store now"):
        archive("t")


class Kept:
    """What an archive has, in memory."""

    def __init__(self) -> None:
        self.offsets: dict[str, Any] | None = None

    def begin(self, offsets: dict[str, Any]) -> None:
        self.offsets = offsets

    def store(self, reader: StreamReader, partitions: Sequence[Any], offsets: dict[str, Any]) -> int:
        self.offsets = offsets
        return sum(batch.num_rows for part in partitions for batch in reader.read(part))

    def ends(self, topics: Collection[str]) -> Offsets:
        return {}


def archived(stage: Stage, target: Kept, topic: str) -> int:
    """Archive what is new of a topic; return how many messages."""
    options = parse_read({"namesrv": stage.namesrv, "topic": topic, "startingOffsets": "earliest"}, streaming=True)
    reader = StreamReader(READ_SCHEMA, options)
    work = MicroBatches(target, reader, [topic], progress=Progress("archive"), batch_rows=99, once=True)
    try:
        work.run(lambda: 0, interval_s=0, merges_again=False)
    finally:
        reader.stop()
    return work.rows


class Ended(Exception):
    """Raised in the midst of an export."""


def ended() -> Iterator[Any]:
    """Rows that cannot be read."""
    raise Ended
    yield


@pytest.mark.shows("mended: a broker at another address: a topic made anew there later is passed over in part, untold")
@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_is_made_anew_on_a_broker_that_came_back_elsewhere(
    stage: Stage, send: Sender, fail: bool, count: int
) -> None:
    """It has no replicas: another address, as containers have after a restart, makes it none of a pair."""
    stage.create("t", 1, "broker-a")
    stream = Stream(stage, "t", failOnDataLoss=str(fail))
    send("t", "broker-a", count=5)
    stream.run()
    stage.move("broker-a")
    more = send("t", "broker-a", count=1)
    assert stream.run() == more
    stage.delete("t")
    stage.create("t", 1, "broker-a")
    anew = send("t", "broker-a", count=count)
    if fail:
        with pytest.raises(DataLost, match="the topic was deleted and made anew"):
            stream.run()
        return
    assert stream.run() == anew
    assert stream.run() == []


@pytest.mark.shows("a topic made anew under a stream, also grown past its offset; under a planned micro-batch")
@pytest.mark.parametrize("count", [3, 7, 12])
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_made_anew_under_a_planned_micro_batch(
    stage: Stage, send: Sender, fail: bool, count: int
) -> None:
    """It died within offsets 5 to 9; repeated, it reads nothing of the new topic, and the next one all of it once."""
    stage.create("t", 1, "broker-a")
    stream = Stream(stage, "t", failOnDataLoss=str(fail))
    send("t", "broker-a", count=5)
    stream.run()
    send("t", "broker-a", count=5)
    planned = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    stage.delete("t")
    stage.create("t", 1, "broker-a")
    anew = send("t", "broker-a", count=count)
    stream.restart()
    if fail:
        with pytest.raises(DataLost, match="made anew"):
            stream.reader.partitions(stream.at, planned)
        return
    assert stream.reader.partitions(stream.at, planned) == []
    stream.at = planned
    assert stream.run() == anew
    assert stream.run() == []


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted_between_planning_and_reading(stage: Stage, send: Sender, fail: bool) -> None:
    stage.create("t", 1)
    stage.create("u", 1, "broker-a")
    stream = Stream(stage, "t,u", failOnDataLoss=str(fail))
    send("t", "broker-b")
    wanted = send("u", "broker-a")
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    planned = stream.reader.partitions(stream.at, end)
    stage.delete("t")

    def read(parts: Any) -> list[str]:
        return sorted(r["body"].decode() for p in parts for b in stream.reader.read(p) for r in b.to_pylist())

    if fail:
        with pytest.raises(DataLost, match="the topic was deleted"):
            read(planned)
        with pytest.raises(QueueGone, match="the topic was deleted"):
            stream.reader.partitions(stream.at, end)
    else:
        assert read(planned) == wanted
        assert read(stream.reader.partitions(stream.at, end)) == wanted


def test_topics_that_match_appear_and_vanish(stage: Stage, send: Sender) -> None:
    stream = Stream(stage, topicPattern="log-.*", failOnDataLoss="false")
    assert stream.at == {}
    assert stream.run() == []
    stage.create("other", 1)
    stage.create("log-1", 1, "broker-a")
    new = send("log-1", "broker-a")
    send("other", "broker-a")
    assert stream.run() == new
    stage.create("log-2", 1, "broker-b")
    new = sorted(send("log-2", "broker-b") + send("log-1", "broker-a"))
    assert stream.run() == new
    stage.delete("log-1")
    new = send("log-2", "broker-b")
    assert stream.run() == new
    assert {queue.topic for queue in from_json(stream.at)} == {"log-2"}
    stage.stop_namesrv()
    assert stream.run() == []
    with pytest.raises(RocketSparkError, match="no NameServer answers"):
        Stream(stage, topicPattern="log-.*")


def test_on_apache_s_broker_what_is_deleted_or_taken_away_is_told_apart_as_well(apache: ApacheCluster) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    other = f"{topic}-other"

    async def change(topic: str, queues: int) -> None:
        broker, namesrv = await dial(apache.broker), await dial(apache.namesrv)
        if queues:
            await admin_api.create_topic(
                broker,
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues),
                timeout_ms=LIMIT_MS,
            )
        else:
            await admin_api.delete_topic(broker, topic)
            await admin_api.delete_topic_route(namesrv, topic)
        while True:
            try:
                [found] = (await client_api.fetch_route(namesrv, topic)).queues
                count = found.read_queue_count
            except RouteNotFound:
                count = 0
            if count == queues:
                break
            if not queues:
                # A registration that was under way brought it back.
                await admin_api.delete_topic_route(namesrv, topic)
            await asyncio.sleep(0.02)
        broker.close()
        namesrv.close()

    asyncio.run(change(topic, 3))
    asyncio.run(change(other, 1))
    send = Sender(apache)
    strict, lenient = (Stream(apache, f"{topic},{other}", failOnDataLoss=fail) for fail in ("true", "false"))
    first = sorted(send(topic, "broker-a", 2) + send(other, "broker-a"))
    assert strict.run() == lenient.run() == first
    # A queue that was read to its end keeps its place; one with messages left is gone.
    asyncio.run(change(topic, 2))
    assert strict.run() == lenient.run() == []
    asyncio.run(change(topic, 3))
    more = send(topic, "broker-a", 2)
    asyncio.run(change(topic, 2))
    with pytest.raises(QueueGone, match=r"queue 2 of topic .* read up to offset 3, is gone \(the topic has 2 queues"):
        strict.run()
    assert lenient.run() == []
    asyncio.run(change(topic, 0))
    rest = send(other, "broker-a")
    with pytest.raises(QueueGone, match="the topic was deleted"):
        strict.run()
    assert lenient.run() == rest
    assert {queue.topic for queue in from_json(lenient.at)} == {other}
    assert not set(more) & set(lenient.rows)
