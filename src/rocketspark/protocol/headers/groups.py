"""Headers of the requests about groups and live clients, as an operator makes them."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class GroupHeader(Header, kw_only=True, gc=False):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class ConsumerStatsHeader(Header, kw_only=True, gc=False, rename={"group": "consumerGroup"}):
    """GET_CONSUME_STATS (208)."""

    group: str
    topic: str | None = None


class ProducerGroupHeader(Header, kw_only=True, gc=False, rename={"group": "producerGroup"}):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    group: str


class DeleteGroupHeader(Header, kw_only=True, gc=False, rename={"group": "groupName", "clean_offsets": "cleanOffset"}):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group: str
    clean_offsets: bool = False


class GroupTopicHeader(Header, kw_only=True, gc=False):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345), QUERY_CONSUME_TIME_SPAN (303)."""

    group: str
    topic: str | None = None


class ForbiddenHeader(Header, kw_only=True, gc=False):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). `readable` None only asks."""

    group: str
    topic: str
    readable: bool | None = None


class CloneOffsetsHeader(Header, kw_only=True, gc=False, rename={"source": "srcGroup", "target": "destGroup"}):
    """CLONE_GROUP_OFFSET (314)."""

    source: str
    target: str
    topic: str | None = None
    offline: bool = False


class CorrectionHeader(Header, kw_only=True, gc=False, rename={"filtered": "filterGroups", "compared": "compareGroup"}):
    """QUERY_CORRECTION_OFFSET (308). `filtered`: comma list of groups to leave out."""

    filtered: str | None = None
    compared: str
    topic: str


class ResetOffsetHeader(
    Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "time_ms": "timestamp", "force": "isForce"}
):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220). `time_ms` -1: the end of each queue."""

    group: str
    topic: str
    queue_id: Long = -1
    offset: Long | None = None
    time_ms: Long = -1
    force: bool = False


class ConsumerStatusHeader(Header, kw_only=True, gc=False, rename={"client": "clientAddr"}):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client: str | None = None


class RunningInfoHeader(
    Header, kw_only=True, gc=False, rename={"group": "consumerGroup", "client_id": "clientId", "stacks": "jstackEnable"}
):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    group: str
    client_id: str
    stacks: bool = False


class ConsumeDirectlyHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "client_id": "clientId",
        "message_id": "msgId",
        "broker_name": "brokerName",
        "topic_sys_flag": "topicSysFlag",
        "group_sys_flag": "groupSysFlag",
    },
):
    """CONSUME_MESSAGE_DIRECTLY (309). `message_id`: an offset message id."""

    group: str
    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Long | None = None
    group_sys_flag: Long | None = None
