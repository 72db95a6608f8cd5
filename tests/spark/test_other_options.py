"""A stream that goes on from its checkpoint with other options than before: nothing is passed over untold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.stage import Stage, staged
from tests.spark.test_comings_and_goings import Sender, Stream


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "broker-a") as made:
        yield made


@pytest.mark.shows("mended: a topic that a stream names again after its broker lost its store is passed over in part")
def test_a_topic_that_is_named_again_after_its_broker_lost_its_store(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the stream read another topic there, by whose first messages it knows the new store."""
    send = Sender(stage)
    for topic in ("t", "u"):
        stage.create(topic, 1, "broker-a")
        send(topic, "broker-a", count=5)
    stream = Stream(stage, "t")
    assert len(stream.run()) == 5
    # Another store, with copies of both topics that have grown beyond those before.
    stage.lose_store("broker-a")
    for topic in ("t", "u"):
        stage.create(topic, 1, "broker-a")
    anew, other = send("t", "broker-a", count=9), send("u", "broker-a", count=3)
    stream.goes_on(topic="u")
    assert stream.run() == other
    told = "queue 0 of topic 't' on broker 'broker-a', which the options do not name now, loses its place at offset 5"
    assert told in caplog.text
    stream.goes_on(topic="t,u")
    assert stream.run() == anew


@pytest.mark.shows("mended: a queue that `assign` names again after its topic was made anew is passed over in part")
def test_a_queue_that_is_named_again_after_its_topic_was_made_anew(stage: Stage) -> None:
    """Meanwhile the stream read another queue of the topic, by whose number it knows the new one."""
    send = Sender(stage)
    stage.create("t", 2, "broker-a")
    send("t", "broker-a", queue=0, count=5)
    stream = Stream(stage, assign='{"t": [0]}')
    assert len(stream.run()) == 5
    stage.delete("t")
    stage.create("t", 2, "broker-a")
    anew, other = send("t", "broker-a", queue=0, count=9), send("t", "broker-a", queue=1, count=3)
    stream.goes_on(assign='{"t": [1]}')
    assert stream.run() == other
    stream.goes_on(assign='{"t": [0, 1]}')
    assert stream.run() == anew


def test_a_topic_that_is_named_again_goes_on_where_it_was(stage: Stage) -> None:
    send = Sender(stage)
    for topic in ("t", "u"):
        stage.create(topic, 1, "broker-a")
        send(topic, "broker-a")
    stream = Stream(stage, "t")
    assert len(stream.run()) == 3
    stage.move("broker-a")
    missed = send("t", "broker-a", count=2)
    stream.goes_on(topic="u")
    assert len(stream.run()) == 3
    stream.goes_on(topic="u,t")
    assert stream.run() == missed
    assert sorted(stream.rows) == sorted(send.sent)


@pytest.mark.shows(
    "mended: AvailableNow: a broker that comes back with another store while the query runs is passed over in part"
)
def test_a_broker_that_comes_back_with_another_store_after_the_end_was_fixed(stage: Stage) -> None:
    send = Sender(stage)
    stage.start("broker-b")
    stage.create("t", 1)
    stream = Stream(stage, "t", failOnDataLoss="false")
    send("t", "broker-a"), send("t", "broker-b", count=5)
    assert len(stream.run()) == 8
    stage.stop("broker-b")
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    stage.start("broker-b")
    stage.lose_store("broker-b")
    stage.create("t", 1)
    anew = send("t", "broker-b", count=9)
    # The query ends where the topic ended when it began.
    assert stream.run() == []
    stream.restart()
    assert stream.run() == anew
