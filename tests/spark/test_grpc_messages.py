"""Messages that came over gRPC are read by Spark as all others are, and Spark's rows are received over gRPC."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.unit.proxy.conftest import RawClient, running_proxy

from rocketspark.admin.operations import Admin
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, ClientType, Code, MessageType
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    ".x to 4.x and back, a killed push consumer, a receive taken back; 5.x to Spark and back",
)


def told_settings(client: RawClient, topic: str, group: str) -> tuple[Any, threading.Event]:
    """Have the proxy know the client as a consumer, until the event is set; the stream ends when nobody holds it."""
    end = threading.Event()
    settings = messages.Settings(client_type=int(ClientType.SIMPLE_CONSUMER))
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = topic

    def commands() -> Any:
        yield messages.TelemetryCommand(settings=settings)
        end.wait(120)

    stream = client.telemetry(commands())
    assert next(stream).status.code == Code.OK
    return stream, end


def received(client: RawClient, topic: str, group: str, count: int) -> list[Any]:
    """As many messages, received and acknowledged."""
    here = messages.QueryRouteRequest(topic=messages.Resource(name=topic))
    here.endpoints.scheme = AddressScheme.IPv4
    here.endpoints.addresses.add(host="127.0.0.1", port=1)
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        for broker in ("broker-a", "broker-b"):
            request = messages.ReceiveMessageRequest(batch_size=32)
            request.group.name, request.message_queue.topic.name = group, topic
            request.message_queue.broker.name, request.message_queue.id = broker, -1
            request.filter_expression.expression = "*"
            request.filter_expression.type = 1
            request.invisible_duration.FromSeconds(30)
            request.long_polling_timeout.FromSeconds(5)
            answered = list(client.call("ReceiveMessage", request, timeout_s=20))
            codes = {one.status.code for one in answered if one.WhichOneof("content") == "status"}
            assert codes <= {Code.OK, Code.MESSAGE_NOT_FOUND}, answered
            found += [one.message for one in answered if one.WhichOneof("content") == "message"]
            if len(found) >= count:
                break
    return found


def test_both_ways(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    with Admin(cluster.namesrv) as operations:
        operations.create_topic(topic, queue_count=1)
    with running_proxy(cluster.namesrv) as proxy:
        client = RawClient(proxy.address)
        send = messages.SendMessageRequest()
        one = send.messages.add(body="über".encode())
        one.topic.name = topic
        one.user_properties["colour"] = "röt"
        one.system_properties.tag, one.system_properties.message_id = "t", "0123456789ABCDEF0123456789ABCDEF"
        one.system_properties.keys.extend(["k1", "k2"])
        one.system_properties.message_type = int(MessageType.NORMAL)
        assert client.call("SendMessage", send).status.code == Code.OK
        read = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
        rows = read.load()
        (row,) = rows.select("body", "tag", "keys", "messageId", "properties").collect()
        assert (bytes(row.body).decode(), row.tag, list(row["keys"])) == ("über", "t", ["k1", "k2"])
        assert row.messageId == "0123456789ABCDEF0123456789ABCDEF"
        assert row.properties["colour"] == "röt"

        rows.select("body", "tag").write.format("rocketmq").mode("append").option("namesrv", cluster.namesrv).option(
            "topic", topic
        ).save()
        _stream, end = told_settings(client, topic, f"{topic}-group")
        try:
            found = received(client, topic, f"{topic}-group", 2)
        finally:
            end.set()
            client.close()
        assert [(m.body.decode(), m.system_properties.tag) for m in found] == [("über", "t")] * 2
        assert sorted("colour" in m.user_properties for m in found) == [False, True]
