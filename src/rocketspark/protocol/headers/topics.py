"""Headers of requests about topics, and those by which the brokers of one name keep their tables equal."""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long


class TopicHeader(Header, kw_only=True, gc=False):
    """Requests about one topic: GET_TOPIC_CONFIG (351), DELETE_TOPIC (215, 216), GET_TOPIC_STATS_INFO (202)."""

    topic: str


class CreateTopicHeader(Header, kw_only=True, gc=False):
    """UPDATE_AND_CREATE_TOPIC (17). `perm`: 2 write, 4 read; `attributes`: "+name=value,-name"."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_count: Long = field(name="readQueueNums")
    write_queue_count: Long = field(name="writeQueueNums")
    perm: Long
    filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    topic_sys_flag: Long | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class TopicPageHeader(Header, kw_only=True, gc=False):
    """GET_ALL_TOPIC_CONFIG (21): asks for a page of the topics; without any of these fields, for all. `version`: that
    of the first page, as JSON.
    """

    start: Long | None = field(name="topicSeq", default=None)
    version: str | None = field(name="dataVersion", default=None)
    count_max: Long | None = field(name="maxTopicNum", default=None)


class TopicPageReply(Header, kw_only=True, gc=False):
    """Reply to GET_ALL_TOPIC_CONFIG (21). `total`: the number of all topics; None from brokers before 5.3, which send
    all at once.
    """

    total: Long | None = field(name="totalTopicNum", default=None)


class GroupPageHeader(Header, kw_only=True, gc=False):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): as TopicPageHeader."""

    start: Long | None = field(name="groupSeq", default=None)
    version: str | None = field(name="dataVersion", default=None)
    count_max: Long | None = field(name="maxGroupNum", default=None)


class GroupPageReply(Header, kw_only=True, gc=False):
    """Reply to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): how many groups there are."""

    total: Long | None = field(name="totalGroupNum", default=None)


class KnownStateHeader(Header, kw_only=True, gc=False):
    """GET_ALL_CONSUMER_OFFSET (43). `known`, our own: the state of the table that the sender has already."""

    known: str | None = field(name="knownState", default=None)


class StateReply(Header, kw_only=True, gc=False):
    """Reply to GET_ALL_CONSUMER_OFFSET (43). `state`, our own: the state of the table; if the sender has it already
    there is no body.
    """

    state: str | None = None


class StateHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_STATE, our own. `ends_after`: the sender wants the ends of queues without messages, of topics after
    this name.
    """

    ends_after: str | None = None


class HaInfoHeader(Header, kw_only=True, gc=False):
    """EXCHANGE_BROKER_HA_INFO (906): a master tells a slave these fields, or a slave asks for them by a request without
    any; also the reply to that.
    """

    ha_address: str | None = field(name="masterHaAddress", default=None)
    flush_offset: Long | None = field(name="masterFlushOffset", default=None)
    master_address: str | None = None


class MasterFlushOffsetHeader(Header, kw_only=True, gc=False):
    """RESET_MASTER_FLUSH_OFFSET (908): a master tells a slave up to which position its log is on the disk."""

    offset: Long | None = field(name="masterFlushOffset", default=None)
