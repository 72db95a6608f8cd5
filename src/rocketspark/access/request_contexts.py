"""What a request needs: for each code its resources, and the actions on them of which one must be allowed.

Rules: DefaultAuthorizationContextBuilder and the annotations of the request headers, 5.5.0, in their order. Requests
that RocketMQ does not check at all stand in `FORGOTTEN`; they are checked unless `authorizationCompleteEnable=false`.
Every code that the broker serves has an entry in one of the two tables; one that had none would need the whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rocketspark.access.policies import (
    CLUSTER,
    CREATE,
    DELETE,
    GET,
    GROUP,
    LIST,
    PUB,
    SUB,
    TOPIC,
    UPDATE,
    bare_group,
    is_retry_topic,
)
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.json import bodies, java_json, pop_records
from rocketspark.protocol.json.group_bodies import GroupNames
from rocketspark.protocol.json.lite_bodies import LiteSubscriptions
from rocketspark.protocol.json.metadata import RequestMode

Actions = tuple[str, ...]


class Context(NamedTuple):
    """One thing that a request needs: that any of `actions` is allowed on a topic, a group or the cluster."""

    kind: str
    name: str
    actions: Actions

    @property
    def key(self) -> str:
        """The resource as rules write it."""
        return f"{self.kind}:{self.name}"


class RetryContext(Context):
    """What reading the retry topic of a group needs. RocketMQ only checks the group that reads."""

    __slots__ = ()


Ext = Mapping[str, str]
# The cluster's own name stands in for this one.
THIS_CLUSTER = ""
ALL_NAMES = "*"
# Topics of the broker's own where messages of all topics wait.
PARKED_TOPICS = frozenset(
    ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
)
# Where check points of popped messages of all topics wait; the name ends in the cluster's.
_REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_"
# How Java writes a name that a request does not tell.
_UNSAID = "null"
Contexts = Callable[[Ext, bytes], Iterator[Context]]


class NotReadable(Exception):
    """Raised if a request does not say which resource it is about, or names too many."""


# A group subscribes to as many at most: who locks queues of more is no consumer, and each costs a look at the rules.
LOCKED_TOPICS_MAX = 4096


def _group(name: str, *actions: str) -> Context:
    return Context(GROUP, bare_group(name), actions)


def topic_context(name: str, *actions: str) -> Context:
    """Return what an action on a topic needs; for a group's retry topic it is the right on the group."""
    return _group(name, *actions) if is_retry_topic(name) else Context(TOPIC, name, actions)


def of_parent(context: Context) -> Context:
    """Return the right on the parent topic for one on the light queue of a lite topic; any other as it is."""
    lite = lite_topics.of_queue(context.name) if context.kind == TOPIC else None
    return context if lite is None else context._replace(name=lite.parent)


def _read(topic: str, *actions: str) -> Context:
    """Return what a topic needs that a group reads."""
    return RetryContext(GROUP, bare_group(topic), actions) if is_retry_topic(topic) else Context(TOPIC, topic, actions)


def _always(kind: str, name: str, *actions: str) -> Contexts:
    """Return the contexts of requests that need the same whatever they hold."""
    context = Context(kind, name, actions)

    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        yield context

    return contexts


def _nothing(ext: Ext, body: bytes) -> Iterator[Context]:
    return iter(())


def _fields(actions: Actions, *fields: str) -> Contexts:
    """Return the contexts of header fields such as "Topic topic"; "?" after one that may be left out.

    A splitter stands last where a field holds several names.
    """
    plan = []
    for field in fields:
        kind, name, *splitter = field.split(" ")
        plan.append((kind, name.rstrip("?"), name.endswith("?"), splitter[0] if splitter else ""))

    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        for kind, name, is_optional, splitter in plan:
            value = ext.get(name)
            if value is None:
                if is_optional:
                    continue
                raise NotReadable(f"no {name}")
            for one in [part for part in value.split(splitter) if part] if splitter else (value,):
                yield topic_context(one, *actions) if kind == TOPIC else Context(kind, one, actions)

    return contexts


def _send(field: str) -> Contexts:
    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        topic = ext.get(field, _UNSAID)
        yield _group(topic, SUB) if is_retry_topic(topic) else Context(TOPIC, topic, (PUB,))

    return contexts


def _exact_topic(*actions: str) -> Contexts:
    """Return the context of a topic; one that holds retries is a topic here."""

    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        yield Context(TOPIC, ext.get("topic", _UNSAID), actions)

    return contexts


def _subscribed(*actions: str) -> Contexts:
    """Return the contexts of a queue that a group reads: the topic, or whose retries it holds, and the group."""

    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        yield _read(ext.get("topic", _UNSAID), *actions)
        yield _group(ext.get("consumerGroup", _UNSAID), *actions)

    return contexts


def _end_transaction(ext: Ext, body: bytes) -> Iterator[Context]:
    # Clients before 5.0 do not tell it.
    topic = ext.get("topic")
    if topic is not None and topic.strip():
        yield Context(TOPIC, topic, (PUB,))


def _end_of_half(ext: Ext, body: bytes) -> Iterator[Context]:
    for context in _end_transaction(ext, body):
        yield topic_context(context.name, PUB)


def _unregister(ext: Ext, body: bytes) -> Iterator[Context]:
    group = ext.get("consumerGroup")
    if group is not None and group.strip():
        yield _group(group, SUB)


def _group_field(field: str, *actions: str) -> Contexts:
    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        yield _group(ext.get(field, _UNSAID), *actions)

    return contexts


def _heartbeat(ext: Ext, body: bytes) -> Iterator[Context]:
    seen: set[str] = set()
    for consumer in bodies.heartbeat(body, keep=True).consumer_data_set:
        yield _group(consumer.group_name, SUB)
        for subscription in consumer.subscription_data_set:
            # Groups of one client often read the same topics.
            if subscription.topic not in seen:
                seen.add(subscription.topic)
                yield _read(subscription.topic, SUB)


def _lock(ext: Ext, body: bytes) -> Iterator[Context]:
    wanted = java_json.decode_request(body, bodies.LockRequest)
    yield _group(wanted.consumer_group, SUB)
    topics = dict.fromkeys(queue.topic for queue in wanted.mq_set)
    if len(topics) > LOCKED_TOPICS_MAX:
        raise NotReadable
    for topic in topics:
        yield _read(topic, SUB)


def _check_client(ext: Ext, body: bytes) -> Iterator[Context]:
    asked = java_json.decode_request(body, bodies.ClientCheck)
    yield _group(asked.group, SUB)
    if asked.subscription_data is not None:
        yield _read(asked.subscription_data.topic, SUB)


def _view(ext: Ext, body: bytes) -> Iterator[Context]:
    # Without a topic any message may be looked at.
    topic = ext.get("topic")
    yield Context(CLUSTER, THIS_CLUSTER, (GET,)) if topic is None else topic_context(topic, GET)


def _topic_list(ext: Ext, body: bytes) -> Iterator[Context]:
    for config in java_json.decode_request(body, bodies.TopicConfigList).topic_config_list:
        yield topic_context(config.topic_name, CREATE)


def _put_group(ext: Ext, body: bytes) -> Iterator[Context]:
    yield _group(java_json.decode_request(body, bodies.GroupConfig).group_name, CREATE, UPDATE)


def _put_groups(ext: Ext, body: bytes) -> Iterator[Context]:
    for config in java_json.decode_request(body, bodies.GroupConfigList).group_config_list:
        yield _group(config.group_name, CREATE, UPDATE)


def _group_states(ext: Ext, body: bytes) -> Iterator[Context]:
    for name in java_json.decode_request(body, GroupNames).groups:
        yield _group(name, GET)


def _assignment(*actions: str) -> Contexts:
    def contexts(ext: Ext, body: bytes) -> Iterator[Context]:
        asked = java_json.decode_request(body, RequestMode)
        yield _group(asked.consumer_group, *actions)
        yield _read(asked.topic, *actions)

    return contexts


def _batch_ack(ext: Ext, body: bytes) -> Iterator[Context]:
    for ack in pop_records.decode_batch_ack(body).acks or ():
        yield _group(ack.group, SUB)
        yield _read(ack.topic, SUB)


def _lite_subscriptions(ext: Ext, body: bytes) -> Iterator[Context]:
    seen: set[tuple[str | None, str | None]] = set()
    for change in java_json.decode_request(body, LiteSubscriptions).subscription_set or () if body else ():
        # Those without either are passed over.
        if change.group and change.topic and (change.group, change.topic) not in seen:
            seen.add((change.group, change.topic))
            yield _group(change.group, SUB)
            yield _read(change.topic, SUB)


def _acknowledged(ext: Ext, body: bytes) -> Iterator[Context]:
    """Return the contexts of a message that a group popped: one that came again is of its topic, for that group.

    RocketMQ takes the name of a pop's retry topic for a group's, so that who may read the topic could not acknowledge.
    """
    group, topic = ext.get("consumerGroup", _UNSAID), ext.get("topic", _UNSAID)
    yield Context(GROUP, group, (SUB,))
    prefix = RETRY_PREFIX + group
    if topic.startswith((f"{prefix}_", f"{prefix}+")):
        topic = topic[len(prefix) + 1 :]
    yield topic_context(topic, SUB)


def _clone(ext: Ext, body: bytes) -> Iterator[Context]:
    """Return the contexts of offsets that go from one group to another: of all topics where none is named."""
    yield _group(ext.get("destGroup", _UNSAID), UPDATE)
    yield _group(ext.get("srcGroup", _UNSAID), GET)
    topic = ext.get("topic")
    yield Context(TOPIC, ALL_NAMES, (UPDATE,)) if not topic else topic_context(topic, UPDATE)


_POP = _fields((SUB,), "Group consumerGroup", "Topic topic")
_READ_TOPIC = _fields((GET,), "Topic topic")
_READ_CLUSTER, _CHANGE_CLUSTER = _always(CLUSTER, THIS_CLUSTER, GET), _always(CLUSTER, THIS_CLUSTER, UPDATE)

# As RocketMQ's broker checks them.
CHECKED: dict[int, Contexts] = {
    # A proxy serves it.
    Code.GET_ROUTEINFO_BY_TOPIC: _fields((PUB, SUB, GET), "Topic topic"),
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _send("b"),
    Code.RECALL_MESSAGE: _exact_topic(PUB),
    Code.SEND_HALF_BATCH: _send("b"),
    Code.END_TRANSACTION: _end_transaction,
    Code.END_HALF_RANGES: _exact_topic(PUB),
    Code.CONSUMER_SEND_MSG_BACK: _group_field("group", SUB),
    Code.PULL_MESSAGE: _subscribed(SUB),
    Code.QUERY_MESSAGE: _exact_topic(SUB, GET),
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _group_field("consumerGroup", SUB, GET),
    Code.QUERY_CONSUMER_OFFSET: _subscribed(SUB, GET),
    Code.UPDATE_CONSUMER_OFFSET: _subscribed(SUB, UPDATE),
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.POP_MESSAGE: _POP,
    Code.ACK_MESSAGE: _POP,
    Code.PEEK_MESSAGE: _fields((SUB,), "Topic topic", "Group consumerGroup"),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    Code.NOTIFICATION: _POP,
    Code.POLLING_INFO: _fields((GET,), "Group consumerGroup", "Topic topic"),
    Code.UPDATE_AND_CREATE_TOPIC: _fields((CREATE,), "Topic topic"),
    Code.DELETE_TOPIC_IN_BROKER: _fields((DELETE,), "Topic topic"),
    Code.DELETE_SUBSCRIPTIONGROUP: _fields((DELETE,), "Group groupName"),
    Code.GET_TOPIC_CONFIG: _READ_TOPIC,
    Code.GET_TOPIC_STATS_INFO: _READ_TOPIC,
    Code.GET_MAX_OFFSET: _READ_TOPIC,
    Code.GET_MIN_OFFSET: _READ_TOPIC,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _READ_TOPIC,
    Code.GET_EARLIEST_MSG_STORETIME: _READ_TOPIC,
    Code.VIEW_MESSAGE_BY_ID: _fields((GET,), "Topic topic?"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _READ_TOPIC,
    Code.GET_CONSUME_STATS: _fields((GET,), "Group consumerGroup", "Topic topic?", "Topic topicList? ;"),
    Code.QUERY_CONSUME_TIME_SPAN: _fields((GET,), "Topic topic", "Group group"),
    Code.QUERY_CONSUME_QUEUE: _fields((GET,), "Topic topic", "Group consumerGroup?"),
    Code.QUERY_CORRECTION_OFFSET: _fields((GET,), "Group filterGroups? ,", "Group compareGroup", "Topic topic"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields((GET,), "Group group", "Topic topic"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields((GET,), "Topic topic", "Group group"),
    Code.GET_CONSUMER_CONNECTION_LIST: _fields((GET,), "Group consumerGroup"),
    Code.GET_CONSUMER_RUNNING_INFO: _fields((GET,), "Group consumerGroup"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _fields((GET,), "Group group"),
    Code.QUERY_TOPICS_BY_CONSUMER: _fields((GET,), "Group group"),
    Code.CONSUME_MESSAGE_DIRECTLY: _fields((SUB,), "Group consumerGroup", "Topic topic?"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _fields((UPDATE,), "Group group", "Topic topic"),
    Code.CLONE_GROUP_OFFSET: _fields((UPDATE,), "Group destGroup", "Topic topic?"),
    Code.RESUME_CHECK_HALF_MESSAGE: _fields((UPDATE,), "Topic topic?"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields((UPDATE,), "Group group", "Topic topic"),
    Code.GET_PRODUCER_CONNECTION_LIST: _READ_CLUSTER,
    Code.GET_ALL_PRODUCER_INFO: _READ_CLUSTER,
    Code.VIEW_BROKER_STATS_DATA: _READ_CLUSTER,
    Code.GET_BROKER_CONSUME_STATS: _READ_CLUSTER,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE_CLUSTER,
    Code.EXCHANGE_BROKER_HA_INFO: _CHANGE_CLUSTER,
    Code.RESET_MASTER_FLUSH_OFFSET: _CHANGE_CLUSTER,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE_CLUSTER,
    Code.AUTH_CREATE_USER: _CHANGE_CLUSTER,
    Code.AUTH_UPDATE_USER: _CHANGE_CLUSTER,
    Code.AUTH_DELETE_USER: _CHANGE_CLUSTER,
    Code.AUTH_GET_USER: _READ_CLUSTER,
    Code.AUTH_LIST_USER: _READ_CLUSTER,
    Code.AUTH_CREATE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_UPDATE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_DELETE_ACL: _CHANGE_CLUSTER,
    Code.AUTH_GET_ACL: _READ_CLUSTER,
    Code.AUTH_LIST_ACL: _READ_CLUSTER,
}

# What RocketMQ lets anybody do who has a signature.
FORGOTTEN: dict[int, Contexts] = {
    Code.VIEW_MESSAGE_BY_ID: _view,
    Code.LITE_PULL_MESSAGE: _subscribed(SUB),
    Code.POP_LITE_MESSAGE: _POP,
    Code.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    Code.GET_BROKER_LITE_INFO: _READ_CLUSTER,
    Code.GET_PARENT_TOPIC_INFO: _READ_TOPIC,
    Code.GET_LITE_TOPIC_INFO: _fields((GET,), "Topic parentTopic"),
    Code.GET_LITE_CLIENT_INFO: _fields((GET,), "Topic parentTopic", "Group group"),
    Code.GET_LITE_GROUP_INFO: _fields((GET,), "Group group"),
    Code.TRIGGER_LITE_DISPATCH: _fields((UPDATE,), "Group group"),
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.SEND_REPLY_MESSAGE: _send("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _send("b"),
    Code.QUERY_ASSIGNMENT: _assignment(SUB),
    Code.SET_MESSAGE_REQUEST_MODE: _assignment(UPDATE),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _fields((CREATE,), "Topic topic"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _put_groups,
    Code.GET_GROUP_STATES: _group_states,
    Code.GET_ALL_TOPIC_CONFIG: _always(TOPIC, ALL_NAMES, LIST),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _always(GROUP, ALL_NAMES, LIST),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _always(TOPIC, ALL_NAMES, LIST),
    Code.GET_BROKER_CONFIG: _READ_CLUSTER,
    Code.GET_BROKER_RUNTIME_INFO: _READ_CLUSTER,
    Code.GET_ALL_CONSUMER_OFFSET: _READ_CLUSTER,
    Code.GET_ALL_DELAY_OFFSET: _READ_CLUSTER,
    Code.GET_TIMER_CHECK_POINT: _READ_CLUSTER,
    Code.GET_TIMER_METRICS: _READ_CLUSTER,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _READ_CLUSTER,
    Code.GET_BROKER_HA_STATUS: _READ_CLUSTER,
    Code.GET_BROKER_EPOCH_CACHE: _READ_CLUSTER,
    Code.GET_BROKER_STATE: _READ_CLUSTER,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _READ_CLUSTER,
    Code.LIST_QUARANTINE: _READ_CLUSTER,
    Code.UPDATE_BROKER_CONFIG: _CHANGE_CLUSTER,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_CLUSTER,
    Code.CLEAN_UNUSED_TOPIC: _CHANGE_CLUSTER,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGE_CLUSTER,
    Code.SET_COMMITLOG_READ_MODE: _CHANGE_CLUSTER,
    Code.SWITCH_TIMER_ENGINE: _CHANGE_CLUSTER,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    Code.POP_ROLLBACK: _CHANGE_CLUSTER,
    Code.RETRY_QUARANTINED: _CHANGE_CLUSTER,
    Code.DROP_QUARANTINED: _CHANGE_CLUSTER,
}

# Where RocketMQ asks for less than the same needs by another request.
_MORE: dict[int, Contexts] = {
    Code.ACK_MESSAGE: _acknowledged,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _acknowledged,
    Code.QUERY_MESSAGE: _fields((SUB, GET), "Topic topic"),
    Code.RECALL_MESSAGE: _send("topic"),
    Code.END_HALF_RANGES: _send("topic"),
    Code.CLONE_GROUP_OFFSET: _clone,
    Code.END_TRANSACTION: _end_of_half,
}
_COMPLETE = CHECKED | FORGOTTEN | _MORE

# The fields from which alone the contexts of the most frequent requests are made, whatever else these hold.
NAMED_BY: dict[int, tuple[str, ...]] = {
    Code.SEND_MESSAGE: ("topic",),
    Code.SEND_MESSAGE_V2: ("b",),
    Code.SEND_BATCH_MESSAGE: ("b",),
    Code.SEND_HALF_BATCH: ("b",),
    Code.END_HALF_RANGES: ("topic",),
    Code.PULL_MESSAGE: ("topic", "consumerGroup"),
    Code.POP_MESSAGE: ("topic", "consumerGroup"),
    Code.ACK_MESSAGE: ("topic", "consumerGroup"),
}


def _is_parked(topic: str) -> bool:
    return topic in PARKED_TOPICS or topic.startswith(_REVIVE_TOPIC)


def of_others(context: Context) -> list[Context]:
    """Return what a topic in which messages for all topics wait needs besides: sending there is sending to any topic.

    That is the right to change, or to read, the cluster; other topics need nothing more.
    """
    if context.kind != TOPIC or not _is_parked(context.name):
        return []
    return [Context(CLUSTER, THIS_CLUSTER, (UPDATE if PUB in context.actions else GET,))]


def contexts_of(code: int, ext: Ext, body: bytes, *, complete: bool = True) -> list[Context]:
    """Return everything that a request needs. `complete`: also for requests that RocketMQ does not check.

    Raises NotReadable, or ProtocolError for a body that cannot be read.
    """
    if complete:
        found = [of_parent(context) for context in _COMPLETE.get(code, _CHANGE_CLUSTER)(ext, body)]
        parked = {c for c in found if _is_parked(c.name) and (PUB in c.actions or SUB in c.actions)}
        return [*found, *(context for each in parked for context in of_others(each))] if parked else found
    if not ext:
        return []
    return [context for context in CHECKED.get(code, _nothing)(ext, body) if type(context) is not RetryContext]
