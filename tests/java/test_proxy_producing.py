"""Our proxy before Apache's broker: what it stores is what Apache's own proxy stores, transactions end once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheCluster, ask
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy
from tests.unit.proxy.consuming.support import PUSH, Consumer
from tests.unit.proxy.consuming.test_group_members import answering, asked, until
from tests.unit.proxy.consuming.test_group_members import ids as member_ids
from tests.unit.proxy.producing.sent_messages import STORED, message
from tests.unit.proxy.producing.support import (
    CHECKED,
    COMMIT,
    ROLLBACK,
    Producer,
    end,
    half,
    ids,
    parsed,
    send,
    sent,
    wait_for,
)

from rocketspark.admin.operations import Admin
from rocketspark.protocol.codes import RequestCode
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code

pytestmark = pytest.mark.shows(
    "SendMessage: 72 messages are stored, or refused with a code, as Apache's proxy 5.5.0 stored and refused "
    "them; types of topics (40014)",
    "EndTransaction: once, also from many clients, through another proxy, after a restart, longer ago than 30 "
    "s; checks that cross an end; orphans over Telemetry",
    "consumers of the proxy at the brokers: connections, subscriptions, running info, stacks, one message by "
    "hand; a broker that starts again",
)

VECTORS = json.loads((Path(__file__).parents[1] / "unit/proxy/producing/vectors.json").read_text())
# What brokers add to each message.
ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
QUICK_CHECKS = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "enableMixedMessageType": "true"}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    running = ApacheCluster(tmp_path_factory.mktemp("apache"), QUICK_CHECKS | {"recallMessageEnable": "true"})
    try:
        with Admin(running.namesrv) as admin:
            for kind in ("MIXED", "NORMAL", "TRANSACTION"):
                admin.create_topic(kind, queue_count=2, message_type=kind)
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def proxy(apache: ApacheCluster) -> Iterator[RunningProxy]:
    with running_proxy(apache.namesrv) as running:
        yield running


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[RawClient]:
    made = RawClient(proxy.address)
    yield made
    made.close()


def test_records_are_those_of_apaches_proxy(client: RawClient, proxy: RunningProxy) -> None:
    kept = {name: fields for name, fields in STORED.items() if "half" not in name and "host" not in name}
    own_ids = {}
    for number, (name, fields) in enumerate(kept.items()):
        fields = json.loads(json.dumps(fields).replace('"Mixed"', '"MIXED"').replace('"01ID"', f'"row{number}"'))
        own_ids[name] = fields["systemProperties"]["messageId"]
        assert sent(client, parsed(fields)).message_id == own_ids[name]
    for name, message_id in own_ids.items():
        found = wait_for(proxy, "MIXED", message_id)
        wanted = VECTORS[name]["properties"] | ADDED | {"PGROUP": "MIXED", "UNIQ_KEY": message_id}
        properties = {key: value for key, value in found.properties.items() if not key.startswith("TIMER_OUT")}
        if "delayed" not in name:
            assert properties == wanted, name
        assert wanted.items() <= properties.items() or "delayed" in name
        assert found.born_time_ms == VECTORS[name]["born_ms"]


def test_types_are_those_of_the_topic(client: RawClient) -> None:
    answer = send(client, parsed(message(topic="NORMAL", messageGroup="g")))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_a_transaction_ends_once_here_and_through_a_proxy_that_was_restarted(
    apache: ApacheCluster, client: RawClient, proxy: RunningProxy
) -> None:
    for number in range(4):
        half(client, f"tx{number}", orphanedTransactionRecoveryDuration="3600s")
    assert [end(client, "tx0", COMMIT), end(client, "tx0", COMMIT)] == [Code.OK, Code.INTERNAL_SERVER_ERROR]
    assert [end(client, "tx1", ROLLBACK), end(client, "tx1", COMMIT)] == [Code.OK, Code.INTERNAL_SERVER_ERROR]
    wait_for(proxy, "TRANSACTION", "tx0")
    with running_proxy(apache.namesrv) as restarted:
        anew = RawClient(restarted.address)
        assert end(anew, "tx0", COMMIT) == Code.INTERNAL_SERVER_ERROR
        assert end(anew, "tx2", COMMIT) == Code.OK
        assert end(anew, "tx3", ROLLBACK) == Code.OK
        wait_for(proxy, "TRANSACTION", "tx2")
        anew.close()
    found = ids(proxy, "TRANSACTION")
    assert [found.count(f"tx{number}") for number in range(4)] == [1, 0, 1, 0]


def test_an_orphan_is_asked_about_and_a_check_after_the_end_delivers_nothing_twice(
    apache: ApacheCluster, proxy: RunningProxy
) -> None:
    producer = Producer(proxy.address, "orphans", "TRANSACTION")
    half(producer.client, "orphan", orphanedTransactionRecoveryDuration="1s")
    while (asked := producer.commands.get(timeout=60).recover_orphaned_transaction_command).transaction_id != "orphan":
        pass
    assert asked.message.body == b"body"
    assert end(producer.client, "orphan", COMMIT, CHECKED) == Code.OK
    assert end(producer.client, "orphan", COMMIT, CHECKED) == Code.INTERNAL_SERVER_ERROR
    wait_for(proxy, "TRANSACTION", "orphan")
    assert ids(proxy, "TRANSACTION").count("orphan") == 1
    producer.close()
    # The proxy takes leave of the group.
    limit_s = time.monotonic() + 60
    while ask(apache.broker, 204, ext_fields={"producerGroup": "TRANSACTION"}).code == 0:
        assert time.monotonic() < limit_s
        time.sleep(0.05)


def test_consumers_are_known_to_the_broker_and_asked_by_it(
    apache: ApacheCluster, proxy: RunningProxy, client: RawClient
) -> None:
    sent(client, parsed(message(topic="NORMAL", messageId="by-hand")))
    place = wait_for(proxy, "NORMAL", "by-hand").offset_message_id
    consumers = [Consumer(proxy.address, "known", "NORMAL", PUSH, f"known-{n}") for n in range(2)]
    until(lambda: member_ids(apache.broker, "known"), ["known-0", "known-1"])
    info = json.loads(asked(apache.broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumers[0]).body)
    assert info["properties"]["consumerGroup"] == "known"

    def verified(command: Any) -> Any:
        nonce = command.verify_message_command.nonce
        return messages.TelemetryCommand(status={"code": int(Code.OK)}, verify_message_result={"nonce": nonce})

    heard = answering(consumers[1], verified)
    fields = {"msgId": place, "brokerName": "broker-a", "topic": "NORMAL"}
    answer = asked(apache.broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, consumers[1], **fields)
    assert json.loads(answer.body)["consumeResult"] == "CR_SUCCESS", answer
    assert heard[0].verify_message_command.message.system_properties.message_id == "by-hand"
    for consumer in consumers:
        consumer.terminate()
    until(lambda: member_ids(apache.broker, "known"), [])
