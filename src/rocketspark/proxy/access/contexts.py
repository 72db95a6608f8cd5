"""What each call needs: its resources, and the actions on them of which one must be allowed. Pure.

Rules: those of 5.5.0's proxy, and where it asks for less than for the same request by remoting, what that needs. Every
call that is served stands here; one that does not would need the whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rocketspark.access.request_contexts import THIS_CLUSTER, Context, of_others, topic_context
from rocketspark.access.resources import CLUSTER, GROUP, PUB, SUB, TOPIC, UPDATE, bare_group, is_retry_topic
from rocketspark.proxy.wire.codes import ClientType

Contexts = Callable[[Any], Iterator[Context]]
_CONSUMERS = frozenset(
    (
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    )
)


def _group(name: str) -> Context:
    return Context(GROUP, bare_group(name), (SUB,))


def _sent(topic: str) -> Context:
    """Return what sending to a topic needs; who puts into a group's retries is one of the group."""
    return _group(topic) if is_retry_topic(topic) else Context(TOPIC, topic, (PUB,))


def _send(request: Any) -> Iterator[Context]:
    for name in dict.fromkeys(message.topic.name for message in request.messages):
        yield _sent(name)


def _topic_sent(request: Any) -> Iterator[Context]:
    yield _sent(request.topic.name)


def _consumed(request: Any) -> Iterator[Context]:
    yield _group(request.group.name)
    yield topic_context(request.topic.name, SUB)


def _received(request: Any) -> Iterator[Context]:
    yield _group(request.group.name)
    yield topic_context(request.message_queue.topic.name, SUB)


def _route(request: Any) -> Iterator[Context]:
    yield topic_context(request.topic.name, PUB, SUB)


def _heartbeat(request: Any) -> Iterator[Context]:
    if request.client_type in _CONSUMERS or request.group.name:
        yield _group(request.group.name)


def _ended(request: Any) -> Iterator[Context]:
    if request.group.name:
        yield _group(request.group.name)


def _told(command: Any) -> Iterator[Context]:
    if command.WhichOneof("command") != "settings":
        return
    for topic in command.settings.publishing.topics:
        yield _sent(topic.name)
    if command.settings.HasField("subscription"):
        yield _group(command.settings.subscription.group.name)
        for entry in command.settings.subscription.subscriptions:
            yield topic_context(entry.topic.name, SUB)


_OF: dict[str, Contexts] = {
    "QueryRoute": _route,
    "QueryAssignment": _consumed,
    "SendMessage": _send,
    "RecallMessage": _topic_sent,
    "EndTransaction": _topic_sent,
    "ReceiveMessage": _received,
    "AckMessage": _consumed,
    "ChangeInvisibleDuration": _consumed,
    "ForwardMessageToDeadLetterQueue": _consumed,
    "Heartbeat": _heartbeat,
    "NotifyClientTermination": _ended,
    "SyncLiteSubscription": _consumed,
    "Telemetry": _told,
}
RPCS = frozenset(_OF)


def contexts_of(rpc: str, request: Any) -> list[Context]:
    """Return all that a call needs."""
    find = _OF.get(rpc)
    if find is None:
        return [Context(CLUSTER, THIS_CLUSTER, (UPDATE,))]
    found = list(find(request))
    return [*found, *(context for each in found for context in of_others(each))]
