"""What a request asks for in access control 1.0 (rule: PlainAccessResource.parse). Pure.

Requests that are not named here need a right signature and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketspark.broker.access.plain_acl.permissions import PUB, RETRY_PREFIX, SUB, in_java_order, retry_topic
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import heartbeat

# Names of topic and group in the ext fields.
_SENDS = {
    RequestCode.SEND_MESSAGE: ("topic", "group"),
    RequestCode.SEND_MESSAGE_V2: ("b", "a"),
    RequestCode.SEND_BATCH_MESSAGE: ("b", "a"),
    RequestCode.SEND_HALF_BATCH: ("b", "a"),
    RequestCode.END_HALF_RANGES: ("topic", "producerGroup"),
}
_GROUPS = {
    RequestCode.CONSUMER_SEND_MSG_BACK: "group",
    RequestCode.PULL_MESSAGE: "consumerGroup",
    RequestCode.UNREGISTER_CLIENT: "consumerGroup",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup",
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumerGroup",
}
_TOPICS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET})

_SAME: dict[int, int] = {RequestCode.LITE_PULL_MESSAGE: RequestCode.PULL_MESSAGE}


def resources(code: int, ext: Mapping[str, str], body: bytes, *, complete: bool = False) -> dict[str, int]:
    """Return the permission that a request needs on each topic and group, groups by their retry topics.

    `complete`: requests that do what a checked one does, and that RocketMQ does not check, count as that one. Raises
    ProtocolError for a heartbeat that cannot be read.
    """
    if complete:
        code = _SAME.get(code, code)
    if code == RequestCode.HEART_BEAT:
        needed = _of_heartbeat(body)
    elif code in _SENDS:
        needed = _of_send(ext, *_SENDS[RequestCode(code)])
    else:
        needed = {}
        if code in _TOPICS and "topic" in ext:
            needed[ext["topic"]] = SUB
        group = ext.get(_GROUPS.get(code, ""))  # type: ignore[call-overload]
        if group is not None:
            needed[retry_topic(group)] = SUB
    if len(needed) < 2:
        return needed
    return {name: needed[name] for name in in_java_order(needed)}


def _of_send(ext: Mapping[str, str], topic_name: str, group_name: str) -> dict[str, int]:
    topic = ext.get(topic_name)
    if topic is None:
        return {}
    if not topic.startswith(RETRY_PREFIX):
        return {topic: PUB}
    group = ext.get(group_name)
    return {} if group is None else {retry_topic(group): SUB}


def _of_heartbeat(body: bytes) -> dict[str, int]:
    needed = {}
    for consumer in heartbeat(body).consumer_data_set:
        needed[retry_topic(consumer.group_name)] = SUB
        for subscription in consumer.subscription_data_set:
            needed[subscription.topic] = SUB
    return needed
