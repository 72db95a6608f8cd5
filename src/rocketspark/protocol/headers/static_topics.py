"""Headers of requests about a queue that may be a static topic's logical queue. Rule: only a broker with static topics
decodes these.

They have `lo` besides the fields of the usual headers: false in a request from one broker to another, which is about
that broker's own queue.
"""

from __future__ import annotations

from rocketspark.protocol.headers.groups import (
    MaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from rocketspark.protocol.headers.messages import PullHeader
from rocketspark.protocol.headers.topics import TopicHeader


class PartPullHeader(PullHeader, kw_only=True, gc=False):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class PartQueryHeader(QueryConsumerOffsetHeader, kw_only=True, gc=False):
    """QUERY_CONSUMER_OFFSET (14) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class PartUpdateHeader(UpdateConsumerOffsetHeader, kw_only=True, gc=False):
    """UPDATE_CONSUMER_OFFSET (15) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class PartMaxHeader(MaxOffsetHeader, kw_only=True, gc=False):
    """GET_MAX_OFFSET (30) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class PartQueueHeader(QueueHeader, kw_only=True, gc=False):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class PartSearchHeader(SearchOffsetHeader, kw_only=True, gc=False):
    """SEARCH_OFFSET_BY_TIMESTAMP (29) for a queue that may be part of a logical queue."""

    lo: bool | None = None


class TopicConfigHeader(TopicHeader, kw_only=True, gc=False):
    """GET_TOPIC_CONFIG (351): asks for a topic's settings; `lo`: with the mapping of a static topic."""

    lo: bool | None = None
