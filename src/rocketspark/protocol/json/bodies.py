"""JSON bodies of requests and replies, as RocketMQ names them. Rule: read either dialect, write RocketMQ's.

Names of fields are the wire's own in camel case; other fields of a body are ignored when read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from rocketspark.errors import FilterIllegal, ProtocolError
from rocketspark.model import BrokerData, MessageQueue, QueueData, Subscription, TopicRoute
from rocketspark.model.route import LOGICAL_PREFIX, NO_LEADER
from rocketspark.model.subscription import EXPRESSION_LENGTH_MAX
from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol.json import java_json


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all JSON bodies."""


class DataVersion(Body):
    """Version of a table: a reader takes the table if it differs from the one it has."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(Body, gc=False):
    """A topic's settings on one broker. `perm`: 4 read, 2 write, 1 inherit."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


# Java's.
_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class QueueMapping(Body):
    """A static topic's mapping on one broker: logical queues, by their ids in the topic, to the broker's own queues."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: _Int = 0
    bname: str = ""
    epoch: _Long = 0
    dirty: bool = False
    curr_id_map: dict[_Int, _Int] = {}


class TopicConfigTable(Body):
    """topics.json, and the body of a broker's registration: every topic and the table's version."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, QueueMapping] = {}
    topic_queue_mapping_detail_map: dict[str, Any] = {}
    mapping_data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(Body):
    """Body of REGISTER_BROKER (103)."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = []


class BrokerDataBody(Body):
    """One broker name in a route; ids are text on the wire, bare or quoted."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False
    zone_name: str | msgspec.UnsetType = msgspec.UNSET


class QueueDataBody(Body, gc=False):
    """One broker's queues in a route."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class RouteBody(Body, omit_defaults=True):
    """TopicRouteData: the reply to GET_ROUTEINFO_BY_TOPIC (105)."""

    broker_datas: list[BrokerDataBody] = []
    queue_datas: list[QueueDataBody] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, QueueMapping] | None = None


# More than any broker has of one topic, few enough to hold one value for each.
# They are read on the loop.
HEARTBEAT_BYTES_MAX = 4 << 20
QUEUES_OF_BROKER_MAX = 1 << 16
QUEUES_OF_ROUTE_MAX = 1 << 18


def decode_route(topic: str, body: bytes) -> TopicRoute:
    """Return the route in a reply's body.

    Raises ProtocolError, also for more queues than there can be.
    """
    route = java_json.decode(body, RouteBody)
    mappings = route.topic_queue_mapping_by_broker or {}
    counts = [max(q.read_queue_nums, q.write_queue_nums) for q in route.queue_datas]
    counts += [m.total_queues for m in mappings.values()]
    if max(counts, default=0) > QUEUES_OF_BROKER_MAX or sum(counts) > QUEUES_OF_ROUTE_MAX:
        raise ProtocolError(
            f"the route of topic {topic!r} names {sum(counts)} queues, {max(counts)} of one broker; at most"
            f" {QUEUES_OF_ROUTE_MAX} and {QUEUES_OF_BROKER_MAX} are taken: is that a NameServer of RocketMQ's?"
        )
    return TopicRoute(
        topic,
        tuple(BrokerData(b.cluster, b.broker_name, b.broker_addrs) for b in route.broker_datas),
        tuple(
            QueueData(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag)
            for q in route.queue_datas
        ),
        route.order_topic_conf,
        _leaders(topic, mappings),
    )


def _leaders(topic: str, mappings: dict[str, QueueMapping]) -> dict[MessageQueue, str]:
    """Return who leads each logical queue of a static topic: of several that say they do, the one of the latest epoch.

    A queue that nobody leads is there all the same (rule: topicRouteData2EndpointsForStaticTopic, 5.x).
    """
    found: dict[MessageQueue, str] = {}
    for scope in sorted({m.scope for m in mappings.values()}):
        of_scope = sorted((m for m in mappings.values() if m.scope == scope), key=lambda m: m.epoch)
        leads = {queue_id: m.bname for m in of_scope for queue_id in m.curr_id_map}
        name = LOGICAL_PREFIX + (scope[2:] if scope == "__global__" else scope)
        for queue_id in range(max(m.total_queues for m in of_scope)):
            found[MessageQueue(topic, name, queue_id)] = leads.get(queue_id, NO_LEADER)
    return found


def encode_route(
    brokers: list[BrokerDataBody],
    queues: list[QueueDataBody],
    *,
    order_conf: str | None = None,
    mappings: dict[str, QueueMapping] | None = None,
    quoted_ids: bool = True,
) -> bytes:
    """Return TopicRouteData as the NameServer writes it, keys sorted.

    `mappings`: those of a static topic, by broker name. With `quoted_ids` False broker ids are bare numbers, as clients
    before 4.9.4 need it.
    """
    parts = [b'{"brokerDatas":[', b",".join(_broker_data(b, quoted_ids) for b in brokers), b'],"filterServerTable":{}']
    if order_conf is not None:
        parts.append(b',"orderTopicConf":' + msgspec.json.encode(order_conf))
    parts.append(b',"queueDatas":' + encode(queues))
    if mappings:
        parts.append(b',"topicQueueMappingByBroker":' + msgspec.json.encode(mappings))
    parts.append(b"}")
    return b"".join(parts)


def _broker_data(broker: BrokerDataBody, quoted: bool) -> bytes:
    addresses = (
        msgspec.json.encode({str(k): v for k, v in broker.broker_addrs.items()})
        if quoted
        else java_json.encode_number_keys(broker.broker_addrs)
    )
    return b'{"brokerAddrs":%b,"brokerName":%b,"cluster":%b,"enableActingMaster":%b%b}' % (
        addresses,
        msgspec.json.encode(broker.broker_name),
        msgspec.json.encode(broker.cluster),
        b"true" if broker.enable_acting_master else b"false",
        b',"zoneName":' + msgspec.json.encode(broker.zone_name) if broker.zone_name else b"",
    )


def encode_member_group(cluster: str, broker_name: str, addresses: dict[int, str]) -> bytes:
    """Reply to GET_BROKER_MEMBER_GROUP (901), with bare broker ids, as RocketMQ always writes it."""
    return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (
        java_json.encode_number_keys(dict(sorted(addresses.items()))),
        msgspec.json.encode(broker_name),
        msgspec.json.encode(cluster),
    )


class ClusterInfo(Body):
    """Reply to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: dict[str, BrokerDataBody] = {}
    cluster_addr_table: dict[str, list[str]] = {}


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """ClusterInfo with bare broker ids, as RocketMQ always writes it."""
    brokers = b",".join(
        msgspec.json.encode(name) + b":" + _broker_data(broker, quoted=False)
        for name, broker in info.broker_addr_table.items()
    )
    return b'{"brokerAddrTable":{%b},"clusterAddrTable":%b}' % (brokers, msgspec.json.encode(info.cluster_addr_table))


class TopicList(Body, omit_defaults=True):
    """Reply to the requests that list topics: names of topics."""

    topic_list: list[str] = msgspec.field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body, omit_defaults=True):
    """Reply of QUERY_TOPIC_CONSUME_BY_WHO; a HashSet on the Java side."""

    group_list: list[str] = []


class SubscriptionBody(Body):
    """One subscription in a heartbeat. `code_set` holds the tags' hash codes."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False

    def subscription(self) -> Subscription:
        """Return the value the other layers use. Raises FilterIllegal if it is longer than one may be."""
        codes, characters = len(self.code_set), len(self.sub_string) + sum(map(len, self.tags_set))
        if characters > 2 * EXPRESSION_LENGTH_MAX or codes > EXPRESSION_LENGTH_MAX:
            raise FilterIllegal(
                f"a filter expression of {len(self.sub_string)} characters and {codes} tags for topic {self.topic}; at"
                f" most {EXPRESSION_LENGTH_MAX} characters are taken: subscribe to fewer tags, or to *"
            )
        return Subscription(
            self.topic,
            self.sub_string,
            self.expression_type or "TAG",
            frozenset(self.tags_set),
            frozenset(self.code_set),
            self.sub_version,
        )

    @classmethod
    def of(cls, subscription: Subscription) -> SubscriptionBody:
        """Return the wire's form of a subscription."""
        return cls(
            topic=subscription.topic,
            sub_string=subscription.expression,
            tags_set=sorted(subscription.tags),
            code_set=sorted(subscription.codes),
            sub_version=subscription.version,
            expression_type=subscription.expression_type,
        )


class ClientCheck(Body):
    """Body of CHECK_CLIENT_CONFIG (46): a consumer asks before it starts whether a broker takes its filter."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionBody | None = None


class ProducerData(Body):
    """A producer group in a heartbeat."""

    group_name: str


_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")
_CONSUME_FROM = (
    *("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"),
    *("CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"),
)


def _name(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    return names[value] if 0 <= value < len(names) else names[0]


class ConsumerData(Body):
    """A consumer group in a heartbeat."""

    group_name: str
    # The C++ client writes these by their numbers.
    consume_type: str | int = "CONSUME_PASSIVELY"
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False
    subscription_data_set: list[SubscriptionBody] = []

    def __post_init__(self) -> None:
        self.consume_type = _name(self.consume_type, _CONSUME_TYPES)
        self.message_model = _name(self.message_model, _MESSAGE_MODELS)
        self.consume_from_where = _name(self.consume_from_where, _CONSUME_FROM)


class Heartbeat(Body):
    """Body of HEART_BEAT (34): all groups of one client."""

    client_id: str = msgspec.field(name="clientID")
    heartbeat_fingerprint: int = 0
    without_sub: bool = False
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []

    def parts(self, count_max: int) -> Iterator[Heartbeat]:
        """Yield this heartbeat in parts, each of at most `count_max` groups and subscriptions together, or of one
        larger group.
        """
        producers = self.producer_data_set
        for at in range(0, len(producers), count_max):
            yield msgspec.structs.replace(self, producer_data_set=producers[at : at + count_max], consumer_data_set=[])
        part: list[ConsumerData] = []
        count = 0
        for consumer in self.consumer_data_set:
            size = 1 + len(consumer.subscription_data_set)
            if part and count + size > count_max:
                yield msgspec.structs.replace(self, producer_data_set=[], consumer_data_set=part)
                part, count = [], 0
            part.append(consumer)
            count += size
        yield msgspec.structs.replace(self, producer_data_set=[], consumer_data_set=part)


# The heartbeat that is asked for again, with its body: one at most, until the next is asked for.
_kept_heartbeat: tuple[bytes, Heartbeat] | None = None


def heartbeat(body: bytes, *, keep: bool = False) -> Heartbeat:
    """Return the body of a HEART_BEAT, decoded. Raises ProtocolError for one that is too long or cannot be decoded.

    `keep`: keep the result for one more call with the same body, as a long one takes some ms to decode.
    """
    global _kept_heartbeat
    kept = _kept_heartbeat
    if kept is not None and kept[0] is body:
        found = kept[1]
    else:
        found = _heartbeat(body)
    _kept_heartbeat = (body, found) if keep else None
    return found


def _heartbeat(body: bytes) -> Heartbeat:
    if len(body) > HEARTBEAT_BYTES_MAX:
        raise ProtocolError(f"a heartbeat of {len(body)} bytes is over the limit of {HEARTBEAT_BYTES_MAX}")
    return java_json.decode_request(body, Heartbeat)


class ConsumerList(Body):
    """Reply to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = []


class QueueBody(Body):
    """A message queue as JSON, fields in RocketMQ's order."""

    broker_name: str
    queue_id: int
    topic: str

    @classmethod
    def of(cls, queue: MessageQueue) -> QueueBody:
        """Return the wire's form of a queue."""
        return cls(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)

    def queue(self) -> MessageQueue:
        """Return the value the other layers use."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class ConsumerConnections(Body):
    """The part of the reply to GET_CONSUMER_CONNECTION_LIST (203) that members look at."""

    subscription_table: dict[str, SubscriptionBody] = {}


class LockRequest(Body):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str
    consumer_group: str
    mq_set: list[QueueBody] = []
    only_this_broker: bool = False


class LockReply(Body):
    """Reply to LOCK_BATCH_MQ: the queues this client holds now."""

    lock_ok_mq_set: list[QueueBody] = msgspec.field(name="lockOKMQSet", default_factory=list)


class OffsetTable(Body):
    """consumerOffset.json and the reply to GET_ALL_CONSUMER_OFFSET (43): "topic@group" to queue id to offset."""

    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class LightOffsetTable(OffsetTable):
    """lmqConsumerOffset.json: also the offsets of groups named %LMQ%…, by "topic@group"."""

    lmq_offset_table: dict[str, int] = {}


class ReadersTable(Body):
    """readersAnew.json, a file of our own: "topic@group" to the ids of queues that the group had read before the topic
    was deleted.

    `resets`: "topic@group" to queue id to an offset that an operator set and the consumer has not followed yet.
    """

    readers: dict[str, list[int]] = {}
    resets: dict[str, dict[int, int]] = {}


class DelayOffsetTable(Body):
    """delayOffset.json: delay level to the next queue offset to deliver."""

    offset_table: dict[int, int] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class Quarantined(Body):
    """A message that a broker of ours put into quarantine, as handling it failed: where it lies, and why. `kind`:
    delay, timer, half or pop.

    `queue_offset`: in the topic it lies in, -1 if it is not known; `attempts`: how often the broker tried to handle it;
    `group`: the group that popped it.
    """

    name: str
    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reason: str
    first_seen_ms: int
    attempts: int
    group: str = ""


class QuarantineTable(Body):
    """quarantine.json, and the reply of LIST_QUARANTINE: the quarantined messages, oldest first."""

    entries: list[Quarantined] = []
    version: int = 1


class GroupConfig(Body):
    """A consumer group's settings on one broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}


class GroupConfigList(Body):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[GroupConfig] = []


class TopicConfigList(Body):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topic_config_list: list[TopicConfig] = []


class GroupConfigTable(Body):
    """subscriptionGroup.json."""

    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class KvTable(Body):
    """A table of text values."""

    table: dict[str, str] = {}


def encode(body: Any) -> bytes:
    """Return a body as JSON, an object's fields sorted by name as RocketMQ writes them."""
    try:
        return msgspec.json.encode(body, order="sorted")
    except TypeError:
        # Keys that are numbers are sorted as text.
        return msgspec.json.encode(msgspec.to_builtins(body, str_keys=True), order="sorted")
