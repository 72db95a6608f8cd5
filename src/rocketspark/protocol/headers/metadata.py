"""Ext fields of the requests by which the brokers of one name keep their tables equal."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


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
