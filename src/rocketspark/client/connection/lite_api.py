"""Calls of consumers and operators of lite topics, on one broker. Rule: as in client_api."""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.client.connection.pop_api import POP_RESULTS
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    LiteClientInfoHeader,
    LiteGroupInfoHeader,
    LiteTopicInfoHeader,
    ParentTopicInfoHeader,
    PopLiteHeader,
    PopLiteReply,
    TriggerLiteDispatchHeader,
)
from rocketspark.protocol.json import java_json, lite_bodies
from rocketspark.protocol.json.lite_bodies import (
    BrokerLiteInfo,
    LiteClientInfo,
    LiteGroupInfo,
    LiteSubscription,
    LiteSubscriptions,
    LiteTopicInfo,
    ParentTopicInfo,
)
from rocketspark.transport.peer import Peer


class LitePopResult(NamedTuple):
    """A reply to a pop of lite topics: `code` (messages found, none in time, or too many requests wait at the broker),
    its header, the raw records.
    """

    code: int
    header: PopLiteReply
    records: bytes


async def pop(broker: Peer, header: PopLiteHeader, *, timeout_ms: float) -> LitePopResult:
    """Pop messages of the lite topics that a client subscribed to."""
    reply = await broker.request(RequestCode.POP_LITE_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"pop of lite topics of {header.topic!r}", *POP_RESULTS)
    return LitePopResult(reply.code, reply.header(PopLiteReply), reply.body)


async def subscribe(broker: Peer, change: LiteSubscription, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change which lite topics a client reads. Raises ServerError: 2018 for more than the broker takes."""
    body = lite_bodies.encode(LiteSubscriptions(subscription_set=[change]))
    reply = await broker.request(RequestCode.LITE_SUBSCRIPTION_CTL, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"subscription to lite topics of {change.topic!r}")


# -- operators ---------------------------------------------------------------------------------------------------------


async def parent_info(
    broker: Peer,
    topic: str,
    listed_max: int = 0,
    after: str = "",
    part: str = "",
    *,
    timeout_ms: float = TIMEOUT_MS,
) -> ParentTopicInfo:
    """Return how many lite topics a topic has on one broker, and its groups. Brokers of ours also list `listed_max` of
    the lite topics: by name, those `after` a name, with `part` in theirs.
    """
    header = ParentTopicInfoHeader(topic=topic, listed_max=listed_max, after=after or None, part=part or None)
    reply = await broker.request(RequestCode.GET_PARENT_TOPIC_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"lite topics of {topic!r}")
    return java_json.decode(reply.body, ParentTopicInfo)


async def topic_info(broker: Peer, topic: str, name: str, *, timeout_ms: float = TIMEOUT_MS) -> LiteTopicInfo:
    """Return the offsets and the subscribers of one lite topic."""
    header = LiteTopicInfoHeader(parent_topic=topic, lite_topic=name)
    reply = await broker.request(RequestCode.GET_LITE_TOPIC_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"lite topic {name!r} of {topic!r}")
    return java_json.decode(reply.body, LiteTopicInfo)


async def client_info(
    broker: Peer, topic: str, group: str, client_id: str, *, count_max: int, timeout_ms: float = TIMEOUT_MS
) -> LiteClientInfo:
    """Return what a client of a group subscribed to, `count_max` light queues at most."""
    header = LiteClientInfoHeader(parent_topic=topic, group=group, client_id=client_id, count_max=count_max)
    reply = await broker.request(RequestCode.GET_LITE_CLIENT_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"lite topics of client {client_id!r}")
    return java_json.decode(reply.body, LiteClientInfo)


async def broker_info(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> BrokerLiteInfo:
    """Return how much a broker has of lite topics."""
    reply = await broker.request(RequestCode.GET_BROKER_LITE_INFO, None, timeout_ms=timeout_ms)
    reply.raise_for_code("the broker's lite topics")
    return java_json.decode(reply.body, BrokerLiteInfo)


async def dispatch(broker: Peer, group: str, client_id: str | None, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Have a broker look through the lite topics of a client, or of all clients of a group."""
    header = TriggerLiteDispatchHeader(group=group, client_id=client_id)
    reply = await broker.request(RequestCode.TRIGGER_LITE_DISPATCH, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"a look through the lite topics of group {group!r}")


async def group_info(
    broker: Peer, group: str, *, lite_topic: str = "", count_max: int = 0, timeout_ms: float = TIMEOUT_MS
) -> LiteGroupInfo:
    """Return how far a group is behind: in one lite topic, or in all, with the `count_max` in which it is farthest."""
    header = LiteGroupInfoHeader(group=group, lite_topic=lite_topic or None, top_k=count_max)
    reply = await broker.request(RequestCode.GET_LITE_GROUP_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"lag of group {group!r} in lite topics")
    return java_json.decode(reply.body, LiteGroupInfo)
