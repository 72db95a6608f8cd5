"""Which permissions a request needs in access control 1.0 (rule: PlainAccessResource.parse). Pure.

RocketMQ asks for nothing but a right signature in requests that its rules do not name. Its 1.0 does not know pop, so
whoever can sign may pop every topic. `forgotten` tells what such requests need here, by the table of access control
2.0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketspark.access.policies import CLUSTER, GROUP, UPDATE
from rocketspark.access.policies import PUB as MAY_PUBLISH
from rocketspark.access.policies import SUB as MAY_SUBSCRIBE
from rocketspark.access.request_contexts import Context, contexts_of, of_others, of_parent, topic_context
from rocketspark.broker.access.plain_acl.rules import PUB, RETRY_PREFIX, SUB, in_java_order, retry_resource
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
    """Return the permission that a request needs on each topic and group, groups under the names of their retry topics.

    `complete`: a request that RocketMQ does not check, though it does the same as one that it checks, needs the same
    permission. Raises ProtocolError for a heartbeat that cannot be read.
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
            needed[retry_resource(group)] = SUB
    return _in_order(needed)


class Needed(NamedTuple):
    """What a request needs beyond RocketMQ's rules: permissions on topics and groups; `admin`: an admin's account."""

    resources: dict[str, int]
    admin: bool = False


# What `resources` says of these is all that they need, but where a topic holds what is another's.
_WHOLE = frozenset({*_SENDS, *_TOPICS, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT})
# A slave asks so where its master is; whoever tells an address has it taken.
_MASTERS_ADDRESS = "masterHaAddress"


def forgotten(code: int, ext: Mapping[str, str], body: bytes, stored: Iterable[Context] = ()) -> Needed:
    """Return what a request needs that RocketMQ's 1.0 does not ask for: the same as in access control 2.0.

    Access control 1.0 has two permissions only: a request that sends needs PUB, one that reads or acknowledges SUB.
    Figures of topics, groups and the broker are shown to whoever can sign. A request that changes the cluster, or names
    a topic in which messages of all topics wait, needs an administrator. `stored`: the rights needed on the stored
    message that the request names by its physical offset. Raises NotReadable or ProtocolError.
    """
    found = _asked(code, ext, body)
    needed: dict[str, int] = {}
    admin = any(UPDATE in context.actions for context in found if context.kind == CLUSTER)
    # A stored message is read whatever is done with it, but for the end of a half message.
    reads = [context for context in found if MAY_SUBSCRIBE in context.actions]
    sends = [context for context in (*found, *stored) if MAY_PUBLISH in context.actions]
    reads += [context for context in stored if MAY_PUBLISH not in context.actions and context.kind != CLUSTER]
    for permission, contexts in ((SUB, reads), (PUB, sends)):
        for context in contexts:
            admin = admin or bool(of_others(context))
            if context.kind == GROUP:
                needed[retry_resource(context.name)] = SUB
            else:
                needed[context.name] = permission
    return Needed(_in_order(needed), admin)


def _asked(code: int, ext: Mapping[str, str], body: bytes) -> list[Context]:
    if code == RequestCode.HEART_BEAT or (code == RequestCode.EXCHANGE_BROKER_HA_INFO and _MASTERS_ADDRESS not in ext):
        return []
    if code not in _WHOLE:
        return contexts_of(code, ext, body)
    name = ext.get(_SENDS[RequestCode(code)][0] if code in _SENDS else "topic", "")
    found = of_parent(topic_context(name, MAY_PUBLISH if code in _SENDS else MAY_SUBSCRIBE))
    return [found] if found.kind == GROUP or found.name != name or of_others(found) else []


def _in_order(needed: dict[str, int]) -> dict[str, int]:
    return needed if len(needed) < 2 else {name: needed[name] for name in in_java_order(needed)}


def _of_send(ext: Mapping[str, str], topic_name: str, group_name: str) -> dict[str, int]:
    topic = ext.get(topic_name)
    if topic is None:
        return {}
    if not topic.startswith(RETRY_PREFIX):
        return {topic: PUB}
    group = ext.get(group_name)
    return {} if group is None else {retry_resource(group): SUB}


def _of_heartbeat(body: bytes) -> dict[str, int]:
    needed = {}
    for consumer in heartbeat(body, keep=True).consumer_data_set:
        needed[retry_resource(consumer.group_name)] = SUB
        for subscription in consumer.subscription_data_set:
            needed[subscription.topic] = SUB
    return needed
