"""JSON bodies about lite topics: subscriptions, and what operators are told. Rule: an unknown value is left out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import Body
from rocketspark.protocol.json.group_bodies import QueueStats

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class LiteAction(StrEnum):
    """What a subscription request does: to the lite topics that it names, or to all of a client."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetOptionType(StrEnum):
    """Where a subscription begins: by policy, at an offset, some messages back, or at a time."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


# Values of the type POLICY: where the group was, at the oldest message, behind the newest.
POLICY_LAST, POLICY_MIN, POLICY_MAX = 0, 1, 2


class OffsetOption(Body):
    """Where a subscription begins. `value`: a policy, an offset, a count or a time in ms."""

    type: OffsetOptionType | None = None
    value: _Long = 0


class LiteSubscription(Body):
    """A change of a client's subscription. `version`: counts a client's changes."""

    action: LiteAction | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: _Long = 0


class LiteSubscriptions(Body):
    """Body of LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: list[LiteSubscription] | None = None


class BrokerLiteInfo(Body):
    """Reply to GET_BROKER_LITE_INFO (200074).

    `topic_meta`: minutes after which lite topics expire, by parent topic; `group_meta`: groups by parent topic.
    """

    store_type: str | None = None
    max_lmq_num: _Int = 0
    current_lmq_num: _Int = 0
    lite_subscription_count: _Int = 0
    order_info_count: _Int = 0
    cq_table_size: _Int = 0
    offset_table_size: _Int = 0
    event_map_size: _Int = 0
    topic_meta: dict[str, _Int] | None = None
    group_meta: dict[str, list[str]] | None = None


class ListedLiteTopic(Body):
    """A lite topic in a list of ours: its range, when its newest message was stored, in ms, and its subscribers."""

    lite_topic: str = ""
    min_offset: _Long = 0
    max_offset: _Long = 0
    last_update_timestamp: _Long = 0
    subscriber_count: _Int = 0


class ParentTopicInfo(Body):
    """Reply to GET_PARENT_TOPIC_INFO (200075). `ttl`: minutes, -1 for ever; `listed`: what a request of ours asked for,
    which RocketMQ's brokers do not tell.
    """

    topic: str | None = None
    ttl: _Int = 0
    groups: list[str] | None = None
    lmq_num: _Int = 0
    lite_topic_count: _Int = 0
    listed: list[ListedLiteTopic] | None = None


class LiteClient(Body):
    """A client of a group that subscribed to a lite topic."""

    client_id: str | None = None
    group: str | None = None


class LiteTopicOffset(Body):
    """The range of a lite topic, and when its newest message was stored, in ms, 0 for none."""

    min_offset: _Long = 0
    max_offset: _Long = 0
    last_update_timestamp: _Long = 0


class LiteTopicInfo(Body):
    """Reply to GET_LITE_TOPIC_INFO (200076). `sharding_to_broker`: whether sends of it go to this broker."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: list[LiteClient] | None = None
    topic_offset: LiteTopicOffset | None = None
    sharding_to_broker: bool = False


class LiteClientInfo(Body):
    """Reply to GET_LITE_CLIENT_INFO (200077). `lite_topic_count` -1: the client has no subscription; times in ms,
    -1 for unknown; the names are those of light queues.
    """

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: _Long = 0
    last_consume_time: _Long = 0
    lite_topic_count: _Int = 0
    lite_topic_set: list[str] | None = None


class LiteLag(Body):
    """How far a group is behind in a lite topic. `earliest_unconsumed_timestamp`: in ms, -1 for unknown."""

    lite_topic: str = ""
    lag_count: _Long = 0
    earliest_unconsumed_timestamp: _Long = -1


class LiteGroupInfo(Body):
    """Reply to GET_LITE_GROUP_INFO (200078)."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: _Long = -1
    total_lag_count: _Long = 0
    lite_topic_offset_wrapper: QueueStats | None = None
    lag_count_top_k: list[LiteLag] | None = msgspec.field(name="lagCountTopK", default=None)
    lag_timestamp_top_k: list[LiteLag] | None = msgspec.field(name="lagTimestampTopK", default=None)


def encode(body: Body) -> bytes:
    """Return a body as JSON, without what is unknown, as RocketMQ writes it."""
    return bodies.encode(_known(msgspec.to_builtins(body)))


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items() if each is not None}
    return [_known(each) for each in value] if isinstance(value, list) else value
