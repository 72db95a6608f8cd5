"""Our operations on groups, clients and offsets beside the official `mqadmin` 5.5.0: the same answers, on our servers
and on the official ones. The stage's state is in mqadmin.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime

import pytest
from tests.java.apache import committed_offset
from tests.java.mqadmin import Stage, table, until
from tests.support.patience import LIMIT_MS

from rocketspark.admin import Admin
from rocketspark.admin.progress import GroupLag

pytestmark = pytest.mark.shows(
    "groups, clients and offsets for operators: operations, commands, as `mqadmin` shows them"
)


@pytest.fixture(scope="module")
def admin(each_stage: Stage) -> Iterator[Admin]:
    with Admin(each_stage.namesrv) as admin:
        yield admin


def as_progress(lag: GroupLag) -> list[str]:
    """A group's lag as consumerProgress prints it, without its first line and the TPS."""
    rows = [
        f"{q.queue.topic} {q.queue.broker_name} {q.queue.queue_id} {q.broker_offset} {q.consumer_offset} {q.lag}"
        f" {q.in_flight} {datetime.fromtimestamp(q.last_time_ms // 1000) if q.last_time_ms else 'N/A'}"
        for q in lag.queues
    ]
    return [*sorted(rows), f"Consume Diff Total: {lag.lag}", f"Consume Inflight Total: {lag.in_flight}"]


@pytest.mark.parametrize("group", ["buyers", "laggards", "failing"])
def test_lag_is_that_of_consumer_progress(each_stage: Stage, admin: Admin, group: str) -> None:
    # The rate goes down from one second to the next.
    lines = [line for line in each_stage.mqadmin("consumerProgress", "-g", group) if "Consume TPS" not in line]
    sums = [line for line in lines if line.startswith("Consume ")]
    found = admin.group_lag(group)
    assert as_progress(found) == [*sorted(line for line in lines[1:] if line not in sums), *sums]
    assert all((q.delay_ms or 0) > 0 if q.lag else q.delay_ms == 0 for q in found.queues)


def test_who_reads_a_queue_is_as_consumer_progress_says(each_stage: Stage, admin: Admin) -> None:
    lines = each_stage.mqadmin("consumerProgress", "-g", "buyers", "-t", "Orders", "-s", "true")
    addresses = {int(words[2]): words[5] for line in lines if (words := line.split())[0] == "Orders"}
    client = each_stage.client_id("buyers")
    found = admin.group_lag("buyers", "Orders")
    assert {q.queue.queue_id: q.client_id for q in found.queues} == dict.fromkeys(range(4), client)
    assert addresses == dict.fromkeys(range(4), client.split("@")[0])


def test_all_groups_are_as_consumer_progress_says(each_stage: Stage, admin: Admin) -> None:
    head, *rows = each_stage.mqadmin("consumerProgress")
    assert head == "#Group #Count #Version #Type #Model #TPS #Diff Total"
    wanted = {words[0]: [*words[:-2], words[-1]] for row in rows if (words := row.split())[0] in _STAGED}
    states = {s.group: s for s in admin.list_group_states()}
    assert wanted.keys() == _STAGED
    assert {
        name: [
            *(name, str(s.member_count), s.version or "OFFLINE"),
            *filter(None, (s.consume_type, s.message_model)),
            str(s.lag),
        ]
        for name, s in states.items()
        if name in _STAGED
    } == wanted


_STAGED = {"buyers", "laggards", "failing"}


def test_members_are_those_of_consumer_connection(each_stage: Stage, admin: Admin) -> None:
    lines = each_stage.mqadmin("consumerConnection", "-g", "buyers")
    found = admin.list_members("buyers")
    members = [f"{m.client_id} {m.address} {m.language} {m.version}" for m in found.members]
    subscribed = [f"{s.topic} {s.expression}" for s in found.subscriptions]
    assert lines[1:2] == members
    assert sorted(lines[4:6]) == subscribed
    assert lines[6:] == [
        f"ConsumeType: {found.consume_type}",
        f"MessageModel: {found.message_model}",
        f"ConsumeFromWhere: {found.consume_from}",
    ]
    assert each_stage.mqadmin.refusal("consumerConnection", "-g", "laggards").startswith("206 ")
    assert admin.list_members("laggards").members == ()


def test_members_that_disagree_are_marked(each_stage: Stage, admin: Admin) -> None:
    """At once, by what each says; mqadmin compares members alone that started two minutes ago."""
    each_stage.create("Disputed", 1)
    with ExitStack() as stack:
        for number, tags in enumerate(("*", "*", "A")):
            wanted = [{"topic": "Disputed", "tags": tags}]
            options = {"subscriptions": wanted, "instance": f"{number}{tags}"}
            stack.enter_context(each_stage.java.started("push", namesrv=each_stage.namesrv, group="quarrel", **options))
        until(lambda: len(admin.list_members("quarrel").members) == 3)
        found = admin.list_members("quarrel")
        assert {m.client_id[-2:]: m.agrees for m in found.members} == {"0*": True, "1*": True, "2A": False}
        for member in found.members:
            lines = each_stage.mqadmin("consumerStatus", "-g", "quarrel", "-i", member.client_id)
            for number, told in enumerate(member.subscriptions or (), 1):
                assert f"{number:03} Topic: {told.topic} ClassFilter: false SubExpression: {told.expression}" in lines


def test_producers_are_those_of_mqadmin(each_stage: Stage, admin: Admin) -> None:
    line = each_stage.mqadmin("producerConnection", "-g", "shop", "-t", "Orders")[0]
    (client,) = admin.list_clients(groups=["shop"], role="producer")
    assert line == f"0001 {client.client_id} {client.address} {client.language} {client.version}"
    told = each_stage.mqadmin("producer", "-b", each_stage.broker)
    pattern = re.compile(r"producer group \((.*?)\) instance : clientId=(.*?),remoteIP=/(.*?), language=(\w+)")
    shown = sorted(found.groups() for line in told if (found := pattern.match(line)))
    ours = [c for c in admin.list_clients(role="producer") if c.language != "PYTHON"]
    assert sorted((c.group, c.client_id, c.address, c.language) for c in ours) == shown


def test_a_client_tells_what_consumer_status_shows(each_stage: Stage, admin: Admin) -> None:
    client = each_stage.client_id("buyers")
    lines = each_stage.mqadmin("consumerStatus", "-g", "buyers", "-i", client, "-s")
    (told,) = admin.show_client(client, group="buyers", stacks=True).consumers

    def part(begin: str, end: str) -> list[str]:
        return lines[lines.index(begin) + 2 : lines.index(end)]

    offsets = [f"{q.queue.topic} {q.queue.broker_name} {q.queue.queue_id} {q.commit_offset}" for q in told.queues]
    assert sorted(part("#Consumer Offset#", "#Consumer MQ Detail#")) == offsets
    settings = table(lines[lines.index("#Consumer Properties#") + 1 : lines.index("#Consumer Subscription#")])
    same = {"PROP_CLIENT_VERSION", "PROP_CONSUME_TYPE", "consumerGroup", "PROP_CONSUMER_START_TIMESTAMP"}
    assert {name: told.properties[name] for name in same} == {name: settings[name] for name in same}
    shown = [line.split()[2::4] for line in lines if "SubExpression:" in line]
    assert [[s.topic, s.expression] for s in told.subscriptions] == shown
    assert {t.topic for t in told.topics} == {"Orders", "%RETRY%buyers"}
    assert "java.lang.Thread" in (told.stacks or "")
    assert any("Consumer jstack" in line for line in lines)


def test_a_reset_is_that_of_reset_offset_by_time(each_stage: Stage, admin: Admin) -> None:
    stage = each_stage
    stage.create("Twice", 2)
    stage.send("Twice", 0, 3)
    between_ms = int(time.time() * 1000) + 1
    until(lambda: time.time() * 1000 > between_ms + 1)
    stage.send("Twice", 0, 2)
    stage.send("Twice", 1, 4)
    for group in ("by-mqadmin", "by-us"):
        stage.consume(group, "Twice", 9)

    def offsets(group: str) -> list[int | None]:
        return [committed_offset(stage.broker, group, "Twice", queue_id) for queue_id in range(2)]

    assert offsets("by-mqadmin") == offsets("by-us") == [5, 4]
    between = datetime.fromtimestamp(between_ms / 1000)
    wanted: list[tuple[str, datetime | str, list[int]]] = [
        (str(between_ms), between, [3, 0]),
        ("0", "earliest", [0, 0]),
        ("-1", "latest", [5, 4]),
    ]
    for theirs, to, offsets_then in wanted:
        stage.mqadmin("resetOffsetByTime", "-g", "by-mqadmin", "-t", "Twice", "-s", theirs)
        planned = admin.reset_offsets("by-us", "Twice", to, dry_run=True)  # type: ignore[arg-type]
        assert admin.reset_offsets("by-us", "Twice", to) == planned  # type: ignore[arg-type]
        assert [c.after for c in planned] == offsets_then
        assert offsets("by-mqadmin") == offsets("by-us") == offsets_then
    arguments = ("-s", "-1", "-q", "0", "-o", "1", "-b", stage.broker)
    stage.mqadmin("resetOffsetByTime", "-g", "by-mqadmin", "-t", "Twice", *arguments)
    (change,) = admin.reset_offsets("by-us", "Twice", 1, queue_ids=[0])
    assert (change.before, change.after, change.read_again) == (5, 1, 4)
    assert offsets("by-mqadmin") == offsets("by-us") == [1, 4]


def test_a_live_group_goes_on_where_it_is_reset_to(each_stage: Stage, admin: Admin) -> None:
    each_stage.create("Anew", 1)
    each_stage.send("Anew", 0, 4)
    with each_stage.pusher("restarters", "Anew") as consumer:
        java = each_stage.java
        assert len(java.call("push_await", name=consumer, count=4, timeout_ms=LIMIT_MS)) == 4
        admin.reset_offsets("restarters", "Anew", 1)
        received = java.call("push_await", name=consumer, count=7, timeout_ms=LIMIT_MS)
    assert sorted(m["queue_offset"] for m in received) == [0, 1, 1, 2, 2, 3, 3]


def test_offsets_are_put_back_and_groups_deleted(each_stage: Stage, admin: Admin) -> None:
    stage = each_stage
    saved = [o for o in admin.export_offsets(["laggards"]) if o.topic == "Bills"]
    assert (
        [o.offset for o in saved] == [committed_offset(stage.broker, "laggards", "Bills", n) for n in (0, 1)] == [2, 2]
    )
    renamed = [type(o)("put-back", o.topic, o.broker_name, o.queue_id, o.offset) for o in saved]
    assert "put-back" not in admin.list_groups()
    changes = admin.import_offsets(renamed)
    assert [(c.before, c.after, c.max_offset) for c in changes] == [(None, 2, 6), (None, 2, 4)]
    assert [committed_offset(stage.broker, "put-back", "Bills", n) for n in (0, 1)] == [2, 2]
    assert table(stage.mqadmin("getConsumerConfig", "-g", "put-back"))["groupName"] == "put-back"
    assert admin.delete_group("put-back", offsets=True, topics=True) == ["broker-a"]
    assert committed_offset(stage.broker, "put-back", "Bills", 0) is None
    assert "put-back" not in admin.list_groups()
