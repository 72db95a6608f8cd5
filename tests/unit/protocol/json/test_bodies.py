"""JSON bodies: which bytes stand on the wire, and what older or other writers may leave out."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from rocketspark.errors import ProtocolError
from rocketspark.model import MessageQueue, subscribe
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import BrokerDataBody, QueueDataBody

BROKERS = [BrokerDataBody(cluster="c", broker_name="a", broker_addrs={0: "h:1", 2: "h:2"}, enable_acting_master=True)]
QUEUES = [QueueDataBody(broker_name="a", read_queue_nums=4, write_queue_nums=3, perm=6)]
QUEUE_TEXT = b'{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":3}'


@pytest.mark.parametrize(("quoted", "ids"), [(True, b'{"0":"h:1","2":"h:2"}'), (False, b'{0:"h:1",2:"h:2"}')])
def test_a_route_with_broker_ids_in_either_dialect(quoted: bool, ids: bytes) -> None:
    text = bodies.encode_route(BROKERS, QUEUES, order_conf="a:4", quoted_ids=quoted)
    assert text == (
        b'{"brokerDatas":[{"brokerAddrs":%b,"brokerName":"a","cluster":"c","enableActingMaster":true}],'
        b'"filterServerTable":{},"orderTopicConf":"a:4","queueDatas":[%b]}' % (ids, QUEUE_TEXT)
    )
    found = bodies.decode_route("T", text)
    assert found.topic == "T"
    assert found.brokers[0].addresses == {0: "h:1", 2: "h:2"}
    assert found.order_conf == "a:4"
    assert len(found.read_queues()) == 4
    assert found.write_queues() == tuple(MessageQueue("T", "a", i) for i in range(3))


def test_a_route_without_order_has_no_such_field() -> None:
    text = bodies.encode_route([], [])
    assert text == b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    assert bodies.decode_route("T", text).order_conf is None


def test_a_route_that_is_none_is_a_protocol_error() -> None:
    for text in (b"", b"[]", b'{"queueDatas":[{"brokerName":"a"}]}', b'{"brokerDatas":[{"brokerAddrs":{"x":"h:1"}}]}'):
        with pytest.raises(ProtocolError, match="RouteBody"):
            bodies.decode_route("T", text)


def test_cluster_info_always_has_bare_ids() -> None:
    info = bodies.ClusterInfo(broker_addr_table={"a": BROKERS[0]}, cluster_addr_table={"c": ["a"]})
    text = bodies.encode_cluster_info(info)
    assert text == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1",2:"h:2"},"brokerName":"a","cluster":"c",'
        b'"enableActingMaster":true}},"clusterAddrTable":{"c":["a"]}}'
    )
    assert java_json.decode(text, bodies.ClusterInfo) == info


def test_fields_are_sorted_by_name_as_rocketmq_writes_them() -> None:
    beat = bodies.Heartbeat(client_id="c@1", producer_data_set=[bodies.ProducerData(group_name="P")])
    assert bodies.encode(beat) == (
        b'{"clientID":"c@1","consumerDataSet":[],"heartbeatFingerprint":0,'
        b'"producerDataSet":[{"groupName":"P"}],"withoutSub":false}'
    )
    queue = bodies.QueueBody.of(MessageQueue("T", "a", 1))
    assert bodies.encode(queue) == b'{"brokerName":"a","queueId":1,"topic":"T"}'
    assert queue.queue() == MessageQueue("T", "a", 1)
    reply = bodies.LockReply(lock_ok_mq_set=[queue])
    assert bodies.encode(reply) == b'{"lockOKMQSet":[{"brokerName":"a","queueId":1,"topic":"T"}]}'


def test_a_bare_heartbeat_gets_the_defaults() -> None:
    text = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T"}]}]}'
    beat = java_json.decode(text, bodies.Heartbeat)
    (consumer,) = beat.consumer_data_set
    assert (consumer.message_model, consumer.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert consumer.subscription_data_set[0].subscription().is_all


def test_a_subscription_without_a_kind_filters_by_tag() -> None:
    text = b'{"topic":"T","subString":"a || b","tagsSet":["b","a"],"codeSet":[97,98],"expressionType":null}'
    found = java_json.decode(text, bodies.SubscriptionBody).subscription()
    assert found == subscribe("T", "a || b")
    written = bodies.SubscriptionBody.of(found)
    assert (written.tags_set, written.code_set, written.expression_type) == (["a", "b"], [97, 98], "TAG")


def test_group_and_topic_defaults_are_rocketmq_s() -> None:
    group = bodies.GroupConfig(group_name="G")
    assert (group.retry_queue_nums, group.retry_max_times, group.consume_timeout_minute) == (1, 16, 15)
    assert group.group_retry_policy == {"type": "CUSTOMIZED"}
    assert bodies.GroupConfig(group_name="H").group_retry_policy is not group.group_retry_policy
    topic = bodies.TopicConfig(topic_name="T")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type) == (
        *(16, 16, 6),
        "SINGLE_TAG",
    )


def _mapping(bname: str, epoch: int, queues: dict[int, int], total: int = 4, scope: str = "__global__") -> Any:
    return bodies.QueueMapping("T", scope, total, bname, epoch, curr_id_map=queues)


@pytest.mark.shows(
    "a route with static mappings is read: logical queues and their leaders",
    "our client on static topics: sends (by key, to a logical queue, transactions), push, ordered and pull "
    "consumers, offsets, locks, retries, `rocketspark topic show` and group progress, queues that move "
    "meanwhile",
)
def test_a_static_topic_has_logical_queues_led_by_the_latest_epoch() -> None:
    mappings = {
        "b-1": _mapping("b-1", 7, {0: 3, 1: 1, 9: 9}),
        "b-2": _mapping("b-2", 8, {1: 0, 2: 5}),
        "b-3": _mapping("b-3", 1, {2: 0, 0: 0}, total=2),
    }
    route = bodies.decode_route("T", bodies.encode_route(BROKERS, QUEUES, mappings=mappings))
    queues = [MessageQueue("T", "__syslo__global__", n) for n in range(4)]
    assert list(route.leaders.items()) == list(zip(queues, ["b-1", "b-2", "b-2", "__syslo__none__"], strict=True))
    assert route.producer_queues() == route.read_queues() == tuple(queues)
    # Another scope is another set of queues.
    more = {"b-1": _mapping("b-1", 1, {0: 0}, 1), "b-2": _mapping("b-2", 1, {0: 4}, 1, scope="unit")}
    route = bodies.decode_route("T", bodies.encode_route(BROKERS, QUEUES, mappings=more))
    assert {(q.broker_name, q.queue_id): name for q, name in route.leaders.items()} == {
        ("__syslo__global__", 0): "b-1",
        ("__syslo__unit", 0): "b-2",
    }
    huge = {"b-1": _mapping("b-1", 1, {}, 2**31 - 1)}
    with pytest.raises(ProtocolError, match="at most"):
        bodies.decode_route("T", bodies.encode_route(BROKERS, QUEUES, mappings=huge))


def test_a_route_without_mappings_is_plain() -> None:
    body = bodies.encode_route(BROKERS, QUEUES)
    plain = bodies.decode_route("T", body)
    for none in (b"null", b"{}"):
        assert bodies.decode_route("T", body[:-1] + b',"topicQueueMappingByBroker":' + none + b"}") == plain


@pytest.mark.shows("mended: a fake broker with 2^31 queues takes 4 GB in a producer")
@pytest.mark.parametrize("counts", [[(1 << 16) + 1], [2**31 - 1], [1 << 16] * 5])
def test_a_route_has_so_many_queues(counts: list[int]) -> None:
    def route(counts: list[int]) -> bytes:
        queues = [
            bodies.QueueDataBody(broker_name=f"b{i}", read_queue_nums=1, write_queue_nums=n, perm=6)
            for i, n in enumerate(counts)
        ]
        return bodies.encode_route(BROKERS, queues)

    with pytest.raises(ProtocolError, match="'T' names"):
        bodies.decode_route("T", route(counts))
    assert len(bodies.decode_route("T", route([1 << 16] * 4)).queues) == 4


@pytest.mark.shows("a full garbage collection with 100,000 topics holds no loop")
def test_the_garbage_collection_does_not_look_through_topics() -> None:
    """It took 20 ms for 100,000 topics of a broker, 40 ms for those of a NameServer."""
    config = java_json.decode(b'{"topicName":"t","attributes":{"message.type":"FIFO"}}', bodies.TopicConfig)
    queues = {"b": bodies.QueueDataBody(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)}
    assert [gc.is_tracked(kept) for kept in (config, config.attributes, queues, queues["b"])] == [False] * 4
