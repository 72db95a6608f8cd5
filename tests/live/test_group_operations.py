"""An operator's operations on groups, clients and offsets, from Python, with live producers and consumers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from tests.support.patience import LIMIT_S
from tests.support.raw_frames import read_frame, write_frame

from rocketspark import Message, Producer, PushConsumer
from rocketspark.admin import Admin
from rocketspark.admin.clients import Subscribed
from rocketspark.admin.offsets import OffsetChange, StoredOffset
from rocketspark.admin.progress import GroupState
from rocketspark.client.connection import group_api
from rocketspark.console.cluster.pace import Pace, PacedAdmin
from rocketspark.errors import ServerError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing.cluster import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "groups, clients and offsets for operators: operations, commands, as `mqadmin` shows them"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.namesrv, "shop") as producer:
        yield producer


class Listener:
    """Counts messages; `seen(n)` waits for the nth."""

    def __init__(self) -> None:
        self.count = 0
        self._more = threading.Condition()

    def __call__(self, message: Any) -> None:
        with self._more:
            self.count += 1
            self._more.notify_all()

    def seen(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self.count >= count, LIMIT_S)


def queue(topic: str, broker: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, f"broker-{broker}", queue_id)


def filled(admin: Admin, producer: Producer, topic: str, counts: dict[tuple[str, int], int]) -> None:
    """Make a topic of 2 queues on 2 brokers with so many messages in each."""
    admin.create_topic(topic, queue_count=2)
    for (broker, queue_id), count in counts.items():
        for n in range(count):
            producer.send(Message(topic, b"%d" % n), queue=queue(topic, broker, queue_id))


def consuming(cluster: Cluster, group: str, topic: str, listener: Listener, tags: str = "*") -> PushConsumer:
    consumer = PushConsumer(cluster.namesrv, group, consume_from="first")
    consumer.subscribe(topic, tags)
    consumer.listen(listener)
    return consumer


def consumed(cluster: Cluster, group: str, topic: str, count: int) -> None:
    """Have a group consume so many messages, and leave."""
    listener = Listener()
    with consuming(cluster, group, topic, listener):
        listener.seen(count)


def test_groups_and_their_lag(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "lagging", {("a", 0): 2, ("a", 1): 1, ("b", 0): 1})
    consumed(cluster, "laggards", "lagging", 4)
    for _ in range(3):
        producer.send(Message("lagging", b"late"), queue=queue("lagging", "b", 1))
    assert "laggards" in admin.list_groups()
    assert admin.list_groups("lagging") == ["laggards"]
    assert "TOOLS_CONSUMER" not in admin.list_groups()
    assert "TOOLS_CONSUMER" in admin.list_groups(system=True)
    (state,) = admin.list_group_states(["laggards"])
    assert (state.group, state.online, state.version, state.lag, state.in_flight) == ("laggards", False, "", 3, 0)
    found = admin.group_lag("laggards")
    assert (found.lag, found.in_flight) == (3, 0)
    rows = {(q.queue.broker_name[-1], q.queue.queue_id): q for q in found.queues if q.queue.topic == "lagging"}
    assert {at: (q.broker_offset, q.consumer_offset, q.lag) for at, q in rows.items()} == {
        ("a", 0): (2, 2, 0),
        ("a", 1): (1, 1, 0),
        ("b", 0): (1, 1, 0),
        ("b", 1): (3, 0, 3),
    }
    assert {q.delay_ms for at, q in rows.items() if at != ("b", 1)} == {0}
    assert found.delay_ms == max(q.delay_ms or 0 for q in found.queues)
    assert all(q.client_id is None for q in found.queues)
    assert {q.queue.topic for q in admin.group_lag("laggards", "lagging").queues} == {"lagging"}
    assert admin.group_lag("nobody").queues == ()


@pytest.mark.shows("groups' members and lag of many groups in one request to each of our brokers")
def test_many_groups_are_one_request_to_a_broker_and_two_for_each_to_rocketmqs(
    cluster: Cluster, admin: Admin, producer: Producer
) -> None:
    filled(admin, producer, "several", {("a", 0): 2, ("b", 1): 3})
    for n in range(3):
        admin.put_group(f"several-{n}")
        admin.reset_offsets(f"several-{n}", "several", "earliest" if n else "latest")
    names = ["several-0", "several-1", "several-2", "several-live", "several-nobody"]

    async def asked(groups: list[str], *, one_by_one: bool = False) -> tuple[list[GroupState], int]:
        pace = Pace(1_000_000)
        async with PacedAdmin(cluster.namesrv, pace) as paced:
            if one_by_one:
                paced._tells_one_by_one.update(cluster.brokers)
            return await paced.list_group_states(groups), pace.sent

    listener = Listener()
    with consuming(cluster, "several-live", "several", listener):
        listener.seen(5)
        states, sent = asyncio.run(asked(names))
        one_by_one, sent_one_by_one = asyncio.run(asked(names, one_by_one=True))
    assert states == one_by_one
    assert [(s.group, s.member_count, s.lag) for s in states] == [
        *(("several-0", 0, 0), ("several-1", 0, 5), ("several-2", 0, 5)),
        *(("several-live", 1, states[3].lag), ("several-nobody", 0, 0)),
    ]
    assert (sent, sent_one_by_one) == (2, 2 * 2 * 5)
    # Of more than a hundred the rest comes in one more; each broker of RocketMQ's is asked in vain once.
    assert asyncio.run(asked([f"g{n}" for n in range(101)]))[1] == 4


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is no GroupNames: Input data was truncated"),
        (b'{"groups":[1]}', "the body is no GroupNames: Expected `str`, got `int`"),
        (b'{"groups":' + json.dumps(["g"] * 101).encode() + b"}", "101 groups are asked for: at most 100 at a time"),
    ],
)
def test_what_is_no_list_of_groups_is_refused(cluster: Cluster, body: bytes, says: str) -> None:
    host, port = cluster.brokers[0].split(":")
    with socket.create_connection((host, int(port))) as link:
        write_frame(link, {"code": int(RequestCode.GET_GROUP_STATES), "opaque": 1}, body)
        answer, _ = read_frame(link)
    assert answer["code"] in (1, 29)
    assert says in answer["remark"]


def test_a_broker_that_does_not_know_the_request_is_asked_so_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Codes:
        # No code of anybody's.
        GET_GROUP_STATES = 1 << 20

        def __getattr__(self, name: str) -> RequestCode:
            return RequestCode[name]

    monkeypatch.setattr(group_api, "RequestCode", Codes())

    async def main() -> list[int]:
        pace = Pace(1_000_000)
        async with PacedAdmin(cluster.namesrv, pace) as paced:
            sent = []
            for _ in range(2):
                assert [s.group for s in await paced.list_group_states(["x", "y"])] == ["x", "y"]
                sent.append(pace.sent)
        return sent

    assert asyncio.run(main()) == [2 + 8, 2 + 16]


def test_members_and_clients(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "watched", {("a", 0): 1, ("b", 1): 1})
    listener = Listener()
    with consuming(cluster, "watchers", "watched", listener) as consumer:
        listener.seen(2)
        found = admin.list_members("watchers")
        assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        subscribed = (Subscribed("%RETRY%watchers", "*"), Subscribed("watched", "*"))
        assert found.subscriptions == subscribed
        (member,) = found.members
        assert (member.client_id, member.language, member.version) == (consumer.client_id, "PYTHON", "V5_5_0")
        assert (member.brokers, member.subscriptions, member.agrees) == (("broker-a", "broker-b"), subscribed, True)
        assert admin.list_members("watchers", subscriptions=False).members[0].subscriptions is None
        (state,) = admin.list_group_states(["watchers"])
        assert (state.member_count, state.version, state.consume_type) == (1, "V5_5_0", "PUSH")
        (client,) = admin.list_clients(groups=["watchers"])
        assert (client.client_id, client.role, client.address) == (consumer.client_id, "consumer", member.address)
        assert [c.group for c in admin.list_clients(role="producer") if c.client_id == producer.client_id] == [
            "CLIENT_INNER_PRODUCER",
            "shop",
        ]
        details = admin.show_client(consumer.client_id, stacks=True)
        (told,) = details.consumers
        assert (told.group, told.subscriptions, details.silent) == ("watchers", subscribed, {})
        assert told.properties["consumerGroup"] == "watchers"
        assert {q.queue for q in told.queues if q.queue.topic == "watched"} == {
            queue("watched", broker, n) for broker in "ab" for n in (0, 1)
        }
        assert "MainThread" in (told.stacks or "")
        assert admin.show_client(consumer.client_id, group="watchers").consumers[0].stacks is None
        rows = admin.group_lag("watchers", "watched").queues
        assert {q.client_id for q in rows} == {consumer.client_id}
    assert admin.list_members("watchers").members == ()
    with pytest.raises(UsageError, match="no client 'nobody' is connected"):
        admin.show_client("nobody")
    with pytest.raises(UsageError, match="role 'both' is not one of consumer, producer"):
        admin.list_clients(role="both")


def test_members_that_disagree_are_marked(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "disputed", {})
    filters = ["*", "*", "red"]
    consumers = [consuming(cluster, "quarrel", "disputed", Listener(), tags) for tags in filters]
    with consumers[0], consumers[1], consumers[2]:
        found = admin.list_members("quarrel")
        agreeing = {m.client_id: m.agrees for m in found.members}
        assert agreeing == {c.client_id: tags == "*" for c, tags in zip(consumers, filters, strict=True)}
        assert not found.consistent


def test_offsets_are_reset_offline(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "rewound", {("a", 0): 3, ("b", 1): 2})
    consumed(cluster, "rewinders", "rewound", 5)

    def offsets() -> list[int]:
        return [o.offset for o in admin.export_offsets(["rewinders"]) if o.topic == "rewound"]

    changes = admin.reset_offsets("rewinders", "rewound", "earliest", dry_run=True)
    assert [(c.queue, c.before, c.after, c.read_again, c.passed_over) for c in changes] == [
        (queue("rewound", "a", 0), 3, 0, 3, 0),
        (queue("rewound", "a", 1), 0, 0, 0, 0),
        (queue("rewound", "b", 0), 0, 0, 0, 0),
        (queue("rewound", "b", 1), 2, 0, 2, 0),
    ]
    assert offsets() == [3, 0, 0, 2]
    assert admin.reset_offsets("rewinders", "rewound", "earliest") == changes
    assert offsets() == [0, 0, 0, 0]
    (one,) = admin.reset_offsets("rewinders", "rewound", 2, queue_ids=[0], brokers=["broker-a"])
    assert (one.before, one.after, one.passed_over, one.read_again) == (0, 2, 2, 0)
    assert offsets() == [2, 0, 0, 0]
    ahead = datetime.now(timezone(timedelta(hours=9))) + timedelta(days=1)
    assert [c.after for c in admin.reset_offsets("rewinders", "rewound", ahead)] == [3, 0, 0, 2]
    assert offsets() == [3, 0, 0, 2]
    admin.reset_offsets("rewinders", "rewound", datetime(2001, 1, 1))
    assert offsets() == [0, 0, 0, 0]
    # A ms before 1970, which brokers take for the end.
    (before, *_) = admin.reset_offsets("rewinders", "rewound", datetime.fromtimestamp(-0.001, UTC))
    assert (before.after, offsets()) == (0, [0, 0, 0, 0])
    admin.reset_offsets("rewinders", "rewound", "latest")
    assert offsets() == [3, 0, 0, 2]


def test_a_reset_that_cannot_be_changes_nothing(admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "told", {("a", 0): 1})
    admin.put_group("known")
    wrong: list[tuple[tuple[str, Any], dict[str, Any], str]] = [
        (("mistyped", "latest"), {}, "broker-a, broker-b do not know group 'mistyped'"),
        (("known", 2), {}, "offset 2 is not in queue 0 of topic 'told' on broker-a, which goes from 0 to 1; 3 more"),
        (("known", "soon"), {}, "'soon' is no place to go on at"),
        (("known", -1), {}, "-1 is no place to go on at"),
        (("known", "latest"), {"queue_ids": [7]}, "topic 'told' has no queue 7 on broker-a, broker-b"),
    ]
    for (group, to), more, text in wrong:
        with pytest.raises(UsageError, match=text):
            admin.reset_offsets(group, "told", to, **more)
    with pytest.raises(UsageError, match="no broker has offsets of group known"):
        admin.export_offsets(["known"])


def test_a_live_group_is_reset(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "again", {("a", 0): 2, ("b", 0): 1})
    listener = Listener()
    with consuming(cluster, "repeaters", "again", listener):
        listener.seen(3)
        admin.reset_offsets("repeaters", "again", "earliest")
        listener.seen(6)
        admin.reset_offsets("repeaters", "again", 1, queue_ids=[0], brokers=["broker-a"])
        listener.seen(7)


def test_brokers_that_have_members_reset() -> None:
    with run_cluster(reset_offsets_here=False) as other, Admin(other.namesrv) as there:
        there.create_topic("again", queue_count=1)
        with Producer(other.namesrv, "shop") as producer:
            for n in range(3):
                producer.send(Message("again", b"%d" % n))
        listener = Listener()
        with consuming(other, "repeaters", "again", listener):
            listener.seen(3)
            with pytest.raises(UsageError, match="stop the members of group 'repeaters' first"):
                there.reset_offsets("repeaters", "again", 1)
        for to, wanted in (("earliest", 0), (2, 2), ("latest", 3)):
            there.reset_offsets("repeaters", "again", to)
            assert [o.offset for o in there.export_offsets(["repeaters"]) if o.topic == "again"] == [wanted]


def test_offsets_are_exported_and_imported(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "saved", {("a", 0): 3, ("b", 1): 2})
    consumed(cluster, "savers", "saved", 5)
    saved = [o for o in admin.export_offsets(["savers"]) if o.topic == "saved"]
    assert StoredOffset("savers", "saved", "broker-a", 0, 3) in saved
    assert set(saved) <= set(admin.export_offsets())
    assert admin.delete_group("savers", offsets=True) == ["broker-a", "broker-b"]
    assert "savers" not in admin.list_groups()
    changes = admin.import_offsets(saved, dry_run=True)
    assert changes[0] == OffsetChange("savers", queue("saved", "a", 0), None, 3, 0, 3)
    assert "savers" not in admin.list_groups()
    assert admin.import_offsets(saved) == changes
    assert "savers" in admin.list_groups()
    assert [o for o in admin.export_offsets(["savers"]) if o.topic == "saved"] == saved
    beyond = msgspec.structs.replace(saved[0], offset=4)
    with pytest.raises(UsageError, match="offset 4 is not in queue 0 of topic 'saved' on broker-a"):
        admin.import_offsets([*saved[1:], beyond])
    with pytest.raises(UsageError, match="two offsets of group 'savers' in queue 0"):
        admin.import_offsets([*saved, beyond])
    with pytest.raises(UsageError, match="broker-a has no topic 'nowhere': create it first"):
        admin.import_offsets([*saved, msgspec.structs.replace(saved[0], topic="nowhere")])
    for wrong, text in (
        ({"queue_id": 2, "offset": 0}, "there is no queue 2 of topic 'saved' on broker-a"),
        ({"queue_id": -1, "offset": 0}, "there is no queue -1 of topic 'saved' on broker-a"),
        ({"offset": -1}, "offset -1 is not in queue 0 of topic 'saved' on broker-a"),
    ):
        with pytest.raises(UsageError, match=text):
            admin.import_offsets([msgspec.structs.replace(each, group="movers", **wrong) for each in saved[:1]])
    assert "movers" not in admin.list_groups()
    retries = msgspec.structs.replace(saved[0], topic="%RETRY%never", group="never")
    assert admin.import_offsets([retries]) == []
    assert admin.import_offsets([]) == []


def test_groups_are_deleted(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "left", {("a", 0): 1})
    listener = Listener()
    with consuming(cluster, "leavers", "left", listener) as consumer:
        listener.seen(1)
        with pytest.raises(UsageError, match=f"has 1 connected member, {consumer.client_id}: stop them first"):
            admin.delete_group("leavers")
    assert admin.delete_group("leavers", brokers=["broker-a"]) == ["broker-a"]
    assert admin.delete_group("leavers") == ["broker-b"]
    # Its offsets are kept for a group of this name.
    assert StoredOffset("leavers", "left", "broker-a", 0, 1) in admin.export_offsets(["leavers"])
    assert "%RETRY%leavers" in admin.list_topics()
    with pytest.raises(UsageError, match="no broker knows group 'leavers'"):
        admin.delete_group("leavers")
    assert admin.delete_group("leavers", offsets=True, topics=True) == []
    assert "%RETRY%leavers" not in admin.list_topics()
    with pytest.raises(UsageError, match="no broker has offsets of group leavers"):
        admin.export_offsets(["leavers"])


def test_a_group_that_pops(cluster: Cluster, admin: Admin, producer: Producer) -> None:
    filled(admin, producer, "popped", {("a", 0): 3})
    admin.put_group("poppers")
    admin.set_request_mode("popped", "poppers", "POP")
    assert {topic: m.mode for topic, m in admin.list_request_modes("poppers").items()} == {"popped": "POP"}
    began, go_on = threading.Semaphore(0), threading.Event()

    def listen(message: Any) -> None:
        began.release()
        go_on.wait(LIMIT_S)

    consumer = PushConsumer(cluster.namesrv, "poppers", consume_from="first", pop=True)
    consumer.subscribe("popped", "*")
    consumer.listen(listen)
    with ExitStack() as stack:
        stack.enter_context(consumer)
        # Also if the test fails: the consumer waits for its calls.
        stack.callback(go_on.set)
        for _ in range(3):
            assert began.acquire(timeout=LIMIT_S)
        (row,) = [q for q in admin.group_lag("poppers", "popped").queues if q.broker_offset]
        assert (row.lag, row.in_flight, row.client_id) == (3, 3, consumer.client_id)
        assert row.delay_ms is not None
        (told,) = admin.show_client(consumer.client_id, group="poppers").consumers
        assert {q.queue: q.unacknowledged for q in told.popped}[queue("popped", "a", -1)] == 3


def test_who_may_only_see_one_group_sees_it() -> None:
    with run_cluster(secure=True) as secure, Admin(secure.namesrv, **secure.client_options) as super_user:
        super_user.create_topic("orders", queue_count=1)
        super_user.put_group("billing")
        super_user.create_user("clerk", "a-secret-of-his")
        super_user.create_acl("clerk", ["Group:billing", "Topic:orders"], ["Get", "Sub", "Update"])
        keys = {"access_key": "clerk", "secret_key": "a-secret-of-his"}
        with Admin(secure.namesrv, **{**secure.client_options, **keys}) as admin:
            assert [s.group for s in admin.list_group_states(["billing"])] == ["billing"]
            with pytest.raises(ServerError, match="states of groups refused by broker-a: code 16"):
                admin.list_group_states(["billing", "payroll"])
            admin.check_known("billing")
            assert admin.list_members("billing").members == ()
            assert [c.after for c in admin.reset_offsets("billing", "orders", "latest")] == [0]
            assert [q.lag for q in admin.group_lag("billing").queues] == [0]
            with pytest.raises(ServerError, match="list of groups refused by broker-a: code 16"):
                admin.list_groups()


def test_a_group_of_a_name_that_nobody_may_make_is_shown_and_deleted(cluster: Cluster, admin: Admin) -> None:
    # As brokers made it once, and Java's tools still can.
    host, port = admin.cluster_info()[0].address.split(":")
    with socket.create_connection((host, int(port))) as link:
        write_frame(link, {"code": 200, "opaque": 1}, b'{"groupName":"DEFAULT_CONSUMER"}')
        assert read_frame(link)[0]["code"] == 0
    assert "DEFAULT_CONSUMER" in [s.group for s in admin.list_group_states()]
    assert admin.group_lag("DEFAULT_CONSUMER").lag == 0
    assert admin.delete_group("DEFAULT_CONSUMER") == ["broker-a"]


def test_a_topic_without_a_master_is_not_reset_in_part(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.create_topic("halved", queue_count=1)
    admin.put_group("halves")
    routes = admin._core._routes
    refresh = routes.refresh

    async def without_b(topic: str) -> Any:
        route = await refresh(topic)
        brokers = tuple(
            msgspec.structs.replace(b, addresses={1: "127.0.0.1:1"}) if b.broker_name == "broker-b" else b
            for b in route.brokers
        )
        return msgspec.structs.replace(route, brokers=brokers)

    monkeypatch.setattr(routes, "refresh", without_b)
    with pytest.raises(UsageError, match="broker-b has no master now"):
        admin.reset_offsets("halves", "halved", "latest")
    changes = admin.reset_offsets("halves", "halved", "latest", brokers=["broker-a"])
    assert [c.queue.broker_name for c in changes] == ["broker-a"]
