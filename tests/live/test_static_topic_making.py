"""Static topics made and made larger by operators: from Python, by the command line and in the console."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests.console.support import done, opened, posted
from tests.support.cli_calls import call

from rocketspark.admin import Admin
from rocketspark.admin.static_topics import leaders_of, spread
from rocketspark.client import Producer, PullConsumer
from rocketspark.errors import UsageError
from rocketspark.protocol.json.static_topics import MappingDetail, TopicConfigAndMapping
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("static topics are made, and get more queues: Python, command line and console")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        yield running


def test_a_static_topic_is_made_used_and_made_larger(cluster: Cluster) -> None:
    with Admin(cluster.namesrv) as admin:
        made = admin.create_static_topic("ledger", 5)
        assert made.leaders == {0: "broker-a", 1: "broker-b", 2: "broker-a", 3: "broker-b", 4: "broker-a"}
        assert (made.queue_count, made.existed) == (5, False)
        with Producer(cluster.namesrv, "p") as producer:
            assert [queue.queue_id for queue in producer.queues("ledger")] == [0, 1, 2, 3, 4]
            for queue in producer.queues("ledger"):
                producer.send("ledger", str(queue.queue_id).encode(), queue=queue)
        assert admin.create_static_topic("ledger", 5) == made._replace(existed=True)
        more = admin.create_static_topic("ledger", 8, brokers=["broker-b"])
        assert more.leaders == made.leaders | dict.fromkeys((5, 6, 7), "broker-b")
        assert more.epoch >= made.epoch + 1000
        with Producer(cluster.namesrv, "p") as producer:
            producer.send("ledger", b"7", queue=producer.queues("ledger")[7])
        with PullConsumer(cluster.namesrv, "g", consume_from="first") as consumer:
            consumer.subscribe("ledger")
            bodies: list[bytes] = []
            while len(bodies) < 6:
                bodies += [message.body for message in consumer.poll(60_000)]
        assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4", b"7"]
        with pytest.raises(UsageError, match="has 8 queues, and none can be taken away"):
            admin.create_static_topic("ledger", 7)
        admin.create_topic("plain", queue_count=1, brokers=["broker-b"])
        with pytest.raises(UsageError, match="is not a static one"):
            admin.create_static_topic("plain", 4, brokers=["broker-a"])


def test_the_command_makes_one(cluster: Cluster) -> None:
    told = call("topic", "create-static", "cli", "-q", "3", "-b", "broker-b", "--json", "--namesrv", cluster.namesrv)
    values = json.loads(told.stdout)
    assert values.pop("epoch") > 1_700_000_000_000
    assert values == {"topic": "cli", "queues": 3, "brokers": {"broker-b": 3}}
    told = call("topic", "create-static", "cli", "-q", "4", "--namesrv", cluster.namesrv)
    assert told.stdout == "static topic cli has 4 queues: 1 on broker-a, 3 on broker-b\n"
    refused = call("topic", "create-static", "cli", "-q", "1", "--namesrv", cluster.namesrv)
    assert (refused.exit_code, "none can be taken away" in str(refused.exception)) == (1, True)


def test_the_console_makes_one(cluster: Cluster) -> None:
    with opened(cluster.namesrv) as client, Admin(cluster.namesrv) as admin:
        fields = {"name": "made-here", "queues": "6", "static": "yes", "perm": "6", "message_type": ""}
        assert "6 logical queues in all" in posted(client, "/topics/create", **fields).text
        assert "Static topic made-here has 6 queues on broker-a, broker-b." in done(client, "/topics/create", **fields)
        assert admin.create_static_topic("made-here", 6).existed
        wrong = posted(client, "/topics/create", **{**fields, "name": "other", "batch": "yes"})
        assert (wrong.status_code, "a static topic has no message type" in wrong.text) == (400, True)


def config(name: str, *, epoch: int = 5, total: int = 2, queues: dict[int, int] | None = None) -> TopicConfigAndMapping:
    """What a broker has of a topic: its own queues by logical one."""
    made = spread("t", 1, [name], {}, epoch)[name]
    assert made.mapping_detail is not None
    (item,) = made.mapping_detail.hosted_queues[0]
    hosted = {at: [type(item)(queue_id=own, bname=name)] for at, own in (queues or {}).items()}
    detail = MappingDetail(topic="t", total_queues=total, bname=name, epoch=epoch, hosted_queues=hosted)
    return TopicConfigAndMapping(topic_name="t", read_queue_nums=9, write_queue_nums=7, mapping_detail=detail)


def test_new_queues_go_to_who_leads_fewest_and_take_numbers_that_nobody_used() -> None:
    there = {"a": config("a", queues={0: 3}), "b": config("b", queues={1: 0})}
    wanted = spread("t", 5, ["c", "b"], there, 1)
    assert leaders_of(wanted) == {0: "a", 1: "b", 2: "c", 3: "c", 4: "b"}
    details = {name: each.mapping_detail for name, each in wanted.items()}
    assert {(each.epoch, each.total_queues) for each in details.values() if each is not None} == {(1005, 5)}
    own = {at: items[-1].queue_id for each in details.values() if each for at, items in each.hosted_queues.items()}
    assert own == {0: 3, 1: 0, 2: 0, 3: 1, 4: 9}
    assert {name: (each.read_queue_nums, each.write_queue_nums) for name, each in wanted.items()} == {
        "a": (9, 9),
        "b": (10, 10),
        "c": (2, 2),
    }
    assert spread("t", 2, ["c"], there, 1) == {}


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"a": config("a", queues={0: 0}), "b": config("b", epoch=6, queues={1: 0})}, "do not agree"),
        ({"a": config("a", queues={0: 0}), "b": config("b", total=3, queues={1: 0})}, "do not agree"),
        ({"a": config("a", queues={0: 0})}, "1 of 2 queues"),
    ],
)
def test_a_mapping_that_is_not_whole_is_left_as_it_is(there: dict[str, TopicConfigAndMapping], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        spread("t", 4, ["a"], there, 1)
