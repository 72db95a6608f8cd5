"""A proxy before a locked cluster: each call is from somebody, who may do what the cluster's rules let him."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.unit.proxy.consuming.test_receive import stored

from rocketspark import Producer, machine
from rocketspark.access.tables import User
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.client.connection.credentials import Signer
from rocketspark.errors import NotSent, RocketSparkError
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.proxy import guard
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.guard import UNREADABLE, Credentials, NotReadable, credentials_of
from rocketspark.proxy.producing.producer_groups import Orphans
from rocketspark.proxy.producing.transactions import TransactionData, monotonic_ms
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, ClientType, Code, FilterType
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.tls import client_tls

pytestmark = pytest.mark.shows(
    "access control 2.0: signature, users and rules of the cluster (fetched whole every 5 s), each call's "
    "resources, `40100`; a client id is its user's; made-up handles move no foreign message; refusals in the "
    "log"
)

DATE = "20261123T061500Z"
USERS = {"shop": "shop-secret", "billing": "billing-secret", "off": "off-secret", "most": "most-secret"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    light = {"lmq": True, "multi_dispatch": True}
    with run_cluster(secure=True, **light) as cluster, Admin(cluster.namesrv, **cluster.client_options) as operations:
        operations.create_topic("orders", queue_count=1)
        operations.create_topic("bills", queue_count=1)
        for user, password in USERS.items():
            operations.create_user(user, password)
        operations.create_acl("shop", ["Topic:orders"], ["Pub"])
        operations.create_acl("billing", ["Topic:orders", "Group:billing"], ["Sub"])
        operations.create_acl("most", ["Topic:*", "Group:billing"], ["Sub"])
        operations.create_acl("most", ["Topic:bills"], ["All"], decision="Deny")
        operations.update_user("off", status="disable")
        yield cluster


@pytest.fixture(scope="module")
def locked_proxy(locked: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    options = locked.client_options
    own = {
        "signer": Signer(options["access_key"], options["secret_key"]),
        "tls": client_tls(True, tls_ca=options["tls_ca"]),
    }
    path = tmp_path_factory.mktemp("audit") / "audit.log"
    with running_proxy(locked.namesrv, own, access_refresh_ms=100, audit_path=str(path)) as running:
        yield running


def signed(user: str, secret: str | None = None, date: str = DATE) -> dict[str, str]:
    made = hmac.new((secret or USERS.get(user, "")).encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={made}"
    return {"authorization": text, "x_mq_date_time": date}


def as_user(proxy: RunningProxy, user: str, secret: str | None = None, client_id: str = "") -> RawClient:
    return RawClient(proxy.address, client_id or f"client-of-{user}", **(signed(user, secret) if user else {}))


def served_by(proxy: RunningProxy) -> set[str]:
    return {path.rpartition("/")[2] for path in proxy.server.service._handlers}


def route_of(topic: str) -> Any:
    endpoints = messages.Endpoints(
        scheme=int(AddressScheme.IPv4), addresses=[messages.Address(host="127.0.0.1", port=1)]
    )
    return messages.QueryRouteRequest(topic=messages.Resource(name=topic), endpoints=endpoints)


def calls(topic: str, group: str) -> dict[str, Any]:
    t, g = messages.Resource(name=topic), messages.Resource(name=group)
    return {
        "QueryRoute": route_of(topic),
        "QueryAssignment": messages.QueryAssignmentRequest(topic=t, group=g, endpoints=route_of(topic).endpoints),
        "SendMessage": messages.SendMessageRequest(messages=[messages.Message(topic=t, body=b"x")]),
        "RecallMessage": messages.RecallMessageRequest(topic=t, recall_handle="x"),
        "EndTransaction": messages.EndTransactionRequest(topic=t, message_id="x", transaction_id="x"),
        "ReceiveMessage": messages.ReceiveMessageRequest(group=g, message_queue=messages.MessageQueue(topic=t)),
        "AckMessage": messages.AckMessageRequest(group=g, topic=t),
        "ChangeInvisibleDuration": messages.ChangeInvisibleDurationRequest(group=g, topic=t),
        "ForwardMessageToDeadLetterQueue": messages.ForwardMessageToDeadLetterQueueRequest(group=g, topic=t),
        "Heartbeat": messages.HeartbeatRequest(group=g, client_type=int(ClientType.SIMPLE_CONSUMER)),
        "NotifyClientTermination": messages.NotifyClientTerminationRequest(group=g),
        "SyncLiteSubscription": messages.SyncLiteSubscriptionRequest(group=g, topic=t),
    }


def status_of(client: RawClient, rpc: str, request: Any) -> Any:
    answer = client.call(rpc, request)
    return answer[0].status if isinstance(answer, list) else answer.status


@pytest.mark.parametrize(
    ("user", "secret", "why"),
    [
        ("", None, "username cannot be null."),
        ("nobody", "x", "User:nobody is not found."),
        ("off", None, "User:off is disabled."),
        ("shop", "wrong", "check signature failed."),
    ],
)
def test_every_call_needs_somebody(locked_proxy: RunningProxy, user: str, secret: str | None, why: str) -> None:
    client = as_user(locked_proxy, user, secret)
    for rpc, request in calls("orders", "billing").items():
        if rpc in served_by(locked_proxy):
            answer = status_of(client, rpc, request)
            assert (answer.code, answer.message) == (Code.UNAUTHORIZED, why), rpc
    client.close()


SHOP_MAY = {"QueryRoute", "SendMessage", "RecallMessage", "EndTransaction"}
BILLING_MAY = guard.RPCS - {"SendMessage", "RecallMessage", "EndTransaction", "Telemetry"}


@pytest.mark.parametrize(("user", "may"), [("shop", SHOP_MAY), ("billing", BILLING_MAY)])
def test_each_user_may_what_the_rules_say(locked_proxy: RunningProxy, user: str, may: set[str]) -> None:
    client = as_user(locked_proxy, user)
    for topic, group, mine in (("orders", "billing", may), ("bills", "other", set[str]())):
        for rpc, request in calls(topic, group).items():
            if rpc in served_by(locked_proxy):
                allowed = status_of(client, rpc, request).code != Code.UNAUTHORIZED
                assert allowed is (rpc in mine), (rpc, topic)
    client.close()


def test_a_refusal_says_what_was_missing(locked_proxy: RunningProxy) -> None:
    client = as_user(locked_proxy, "shop")
    answer = client.call("QueryRoute", route_of("bills")).status
    assert answer.message == "User:shop has no permission to access Topic:bills from 127.0.0.1, no matched policies."
    client.close()


def test_settings_that_are_not_allowed_end_the_stream(locked_proxy: RunningProxy) -> None:
    settings = messages.Settings(client_type=int(ClientType.PRODUCER))
    settings.publishing.topics.add(name="bills")
    client = as_user(locked_proxy, "shop")
    with pytest.raises(grpc.RpcError) as caught:
        next(client.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "Topic:bills" in caught.value.details()
    assert locked_proxy.server.clients.get("shop/client-of-shop") is None
    client.close()


def test_a_client_id_that_another_user_names_is_another_client(locked_proxy: RunningProxy) -> None:
    """Nobody takes an id away from who has a right to it, whoever came first."""
    settings = messages.Settings(client_type=int(ClientType.PRODUCER), publishing={})
    early, late = as_user(locked_proxy, "billing", client_id="mine"), as_user(locked_proxy, "shop", client_id="mine")
    streams = [early.telemetry(iter([messages.TelemetryCommand(settings=settings)]))]
    settings.publishing.topics.add(name="orders")
    streams.append(late.telemetry(iter([messages.TelemetryCommand(settings=settings)])))
    assert [next(stream).status.code for stream in streams] == [Code.OK, Code.OK]
    early.call("NotifyClientTermination", messages.NotifyClientTerminationRequest())
    clients = locked_proxy.server.clients
    assert clients.get("billing/mine") is None
    kept = clients.get("shop/mine")
    assert kept is not None
    assert kept.topics == {"orders"}
    for each in (early, late):
        each.close()


def test_a_change_holds_within_the_refresh(locked_proxy: RunningProxy, locked: Cluster) -> None:
    with Admin(locked.namesrv, **locked.client_options) as operations:
        operations.create_user("late", "late-secret")
        operations.create_acl("late", ["Topic:orders"], ["Pub"])
        client = as_user(locked_proxy, "late", "late-secret")

        def becomes(wanted: int) -> bool:
            return any(client.call("QueryRoute", route_of("orders")).status.code == wanted for _ in range(5000))

        assert becomes(Code.OK)
        operations.delete_user("late")
        assert becomes(Code.UNAUTHORIZED)
        client.close()


def test_who_loses_a_right_while_a_receive_waits_gets_no_message(
    locked_proxy: RunningProxy, locked: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy hears of it after the receive was let in; the message goes back, and comes to who may have it."""
    assert locked_proxy.server.access is not None
    tables = locked_proxy.server.access.tables
    request = messages.ReceiveMessageRequest(
        group=messages.Resource(name="waiters"),
        message_queue=messages.MessageQueue(topic=messages.Resource(name="waited")),
        filter_expression=messages.FilterExpression(type=int(FilterType.TAG), expression="*"),
        batch_size=1,
    )
    request.invisible_duration.seconds = 600
    request.long_polling_timeout.seconds = 20
    held = locked_proxy.server.consuming.receives.held
    with Admin(locked.namesrv, **locked.client_options) as operations:
        operations.create_topic("waited", queue_count=1)
        operations.create_user("leaver", "leaver-secret")
        operations.create_acl("leaver", ["Topic:waited", "Group:waiters"], ["Sub"])
        client, other = as_user(locked_proxy, "leaver", "leaver-secret"), as_user(locked_proxy, "most")
        wait_until(lambda: status_of(client, "QueryRoute", route_of("waited")).code == Code.OK)
        monkeypatch.setattr(tables, "_refresh_s", 3600)
        operations.delete_acl("leaver")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(status_of, client, "ReceiveMessage", request)
            wait_until(lambda: any(shares.total for shares in held.values()))
            monkeypatch.undo()
            wait_until(lambda: status_of(other, "QueryRoute", route_of("waited")) and "leaver" not in tables.acls)
            with Producer(locked.namesrv, **locked.client_options) as producer:
                producer.send("waited", b"secret")
            status = waiting.result(LIMIT_S)
        assert (status.code, "no matched policies" in status.message) == (Code.UNAUTHORIZED, True)
        operations.create_acl("most", ["Group:waiters"], ["Sub"])
        wait_until(lambda: status_of(other, "ReceiveMessage", request).code == Code.OK)
    for each in (client, other):
        each.close()


def on_record(locked_proxy: RunningProxy) -> list[dict[str, Any]]:
    path = Path(locked_proxy.server.settings.audit_path)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.shows("users of gRPC in an audit: who was refused what")
def test_who_was_refused_what_by_grpc_is_in_the_audit(locked_proxy: RunningProxy) -> None:
    """Each call that is served, by nobody, with a wrong signature and without a right; by remoting as a broker does."""

    def refused(user: str, secret: str | None, topic: str, group: str) -> list[dict[str, Any]]:
        before, wanted = len(on_record(locked_proxy)), 0
        client = as_user(locked_proxy, user, secret)
        for rpc, request in calls(topic, group).items():
            wanted += status_of(client, rpc, request).code == Code.UNAUTHORIZED
        client.close()
        wait_until(lambda: len(on_record(locked_proxy)) == before + wanted)
        rows = on_record(locked_proxy)[before:]
        assert {(row["server"], row["event"], row["user"], row["outcome"]) for row in rows} == {
            ("proxy", "refused", user, "refused")
        }
        assert {row["from"].rpartition(":")[0] for row in rows} == {"127.0.0.1"}
        assert all("code" not in row for row in rows)
        return rows

    # In one period, of one address, 50 are written.
    locked_proxy.run(lambda: asyncio.sleep(0, locked_proxy.server._audit._end_period()))
    # What was refused before is on record once this is.
    client = as_user(locked_proxy, "first", "wrong")
    assert status_of(client, "QueryRoute", calls("orders", "billing")["QueryRoute"]).code == Code.UNAUTHORIZED
    client.close()
    wait_until(lambda: "first" in {row.get("user") for row in on_record(locked_proxy)})
    rows = refused("", None, "orders", "billing")
    assert {row["request"] for row in rows} == set(calls("", ""))
    assert {(row["check"], row["rule"], row["remark"]) for row in rows} == {
        ("authentication", "signature", "username cannot be null.")
    }
    rows = refused("shop", "wrong", "orders", "billing")
    assert {(row["check"], row.get("resource")) for row in rows} == {("authentication", None)}
    locked_proxy.run(lambda: asyncio.sleep(0, locked_proxy.server._audit._end_period()))
    rows = {row["request"]: row for row in refused("shop", None, "bills", "other")}
    assert rows.keys() == set(calls("", ""))
    (sent, received) = rows["SendMessage"], rows["ReceiveMessage"]
    assert (sent["check"], sent["resource"], sent["actions"]) == ("authorization", "Topic:bills", ["Pub"])
    assert (received["resource"], received["actions"]) == ("Group:other", ["Sub"])
    assert "Signature" not in json.dumps(rows)
    options = {"access_key": "shop", "secret_key": "shop-secret"}
    before = len(on_record(locked_proxy))
    with pytest.raises(RocketSparkError), Producer(locked_proxy.address, **options) as producer:
        producer.send("bills", b"x")
    wanted = ("proxy", "shop", 105, "Topic:bills")
    wait_until(
        lambda: (
            wanted
            in [(row["server"], row["user"], row["code"], row["resource"]) for row in on_record(locked_proxy)[before:]]
        )
    )


def test_refusals_are_told_without_secrets(locked_proxy: RunningProxy, caplog: pytest.LogCaptureFixture) -> None:
    client = as_user(locked_proxy, "shop")
    with caplog.at_level("INFO", logger="rocketspark.proxy.audit"):
        client.call("QueryRoute", route_of("bills"))
    client.close()
    [line] = [r.getMessage() for r in caplog.records if r.name == "rocketspark.proxy.audit"]
    assert line.startswith("refused: User:shop from 127.0.0.1:")
    assert "QueryRoute of Topic:bills" in line
    assert "Signature" not in line


def test_every_served_call_has_its_contexts(locked_proxy: RunningProxy) -> None:
    assert served_by(locked_proxy) <= guard.RPCS


@pytest.mark.parametrize(
    ("topic", "refused"),
    [
        ("orders", ""),
        ("bills", "User:billing has no permission to access Topic:bills from 127.0.0.1"),
        ("", "User:billing has no permission to access Topic: from 127.0.0.1"),
    ],
)
def test_a_handle_that_was_made_up_moves_no_foreign_message(
    locked_proxy: RunningProxy, locked: Cluster, topic: str, refused: str
) -> None:
    rpc = "ForwardMessageToDeadLetterQueue"

    async def done(call: Any, request: Any) -> Any:
        return messages.ForwardMessageToDeadLetterQueueResponse(status=messages.Status(code=int(Code.OK)))

    path = f"/{messages.SERVICE}/{rpc}"
    before = locked_proxy.server.service._handlers.get(path)
    locked_proxy.server.service.serve(rpc, done)
    with Producer(locked.namesrv, **locked.client_options) as producer:
        place = parse_offset_message_id(producer.send(topic or "orders", b"secret").offset_message_id)[2]
    place += 0 if topic else 1
    handle = f"0 {10**13} 60000 0 0 broker-a 0 0 {place}"
    request = calls("orders", "billing")[rpc]
    request.receipt_handle = handle
    client = as_user(locked_proxy, "billing")
    status = client.call(rpc, request).status
    client.close()
    if before is not None:
        locked_proxy.server.service._handlers[path] = before
    assert status.code == (Code.UNAUTHORIZED if refused else Code.OK)
    assert refused in status.message


def test_a_made_up_handle_takes_no_delayed_message_of_a_topic_that_is_denied(
    locked_proxy: RunningProxy, locked: Cluster
) -> None:
    """It waits in a topic that a rule for all topics covers."""
    with Producer(locked.namesrv, **locked.client_options) as producer:
        sent = producer.send("bills", b"secret", delay_ms=3_600_000)
    request = calls("orders", "billing")["ForwardMessageToDeadLetterQueue"]
    request.receipt_handle = f"0 {10**13} 60000 0 0 broker-a 0 0 {parse_offset_message_id(sent.offset_message_id)[2]}"
    client = as_user(locked_proxy, "most")
    status = status_of(client, "ForwardMessageToDeadLetterQueue", request)
    client.close()
    text = "User:most has no permission to access Cluster:DefaultCluster from 127.0.0.1, no matched policies."
    assert (status.code, status.message) == (Code.UNAUTHORIZED, text)
    may = locked_proxy.server.clients.may_be_sent
    client_of: Any = SimpleNamespace(user="most", address="127.0.0.1:9", group="billing")
    found = [locked_proxy.run(lambda t=topic: may(client_of, t, "Sub")) for topic in ("orders", "rmq_sys_wheel_timer")]
    assert found == [True, False]


@pytest.mark.shows("what the broker sends of itself: a table, a test each")
def test_who_may_not_send_to_the_topic_is_not_asked_about_its_half_messages(locked_proxy: RunningProxy) -> None:
    """Whatever their group is called: a producer group of remoting may have the name of a topic."""
    asked: list[str] = []

    class Stream:
        def __init__(self, user: str) -> None:
            self._user = user

        async def send(self, command: Any) -> bool:
            asked.append(self._user)
            return True

        async def ask(self, command: Any, kind: str, nonce: str, timeout_s: float) -> Any:
            raise TimeoutError

    server = locked_proxy.server
    members: list[ProxyClient] = []
    for name in ("billing", "shop"):
        who = {"identity": f"{name}/{name}", "client_id": name, "user": name, "remote_address": "127.0.0.1:9"}
        who["remote_host"] = "127.0.0.1"
        call: Any = SimpleNamespace(language="JAVA", version="5", **who)
        client = ProxyClient(call)
        client.streams.append(Stream(name))
        members.append(client)
    clients: Any = SimpleNamespace(producers_of=lambda group: members, may_be_sent=server.clients.may_be_sent)
    orphans = Orphans(server.brokers, clients, TransactionData())

    async def main() -> None:
        for _ in range(4):
            await orphans._ask("payments", "orders", "id", messages.TelemetryCommand())

    locked_proxy.run(main)
    assert asked == ["shop"] * 4


def test_a_half_message_of_another_topic_is_not_ended_by_the_name_of_its_group(locked_proxy: RunningProxy) -> None:
    """A remoting group may have a topic's name; who may send to that topic may not end what goes to another."""
    data = TransactionData()
    clients: Any = SimpleNamespace(producers_of=lambda group: [])
    orphans = Orphans(locked_proxy.server.brokers, clients, data)
    half = stored(
        topic=b"RMQ_SYS_TRANS_HALF_TOPIC", properties=b"PGROUP\x01orders\x02REAL_TOPIC\x01bills\x02UNIQ_KEY\x01id\x02"
    )
    header = SimpleNamespace(broker_name="broker-a", transaction_id="id", half_offset=1, physical_offset=2)
    request: Any = SimpleNamespace(ext=header)
    peer: Any = None
    locked_proxy.run(lambda: orphans.asked(peer, request, half))
    assert data.take("orders", "id", monotonic_ms()) is None
    assert data.take("bills", "id", monotonic_ms()) is not None


@pytest.mark.shows("what the broker sends of itself: a table, a test each")
def test_who_lost_his_group_is_sent_nothing_by_hand(locked_proxy: RunningProxy) -> None:
    """His telemetry stream is open still; the topic alone is not enough."""
    who = {"identity": "billing/c", "client_id": "c", "user": "billing", "remote_address": "127.0.0.1:9"}
    call: Any = SimpleNamespace(language="JAVA", version="5", remote_host="127.0.0.1", **who)
    client = ProxyClient(call)
    may = locked_proxy.server.clients.may_be_sent
    found = []
    for group in ("billing", "other"):
        client.group = group
        for topic in ("orders", "bills", ""):
            found.append(locked_proxy.run(lambda topic=topic: may(client, topic, "Sub")))
    assert found == [True, False, True, False, False, False]


def test_without_rules_whoever_is_known_is_sent_and_nobody_who_is_not() -> None:
    users = {"shop": User("shop", "x"), "off": User("off", "x", user_status="disable")}

    async def fresh(username: str) -> None:
        pass

    async def main() -> list[bool]:
        clients = Clients(1)
        parts: Any = (SimpleNamespace(access_refresh_ms=1000), None, clients)
        control = guard.AccessControl(*parts, authenticates=True, authorizes=False)
        control.tables = cast(Any, SimpleNamespace(users=users, acls={}, fresh=fresh))
        asked: list[Any] = [SimpleNamespace(user=name, address="127.0.0.1:9", group="") for name in (*users, "gone")]
        return [await clients.may_be_sent(one, "orders", "Pub") for one in asked]

    assert asyncio.run(main()) == [True, False, False]


class SilentBrokers:
    """Two masters; the first one answers no more once it `is_silent`, and cannot be reached once it `is_refusing`."""

    cluster_name = "DefaultCluster"

    def __init__(self) -> None:
        self.is_silent = self.is_refusing = False
        self.asked: list[str] = []

    async def masters(self) -> list[str]:
        return ["first", "second"]

    async def peer_at(self, address: str) -> Any:
        self.asked.append(address)
        if address == "first" and self.is_refusing:
            raise NotSent("it is gone", address=address)
        if address == "first" and self.is_silent:
            await asyncio.Event().wait()
        return address


def test_a_silent_broker_keeps_no_call_of_a_known_user_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def users(broker: Any) -> list[Any]:
        return []

    known = {"shop": SimpleNamespace(username="shop")}
    monkeypatch.setattr(guard.admin_api, "list_users", users)
    monkeypatch.setattr(guard.admin_api, "list_acls", users)
    monkeypatch.setattr(guard.wire_forms, "users_from", lambda found: known)
    monkeypatch.setattr(guard.wire_forms, "acls_from", lambda found: {})
    monkeypatch.setattr(guard, "WAIT_S", 0.01)

    async def main() -> None:
        brokers: Any = SilentBrokers()
        tables = guard.FetchedTables(brokers, 0.0)
        await tables.fresh("shop")
        brokers.is_silent = True
        await asyncio.wait_for(tables.fresh("shop"), LIMIT_S)
        await asyncio.wait_for(tables.fresh("shop"), LIMIT_S)
        await asyncio.wait_for(tables.fresh("nobody"), LIMIT_S)
        assert brokers.asked == ["first", "first"]
        tables.close()
        # What answered last is asked first.
        brokers.is_refusing = True
        tables = guard.FetchedTables(brokers, 0.0)
        await asyncio.wait_for(tables.fresh("shop"), LIMIT_S)
        await asyncio.wait_for(tables.fresh("shop"), LIMIT_S)
        assert (brokers.asked[2:], tables.users) == (["first", "second", "second"], known)
        tables.close()

    asyncio.run(main())


def test_a_copy_past_its_life_lets_nobody_in_while_a_broker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that nobody asked for hours, and brokers that hang: who was deleted meanwhile stays out."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def masters() -> list[str]:
        asked.set()
        await gone.wait()
        raise NotSent("no NameServer answers", address="")

    monkeypatch.setattr(guard, "WAIT_S", 0.01)

    async def main() -> None:
        brokers: Any = SimpleNamespace(masters=masters)
        tables = guard.FetchedTables(brokers, 0.0, life_s=60.0)
        tables.users = {"deleted": User("deleted", "secret")}
        tables._fetched_s = machine.monotonic() - 3600
        calls = [asyncio.ensure_future(tables.fresh("deleted")) for _ in range(2)]
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        await asyncio.sleep(5 * guard.WAIT_S)
        assert [call.done() for call in calls] == [False, False]
        gone.set()
        await asyncio.wait_for(asyncio.gather(*calls), LIMIT_S)
        assert tables.users == {}

    asyncio.run(main())


@pytest.mark.shows(
    "mended: the second of two calls at a proxy that nobody had asked for a while was judged by users and rules of then"
)
def test_who_comes_while_an_old_copy_is_fetched_anew_waits_for_it_as_the_first_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "WAIT_S", LIMIT_S)
    asked, told = asyncio.Event(), asyncio.Event()

    async def masters() -> list[str]:
        asked.set()
        await told.wait()
        tables.users = {}
        return []

    brokers: Any = SimpleNamespace(masters=masters)
    tables = guard.FetchedTables(brokers, 5.0)

    async def found(own: float) -> list[bool]:
        """Two calls, the second while the first waits; whether the user was known as each went on."""
        tables.users = {"deleted": User("deleted", "secret")}
        tables._fetched_s = machine.monotonic() - own
        asked.clear()
        told.clear()

        async def call() -> bool:
            await tables.fresh("deleted")
            return "deleted" in tables.users

        first = asyncio.ensure_future(call())
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        second = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if own < 5.0:
            # It is new enough, and was fetched sooner for somebody unknown.
            assert second.done()
        told.set()
        return list(await asyncio.gather(first, second))

    async def main() -> None:
        assert await found(60.0) == [False, False]
        tables._tried_s = -float("inf")
        assert await found(0.0) == [False, True]

    asyncio.run(main())


def test_a_name_that_is_none_for_its_length_is_not_said_again(locked_proxy: RunningProxy) -> None:
    client = as_user(locked_proxy, "shop")
    answer = client.call("Heartbeat", messages.HeartbeatRequest(client_type=3, group={"name": "g" * 100_000}))
    client.close()
    assert answer.status.code == Code.UNAUTHORIZED
    assert len(answer.status.message) < 200


def test_the_topics_of_a_batch_are_not_looked_up_one_by_one() -> None:
    """They have to be the same; rules are asked for in one turn."""
    request = messages.SendMessageRequest(messages=[{"topic": {"name": f"t{number}"}} for number in range(9)])
    assert [context.name for context in guard.contexts_of("SendMessage", request)] == ["t0"]
    assert guard.contexts_of("SendMessage", messages.SendMessageRequest()) == []


SIGNED = hmac.new(b"secret", DATE.encode(), hashlib.sha1).hexdigest()
START = "MQv2-HMAC-SHA1 Credential="


def shown(text: str, date: str = DATE) -> Credentials:
    return credentials_of({"authorization": text, "x-mq-date-time": date})


@pytest.mark.parametrize(
    ("text", "user", "good"),
    [
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED.upper()}", "ann", True),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "ann", True),
        (f"{START}ann//Rocketmq, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "ann", True),
        (f"{START}ann/cn/x,SignedHeaders=x-mq-date-time,Signature={SIGNED}", "ann", True),
        (f"{START}, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "", True),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED[2:]}", "ann", False),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature=", "ann", False),
        (f"{START}ann, SignedHeaders=x-mq-date-time", "ann", False),
        (f"{START}ann, Signature={SIGNED[:2]} {SIGNED[2:]}", "ann", False),
        (f"MQv2-HMAC-SHA1 Signature={SIGNED}", None, True),
    ],
)
def test_what_a_field_says(text: str, user: str | None, good: bool) -> None:
    found = shown(text)
    assert found.username == user
    assert found.are_signed_with(b"secret") is good
    assert not found.are_signed_with(b"other")


@pytest.mark.parametrize(
    ("text", "date", "why"),
    [
        ("MQv2-HMAC-SHA1", DATE, "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Credential", DATE, "authentication keyValues length is incorrect, actual length=1."),
        (f"{START}ann, Signature=xyz", DATE, UNREADABLE),
        (f"{START}ann, Signature=abc", DATE, UNREADABLE),
        (f"{START}ann, Signature={SIGNED}", "", "datetime is null."),
        (f"{START}ann, Signature={SIGNED}", "  ", "datetime is null."),
    ],
)
def test_what_cannot_be_read(text: str, date: str, why: str) -> None:
    with pytest.raises(NotReadable, match=why):
        shown(text, date)


def test_no_field_is_nobody() -> None:
    assert credentials_of({}).username is None
    assert credentials_of({"authorization": ""}).username is None


@given(st.text(), st.text())
def test_any_text_is_read_or_refused(text: str, date: str) -> None:
    with contextlib.suppress(NotReadable):
        assert not shown(text, date).are_signed_with(b"secret")


@pytest.mark.shows("a client is told of a lite topic that it lost to another one, also where access control is on")
def test_who_loses_a_lite_topic_of_an_exclusive_group_is_told(locked_proxy: RunningProxy, locked: Cluster) -> None:
    with Admin(locked.namesrv, **locked.client_options) as operations:
        operations.create_topic("chats", message_type="LITE", queue_count=1)
        attributes = "+lite.bind.topic=chats,+lite.sub.model=Exclusive"
        operations.put_group("chatting", GroupSettings(attributes=attributes))
        operations.update_acl("billing", ["Topic:chats", "Group:chatting"], ["Sub"])
    settings = messages.TelemetryCommand()
    settings.settings.client_type = int(ClientType.LITE_PUSH_CONSUMER)
    settings.settings.subscription.group.name = "chatting"
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    commands.put(settings)
    first, second = (as_user(locked_proxy, "billing", client_id=name) for name in ("first", "second"))
    beat = messages.HeartbeatRequest(group={"name": "chatting"}, client_type=int(ClientType.LITE_PUSH_CONSUMER))
    wait_until(lambda: status_of(first, "Heartbeat", beat).code == Code.OK)
    stream = first.telemetry(iter(commands.get, None))
    assert next(stream).status.code == Code.OK
    for client in (first, second):
        asked = messages.SyncLiteSubscriptionRequest(
            topic={"name": "chats"}, group={"name": "chatting"}, lite_topic_set=["a"]
        )
        assert client.call("SyncLiteSubscription", asked).status.code == Code.OK
    with_limit = threading.Timer(LIMIT_S, stream.cancel)
    with_limit.start()
    assert next(stream).notify_unsubscribe_lite_command.lite_topic == "a"
    with_limit.cancel()
    commands.put(None)
