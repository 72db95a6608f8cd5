"""Sends, ends of transactions and recalls through a proxy, before our own broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.unit.proxy.conftest import RawClient, RunningProxy, running_proxy
from tests.unit.proxy.producing.sent_messages import STORED, message
from tests.unit.proxy.producing.support import (
    CHECKED,
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Producer,
    end,
    half,
    ids,
    parsed,
    send,
    sent,
    stored,
    wait_for,
)

from rocketspark.admin.operations import Admin
from rocketspark.model import MessageQueue
from rocketspark.model.allocation import consistent_hash
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.testing.cluster import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "several messages in one call: one batch, an entry for each (Apache: one entry for all)",
    "EndTransaction: once, also from many clients, through another proxy, after a restart, longer ago than 30 "
    "s; checks that cross an end; orphans over Telemetry",
    "RecallMessage of gRPC",
)

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2, transaction_check_interval_ms=200, transaction_timeout_ms=500, recall_enabled=True) as running:
        with Admin(running.namesrv) as admin:
            for kind in TYPES:
                admin.create_topic(kind, queue_count=4, message_type=kind)
        yield running


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv) as running:
        yield running


def test_every_type_goes_to_its_topic_and_to_mixed_alone(client: RawClient, proxy: RunningProxy) -> None:
    soon = {"deliveryTimestamp": "2024-05-06T07:08:09Z"}
    fields = {"NORMAL": {}, "FIFO": {"messageGroup": "g"}, "DELAY": soon, "TRANSACTION": {"messageType": "TRANSACTION"}}
    for kind, system in fields.items():
        for topic in TYPES:
            answer = send(client, parsed(message(topic=topic, messageId=f"{kind}-to-{topic}", **system)))
            if topic in (kind, "MIXED"):
                assert answer.status.code == Code.OK
                assert answer.entries[0].message_id == f"{kind}-to-{topic}"
                assert answer.entries[0].transaction_id == f"{kind}-to-{topic}"
            else:
                assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
                assert answer.status.message == (
                    f"TopicMessageType validate failed, the expected type is {topic}, but actual type is {kind}"
                )
    for kind in ("NORMAL", "FIFO", "DELAY"):
        assert wait_for(proxy, "MIXED", f"{kind}-to-MIXED").body == b"body"
    assert "TRANSACTION-to-MIXED" not in ids(proxy, "MIXED")


def test_the_record_has_the_properties_and_what_the_broker_adds(client: RawClient, proxy: RunningProxy) -> None:
    entry = sent(client, parsed(STORED["user properties"] | {"topic": {"name": "NORMAL"}}, message_id="props"))
    found = wait_for(proxy, "NORMAL", "props")
    assert entry.offset == found.queue_offset
    assert found.properties == {
        "a": "1",
        "b": "two words",
        "ключ": "значение",
        "😀": "😀",
        "UNIQ_KEY": "props",
        "RECONSUME_TIME": "0",
        "PGROUP": "NORMAL",
        "__BORNHOST": "10.1.2.3",
        "BORN_TIMESTAMP": "1714979289123",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert found.born_time_ms == 1714979289123


def test_without_a_born_host_it_is_the_clients_address(client: RawClient, proxy: RunningProxy) -> None:
    sent(client, parsed(message(topic="NORMAL", messageId="host", bornHost=None)))
    assert wait_for(proxy, "NORMAL", "host").properties["__BORNHOST"].startswith("127.0.0.1:")


def test_a_message_group_has_the_queue_of_guava_over_all_brokers(client: RawClient, proxy: RunningProxy) -> None:
    for number, group in enumerate(("order-1", "order-2", "订单", "order-1")):
        sent(client, parsed(message(topic="FIFO", messageId=f"g{number}", messageGroup=group)))
    queues = sorted(MessageQueue("FIFO", name, i) for name in ("broker-a", "broker-b") for i in range(4))
    for number, hashed in enumerate((-1207111310, -1207111309, 1129459, -1207111310)):
        found = wait_for(proxy, "FIFO", f"g{number}")
        assert MessageQueue("FIFO", found.broker_name, found.queue_id) == queues[consistent_hash(hashed, 8)]


def test_normal_messages_take_turns_over_all_queues(client: RawClient, proxy: RunningProxy) -> None:
    for number in range(8):
        sent(client, parsed(message(topic="NORMAL", messageId=f"turn{number}")))
    found = [m for m in stored(proxy, "NORMAL") if m.message_id.startswith("turn")]
    assert len({(m.broker_name, m.queue_id) for m in found}) == 8


def test_several_messages_are_one_batch_with_an_entry_each(client: RawClient, proxy: RunningProxy) -> None:
    answer = send(client, *(parsed(message(topic="NORMAL", messageId=f"batch{n}", tag="t")) for n in range(3)))
    assert answer.status.code == Code.OK
    assert [(e.status.code, e.message_id) for e in answer.entries] == [(Code.OK, f"batch{n}") for n in range(3)]
    found = [wait_for(proxy, "NORMAL", f"batch{n}") for n in range(3)]
    assert [m.queue_offset for m in found] == [e.offset for e in answer.entries]
    assert len({(m.broker_name, m.queue_id) for m in found}) == 1
    assert found[2].properties["TAGS"] == "t"


def test_batches_that_cannot_be_are_refused(client: RawClient) -> None:
    plain = message(topic="MIXED")
    rows = [
        ((), "messages: there is none"),
        # The reply names each, and no larger one is read: the connection, which all clients share, would end.
        ((plain,) * 16_385, "messages: there are 16385, at most 16384 go together"),
        ((plain, message(topic="NORMAL")), "messages: their topics are not the same"),
        ((plain, message(topic="MIXED", bodyEncoding="GZIP")), "messages: their body encodings are not the same"),
        ((plain, message(topic="MIXED", messageGroup="g")), "messages: their message groups are not the same"),
        ((message(topic="MIXED", messageType="TRANSACTION"),) * 2, "messages: one of type TRANSACTION goes alone"),
        ((message(topic="MIXED", deliveryTimestamp="2024-05-06T07:08:09Z"),) * 2, "messages: one of type DELAY goes"),
    ]
    for batch, text in rows:
        answer = send(client, *map(parsed, batch))
        assert answer.status.code == Code.MESSAGE_CORRUPTED, text
        assert answer.status.message.startswith(text)
    mixed_types = send(client, parsed(message(topic="FIFO", messageGroup="g")), parsed(message(topic="FIFO")))
    assert mixed_types.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_topics_that_are_not_there(client: RawClient) -> None:
    for topic, code in {"Missing": Code.TOPIC_NOT_FOUND, "%RETRY%none": Code.TOPIC_NOT_FOUND}.items():
        assert send(client, parsed(message(topic=topic))).status.code == code


def test_a_topic_whose_type_changed_takes_the_new_type_at_once(
    cluster: Cluster, client: RawClient, proxy: RunningProxy
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("Changing", queue_count=1, message_type="NORMAL")
        sent(client, parsed(message(topic="Changing")))
        fifo = parsed(message(topic="Changing", messageGroup="g"))
        assert send(client, fifo).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        admin.create_topic("Changing", queue_count=1, message_type="FIFO")
        # What was asked for within the last second counts.
        time.sleep(1.1)
        sent(client, fifo)


def test_a_topic_nobody_may_write_to(cluster: Cluster, client: RawClient) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("ReadOnly", queue_count=1, perm=4)
    answer = send(client, parsed(message(topic="ReadOnly")))
    assert (answer.status.code, answer.status.message) == (Code.FORBIDDEN, "no writable queue")


# -- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_ends_once(client: RawClient, proxy: RunningProxy) -> None:
    for number in range(3):
        half(client, f"tx{number}")
    other = RawClient(proxy.address, client_id="another")
    assert end(other, "tx0", UNKNOWN) == Code.OK
    assert [end(other, "tx0", COMMIT), end(client, "tx0", COMMIT)] == [Code.OK, Code.INTERNAL_SERVER_ERROR]
    assert [end(client, "tx1", ROLLBACK), end(client, "tx1", COMMIT)] == [Code.OK, Code.INTERNAL_SERVER_ERROR]
    assert end(client, "tx2", COMMIT) == Code.OK
    other.close()
    wait_for(proxy, "TRANSACTION", "tx0")
    wait_for(proxy, "TRANSACTION", "tx2")
    found = ids(proxy, "TRANSACTION")
    assert [found.count(f"tx{number}") for number in range(3)] == [1, 0, 1]


def test_ends_that_cannot_be(client: RawClient) -> None:
    assert end(client, " ", COMMIT) == Code.INVALID_TRANSACTION_ID
    assert end(client, "unknown", COMMIT) == Code.INTERNAL_SERVER_ERROR
    assert end(client, "x", COMMIT, topic="a.b") == Code.ILLEGAL_TOPIC
    assert end(client, "x", COMMIT, topic="Missing") == Code.TOPIC_NOT_FOUND
    half(client, "of-one-topic")
    assert end(client, "of-one-topic", COMMIT, topic="MIXED") == Code.INTERNAL_SERVER_ERROR
    assert end(client, "of-one-topic", ROLLBACK) == Code.OK


def test_another_proxy_ends_what_this_one_began(cluster: Cluster, client: RawClient, proxy: RunningProxy) -> None:
    for number in range(3):
        half(client, f"moved{number}", orphanedTransactionRecoveryDuration="3600s")
    with running_proxy(cluster.namesrv) as restarted:
        anew = RawClient(restarted.address, client_id="anew")
        assert end(anew, "moved0", COMMIT) == Code.OK
        wait_for(proxy, "TRANSACTION", "moved0")
        assert end(anew, "moved0", COMMIT) == Code.INTERNAL_SERVER_ERROR
        assert end(anew, "moved1", ROLLBACK) == Code.OK
        assert end(anew, "nobody", COMMIT) == Code.INTERNAL_SERVER_ERROR
        anew.close()
    with running_proxy(cluster.namesrv) as restarted:
        anew = RawClient(restarted.address, client_id="anew")
        assert end(anew, "moved0", COMMIT) == Code.INTERNAL_SERVER_ERROR
        assert end(anew, "moved2", COMMIT) == Code.OK
        wait_for(proxy, "TRANSACTION", "moved2")
        anew.close()
    found = ids(proxy, "TRANSACTION")
    assert [found.count(f"moved{number}") for number in range(3)] == [1, 0, 1]


def test_an_orphan_is_asked_about_and_ended_by_the_answer(proxy: RunningProxy) -> None:
    producer = Producer(proxy.address, "orphans", "TRANSACTION")
    half(producer.client, "orphan", tag="T", keys=["k"], orphanedTransactionRecoveryDuration="1s")
    while True:
        command = producer.commands.get(timeout=60).recover_orphaned_transaction_command
        if command.transaction_id == "orphan":
            break
    assert command.message.body == b"body"
    assert command.message.topic.name == "TRANSACTION"
    system = command.message.system_properties
    assert (system.message_id, system.tag, list(system.keys), system.message_type) == ("orphan", "T", ["k"], 4)
    assert end(producer.client, "orphan", COMMIT, CHECKED) == Code.OK
    wait_for(proxy, "TRANSACTION", "orphan")
    assert end(producer.client, "orphan", COMMIT, CHECKED) == Code.INTERNAL_SERVER_ERROR
    assert ids(proxy, "TRANSACTION").count("orphan") == 1
    producer.close()


def test_ends_at_once_from_many_deliver_once(client: RawClient, proxy: RunningProxy) -> None:
    for number in range(5):
        half(client, f"race{number}")
        with ThreadPoolExecutor(6) as threads:
            codes = list(threads.map(lambda name: end(client, name, COMMIT), [f"race{number}"] * 6))
        assert sorted(codes) == [Code.OK] + [Code.INTERNAL_SERVER_ERROR] * 5
        wait_for(proxy, "TRANSACTION", f"race{number}")
    found = ids(proxy, "TRANSACTION")
    assert [found.count(f"race{number}") for number in range(5)] == [1] * 5


# -- recalls ---------------------------------------------------------------------------------------------------------


def recall(client: RawClient, topic: str, handle: str) -> Any:
    request = messages.RecallMessageRequest(topic=messages.Resource(name=topic), recall_handle=handle)
    return client.call("RecallMessage", request)


def test_a_delayed_message_is_recalled(client: RawClient, proxy: RunningProxy) -> None:
    later = messages.Timestamp(seconds=int(time.time()) + 3600)
    one = parsed(message(topic="DELAY", messageId="later"))
    one.system_properties.delivery_timestamp.CopyFrom(later)
    handle = sent(client, one).recall_handle
    answer = recall(client, "DELAY", handle)
    assert (answer.status.code, answer.message_id) == (Code.OK, "later")
    assert recall(client, "NORMAL", handle).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for wrong in ("", "!!", "djEgYSBiIGMgZA"):
        assert recall(client, "DELAY", wrong).status.code in (Code.INTERNAL_SERVER_ERROR, Code.BAD_REQUEST)
