"""Headers of requests about topics, and those by which the brokers of one name keep their tables equal."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class TopicHeader(Header, kw_only=True, gc=False):
    """Requests about one topic: GET_TOPIC_CONFIG (351), DELETE_TOPIC (215, 216), GET_TOPIC_STATS_INFO (202)."""

    topic: str


class CreateTopicHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "default_topic": "defaultTopic",
        "read_queue_count": "readQueueNums",
        "write_queue_count": "writeQueueNums",
        "filter_type": "topicFilterType",
        "topic_sys_flag": "topicSysFlag",
    },
):
    """UPDATE_AND_CREATE_TOPIC (17). `perm`: 2 write, 4 read; `attributes`: "+name=value,-name"."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_count: Long
    write_queue_count: Long
    perm: Long
    filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Long | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class TopicPageHeader(
    Header, kw_only=True, gc=False, rename={"start": "topicSeq", "version": "dataVersion", "count_max": "maxTopicNum"}
):
    """GET_ALL_TOPIC_CONFIG (21). `version`: the first page's, as JSON. Without any of them all topics are asked for."""

    start: Long | None = None
    version: str | None = None
    count_max: Long | None = None


class TopicPageReply(Header, kw_only=True, gc=False, rename={"total": "totalTopicNum"}):
    """Reply to GET_ALL_TOPIC_CONFIG; brokers before 5.3 tell no total and send all."""

    total: Long | None = None


class GroupPageHeader(
    Header, kw_only=True, gc=False, rename={"start": "groupSeq", "version": "dataVersion", "count_max": "maxGroupNum"}
):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): as TopicPageHeader."""

    start: Long | None = None
    version: str | None = None
    count_max: Long | None = None


class GroupPageReply(Header, kw_only=True, gc=False, rename={"total": "totalGroupNum"}):
    """Reply to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    total: Long | None = None


class KnownStateHeader(Header, kw_only=True, gc=False, rename={"known": "knownState"}):
    """GET_ALL_CONSUMER_OFFSET (43). `known`, our own: the state of the table that the asker has."""

    known: str | None = None


class StateReply(Header, kw_only=True, gc=False):
    """Reply to GET_ALL_CONSUMER_OFFSET. `state`, our own: that of the table; the known one comes without a body."""

    state: str | None = None


class HaInfoHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "ha_address": "masterHaAddress",
        "flush_offset": "masterFlushOffset",
        "master_address": "masterAddress",
    },
):
    """EXCHANGE_BROKER_HA_INFO (906): told by a master, or, without a field, asked by a slave; and the reply to that."""

    ha_address: str | None = None
    flush_offset: Long | None = None
    master_address: str | None = None


class MasterFlushOffsetHeader(Header, kw_only=True, gc=False, rename={"offset": "masterFlushOffset"}):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    offset: Long | None = None
