"""Consumers of the gRPC protocol as operators see them at the brokers, and what operators ask of them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.java.apache import ask
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RunningProxy, running_proxy
from tests.unit.proxy.consuming.support import PUSH, SIMPLE, SQL, Consumer, make_group, make_topic

from rocketspark import Producer
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.proxy.consuming import group_members
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.testing.cluster import Cluster, run_cluster
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows(
    "consumers of the proxy at the brokers: connections, subscriptions, running info, stacks, one message by "
    "hand; a broker that starts again"
)

TOPIC = "members"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running:
        for broker in running.brokers:
            make_topic(broker, TOPIC)
        yield running


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv, relay_timeout_ms=500) as running:
        yield running


def connections(broker: str, group: str) -> dict[str, Any]:
    """Return what a broker says of a group's members; {} if it has none."""
    answer = ask(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext_fields={"consumerGroup": group})
    assert answer.code in (0, ResponseCode.CONSUMER_NOT_ONLINE), answer
    return json.loads(answer.body) if answer.code == 0 else {}


def ids(broker: str, group: str) -> list[str]:
    return sorted(each["clientId"] for each in connections(broker, group).get("connectionSet", ()))


def until(look: Callable[[], Any], wanted: Any) -> None:
    end_s = time.monotonic() + LIMIT_S
    while (found := look()) != wanted:
        assert time.monotonic() < end_s, f"{found}, not {wanted}"
        time.sleep(0.01)


def asked(broker: str, code: int, consumer: Consumer, **fields: str) -> Any:
    names = {"consumerGroup": consumer.group, "clientId": consumer.raw.metadata["x-mq-client-id"]}
    return ask(broker, code, ext_fields=names | fields)


def answering(consumer: Consumer, answer: Callable[[Any], Any]) -> list[Any]:
    """Answer the proxy's next command in another thread; returns the list that it comes into."""
    heard: list[Any] = []

    def listen() -> None:
        with suppress(grpc.RpcError):
            command = next(consumer.stream)
            heard.append(command)
            consumer._commands.put(answer(command))

    threading.Thread(target=listen, daemon=True).start()
    return heard


def test_members_are_seen_at_every_broker_of_their_topics_until_they_go(cluster: Cluster, proxy: RunningProxy) -> None:
    make_topic(cluster.brokers[0], "members-of-one", queues=1)
    push = Consumer(proxy.address, "seen", TOPIC, PUSH, "push-1")
    other = Consumer(proxy.address, "seen", TOPIC, PUSH, "push-2")
    alone = Consumer(proxy.address, "seen-simple", "members-of-one", SIMPLE, "simple-1")
    for broker in cluster.brokers:
        until(lambda broker=broker: ids(broker, "seen"), ["push-1", "push-2"])
    until(lambda: ids(cluster.brokers[0], "seen-simple"), ["simple-1"])
    assert ids(cluster.brokers[1], "seen-simple") == []
    found = connections(cluster.brokers[0], "seen")
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert {each["language"] for each in found["connectionSet"]} == {"PYTHON"}
    table = {topic: row["subString"] for topic, row in found["subscriptionTable"].items()}
    assert table == {TOPIC: "*", f"%RETRY%seen_{TOPIC}": "*"}
    assert connections(cluster.brokers[0], "seen-simple")["consumeType"] == "CONSUME_ACTIVELY"
    push.terminate()
    until(lambda: [ids(broker, "seen") for broker in cluster.brokers], [["push-2"]] * 2)
    other.vanish()
    until(lambda: [ids(broker, "seen") for broker in cluster.brokers], [[], []])
    # Connections on which nobody is known are closed.
    alone.terminate()
    until(lambda: proxy.server.consuming.members._lanes, [])
    assert proxy.server.consuming.members._members == {}


def test_changed_settings_are_told_and_those_that_can_be_none_are_left_out(
    cluster: Cluster, proxy: RunningProxy
) -> None:
    consumer = Consumer(proxy.address, "changing", TOPIC, SIMPLE, "changing-1")
    broker = cluster.brokers[0]
    until(lambda: ids(broker, "changing"), ["changing-1"])
    command = consumer._settings()
    entries = command.settings.subscription.subscriptions
    entries[0].expression.type, entries[0].expression.expression = SQL, "a > 1"
    for name in ("a b", "", "TBW102", "not-there"):
        entries.add(topic={"name": name})
    consumer._commands.put(command)

    def expressions() -> dict[str, str]:
        return {t: r["subString"] for t, r in connections(broker, "changing").get("subscriptionTable", {}).items()}

    wanted = {TOPIC: "a > 1", f"%RETRY%changing_{TOPIC}": "*", "not-there": "*", "%RETRY%changing_not-there": "*"}
    until(expressions, wanted)
    # The same client in another group: it leaves the first.
    command.settings.subscription.group.name = "changed"
    consumer._commands.put(command)
    until(lambda: (ids(broker, "changing"), ids(broker, "changed")), ([], ["changing-1"]))
    consumer.terminate()
    until(lambda: ids(broker, "changed"), [])


def test_of_a_large_group_some_are_told_of_and_all_receive(
    cluster: Cluster, proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: proxy.server.consuming.members._lanes, [])
    monkeypatch.setattr(group_members, "LANES_MAX", 2)
    make_topic(cluster.brokers[0], "large", queues=1)
    consumers = [Consumer(proxy.address, "large", "large", SIMPLE, f"large-{n}") for n in range(4)]
    until(lambda: ids(cluster.brokers[0], "large"), ["large-0", "large-1"])
    with Producer(cluster.namesrv) as producer:
        producer.send("large", b"for all")
    assert [m.body for m in consumers[3].receive_all(1)] == [b"for all"]
    for consumer in consumers:
        consumer.terminate()
    until(lambda: ids(cluster.brokers[0], "large"), [])


def test_running_info_with_the_stacks_that_a_client_tells(cluster: Cluster, proxy: RunningProxy) -> None:
    consumer = Consumer(proxy.address, "told", TOPIC, PUSH, "told-1")
    broker = cluster.brokers[0]
    until(lambda: ids(broker, "told"), ["told-1"])
    answer = asked(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer, jstackEnable="false")
    info = json.loads(answer.body)
    assert "jstack" not in info
    assert {row["topic"]: row["subString"] for row in info["subscriptionSet"]} == {
        TOPIC: "*",
        f"%RETRY%told_{TOPIC}": "*",
    }
    told = info["properties"]
    assert (told["PROP_CONSUME_TYPE"], told["PROP_CONSUMEORDERLY"]) == ("CONSUME_PASSIVELY", "false")
    assert abs(int(told["PROP_CONSUMER_START_TIMESTAMP"]) - time.time() * 1000) < LIMIT_S * 1000
    assert told["clientAddress"].startswith("127.0.0.1:")

    def stacks(command: Any) -> Any:
        nonce = command.print_thread_stack_trace_command.nonce
        return messages.TelemetryCommand(
            status={"code": int(Code.OK)}, thread_stack_trace={"nonce": nonce, "thread_stack_trace": 'main\n at "x"'}
        )

    heard = answering(consumer, stacks)
    answer = asked(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer, jstackEnable="true")
    assert json.loads(answer.body)["jstack"] == 'main\n at "x"'
    assert len(heard) == 1
    # One that does not know the command says nothing.
    answer = asked(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer, jstackEnable="true")
    assert json.loads(answer.body)["jstack"] == "client told-1 did not answer within 0.5 s: not every client can"
    consumer.terminate()
    until(lambda: ids(broker, "told"), [])
    answer = asked(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_running_info_counts_what_a_push_consumer_has(cluster: Cluster, proxy: RunningProxy) -> None:
    make_topic(cluster.brokers[0], "held", queues=1)
    consumer = Consumer(proxy.address, "holding", "held", PUSH, "holding-1")
    with Producer(cluster.namesrv) as producer:
        for body in (b"1", b"2"):
            producer.send("held", body)
    consumer.receive_all(2, auto_renew=True)
    until(lambda: ids(cluster.brokers[0], "holding"), ["holding-1"])
    answer = asked(cluster.brokers[0], RequestCode.GET_CONSUMER_RUNNING_INFO, consumer)
    key = b'"mqPopTable":{{"brokerName":"broker-a","queueId":0,"topic":"held"}:{"droped":false,"lastPopTimestamp":'
    assert key in answer.body
    assert b'"waitAckCount":2}}' in answer.body
    consumer.terminate()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ({"code": int(Code.OK)}, "CR_SUCCESS"),
        ({"code": int(Code.FAILED_TO_CONSUME_MESSAGE)}, "CR_LATER"),
        ({"code": int(Code.MESSAGE_CORRUPTED)}, "CR_RETURN_NULL"),
        ({"code": int(Code.NOT_IMPLEMENTED), "message": "no\nsuch"}, None),
        (None, None),
    ],
)
def test_a_message_consumed_by_hand(cluster: Cluster, proxy: RunningProxy, status: Any, outcome: str | None) -> None:
    broker = cluster.brokers[0]
    consumer = Consumer(proxy.address, "by-hand", TOPIC, PUSH, "by-hand-1")
    with Producer(cluster.namesrv) as producer:
        place = next(
            sent.offset_message_id
            for _ in range(8)
            if (sent := producer.send(TOPIC, b"look", tag="t", properties={"a": "b"})).queue.broker_name == "broker-a"
        )
    until(lambda: ids(broker, "by-hand"), ["by-hand-1"])

    def verified(command: Any) -> Any:
        if status is None:
            return messages.TelemetryCommand()
        nonce = command.verify_message_command.nonce
        return messages.TelemetryCommand(status=status, verify_message_result={"nonce": nonce})

    heard = answering(consumer, verified)
    answer = asked(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, consumer, msgId=place, brokerName="broker-a")
    shown = heard[0].verify_message_command.message
    assert (shown.body, shown.topic.name, dict(shown.user_properties)) == (b"look", TOPIC, {"a": "b"})
    if outcome is None:
        assert answer.code == (ResponseCode.SYSTEM_BUSY if status is None else ResponseCode.SYSTEM_ERROR)
        assert not answer.body
    else:
        told = json.loads(answer.body)
        assert (told["consumeResult"], told["order"], told["remark"]) == (outcome, False, "from gRPC client")
    consumer.terminate()
    until(lambda: ids(broker, "by-hand"), [])


def test_answers_that_are_late_repeated_or_of_another_kind_are_nobody_s(cluster: Cluster, proxy: RunningProxy) -> None:
    consumer = Consumer(proxy.address, "odd", TOPIC, PUSH, "odd-1")
    broker = cluster.brokers[0]
    until(lambda: ids(broker, "odd"), ["odd-1"])
    silence = "client odd-1 did not answer within 0.5 s: not every client can"

    def stacks(text: str, nonce: str, **more: Any) -> Any:
        return messages.TelemetryCommand(thread_stack_trace={"nonce": nonce, "thread_stack_trace": text}, **more)

    def told(*answers: Callable[[str], Any]) -> tuple[str, str]:
        """Return the stacks that the broker tells, and the nonce that the client was asked with."""
        heard: list[str] = []

        def all_of_them(command: Any) -> Any:
            heard.append(command.print_thread_stack_trace_command.nonce)
            for answer in answers[:-1]:
                consumer._commands.put(answer(heard[0]))
            return answers[-1](heard[0])

        answering(consumer, all_of_them)
        answer = asked(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer, jstackEnable="true")
        return json.loads(answer.body)["jstack"], heard[0]

    late, nonce = told(lambda nonce: messages.TelemetryCommand())
    assert late == silence
    # The answer to the question before comes now, then those of this one: the first counts.
    twice = told(
        lambda _: stacks("late", nonce),
        lambda nonce: messages.TelemetryCommand(status={"code": 1}, verify_message_result={"nonce": nonce}),
        lambda nonce: stacks("", "no such \x00 nonce"),
        lambda nonce: stacks("first", nonce),
        lambda nonce: stacks("second", nonce),
    )
    assert twice[0] == "first"
    of_another_kind = told(
        lambda nonce: messages.TelemetryCommand(status={"code": int(Code.OK)}, verify_message_result={"nonce": nonce})
    )
    assert of_another_kind[0] == silence
    refused = told(lambda nonce: stacks("none", nonce, status={"code": 987654, "message": "a\nb" * 5000}))
    assert refused[0].startswith("client odd-1 tells no stacks: 987654 ")
    assert len(refused[0]) < 1000
    assert "\n" not in refused[0]
    assert told(lambda nonce: stacks("still there", nonce))[0] == "still there"
    consumer.terminate()
    until(lambda: ids(broker, "odd"), [])


def test_a_broker_that_starts_again_is_told_again(tmp_path: Any) -> None:
    with run_server_process(tmp_path) as server, running_proxy(server.namesrv, heartbeat_interval_ms=200) as proxy:
        make_topic(server.broker, TOPIC)
        make_group(server.broker, "again", consume_message_orderly=True)
        consumer = Consumer(proxy.address, "again", TOPIC, PUSH, "again-1")
        until(lambda: ids(server.broker, "again"), ["again-1"])
        server.kill()
        server.restart()
        until(lambda: ids(server.broker, "again"), ["again-1"])
        answer = asked(server.broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumer)
        assert json.loads(answer.body)["properties"]["PROP_CONSUMEORDERLY"] == "true"
        consumer.terminate()


def test_a_large_group_keeps_no_group_of_another_language_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "LANES_MAX", 3)
    languages: list[str] = []

    async def main() -> None:
        unused: Any = None
        members = group_members.GroupMembers(unused, unused, languages.append, 1)  # type: ignore[arg-type]

        def come(name: str, group: str, language: str) -> None:
            client: Any = SimpleNamespace(
                identity=name, client_id=name, group=group, is_consumer=True, language=language
            )
            members.changed(client)

        for number in range(4):
            come(f"p{number}", "large", "PYTHON")
        come("j0", "small", "JAVA")
        come("j1", "large", "JAVA")
        come("p4", "small", "PYTHON")
        assert list(members._members) == ["p0", "p1", "p2", "j0", "p4"]
        assert languages == ["PYTHON"] * 3 + ["JAVA"]

    asyncio.run(main())


def test_connections_to_brokers_are_bounded_in_all_whatever_languages_clients_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_members, "LANES_MAX", 2)
    monkeypatch.setattr(group_members, "LANES_IN_ALL_MAX", 3)
    languages: list[str] = []

    async def main() -> None:
        unused: Any = None
        members = group_members.GroupMembers(unused, unused, languages.append, 1)  # type: ignore[arg-type]
        for language in ("PYTHON", "JAVA", "GO", "RUST"):
            for number in range(3):
                name = f"{language} {number}"
                client: Any = SimpleNamespace(
                    identity=name, client_id=name, group=language, is_consumer=True, language=language
                )
                members.changed(client)
        # All the same two of each group are told of, each on a connection where nobody else of it is.
        assert [name[-1] for name in members._members] == ["0", "1"] * 4
        assert sum(len(lane.groups) for lane in members._lanes) == 8
        assert languages == ["PYTHON", "PYTHON", "JAVA"]

    asyncio.run(main())


def test_who_changes_its_settings_stays_the_member_it_is() -> None:
    def client(group: str) -> Any:
        return SimpleNamespace(identity="/1", group=group, is_consumer=True, language="X")

    async def main() -> None:
        unused: Any = None
        connections: Any = SimpleNamespace(close=lambda: asyncio.sleep(0))
        members = group_members.GroupMembers(unused, unused, lambda language: connections, 1)
        found = []
        one = client("g")
        for told in (one, one, client("g"), client("g")):
            members.changed(told)
            found.append(members._members["/1"])
        told.group = "h"
        members.changed(told)
        found.append(members._members["/1"])
        assert [found.index(member) for member in found] == [0, 0, 2, 3, 4]
        await asyncio.gather(*members._leaving)

    asyncio.run(main())


class Heard:
    """What the brokers of one topic hear of a proxy's consumers, without brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.said: list[str] = []
        master = SimpleNamespace(master="b:1", broker_name="b")
        route = SimpleNamespace(brokers=[master])
        brokers: Any = SimpleNamespace(route=self._answer(route), master=self._answer("b:1"))
        connections: Any = SimpleNamespace(
            get=self._answer(None), open_peer=lambda address: None, close=self._answer(0)
        )
        clients: Any = SimpleNamespace()
        self.members = group_members.GroupMembers(brokers, clients, lambda language: connections, 3600)
        monkeypatch.setattr(group_members, "machine", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(group_members.client_api, "heartbeat", self._heartbeat)

    @staticmethod
    def _answer(value: Any) -> Callable[..., Any]:
        async def answer(*given: Any) -> Any:
            return value

        return answer

    async def _heartbeat(self, peer: Any, beat: Any) -> None:
        (data,) = beat.consumer_data_set
        filters = [row.sub_string for row in data.subscription_data_set if not row.topic.startswith("%RETRY%")]
        self.said.append(f"{beat.client_id} {data.group_name} {filters[0]}")

    async def change(self, name: str, group: str, expression: str) -> None:
        """Have a client change its settings, and give brokers the time to hear of it."""
        settings = messages.Settings(client_type=SIMPLE)
        settings.subscription.subscriptions.add(topic={"name": "t"}, expression={"type": 1, "expression": expression})
        client: Any = SimpleNamespace(
            identity=name, client_id=name, group=group, is_consumer=True, is_lite_consumer=False, language="X"
        )
        client.settings, client.is_push_consumer, client.told_ms = settings, False, 1
        self.members.changed(client)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.parametrize("groups", [["g"], ["g", "h"]])
def test_brokers_are_told_once_a_second_of_who_changes_settings_all_the_time(
    groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        heard = Heard(monkeypatch)
        heard.members.begin()
        for number in range(101):
            await heard.change("one", groups[number % len(groups)], f"tag{number}")
        # Others are told of meanwhile.
        await heard.change("other", "g", "tag")
        assert heard.said == ["one g tag0", "other g tag"]
        heard.now_s += group_members.APART_S
        # Nothing of it is lost.
        await heard.change("third", "g", "tag")
        assert sorted(heard.said[2:]) == ["one g tag100", "third g tag"]
        # Without a further change, too.
        monkeypatch.setattr(group_members, "APART_S", 0.0)
        await heard.change("one", "g", "last")
        assert heard.said[4:] == ["one g last"]
        await heard.members.close()

    asyncio.run(main())
