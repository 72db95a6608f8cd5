"""Headers of the requests about topics."""

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
