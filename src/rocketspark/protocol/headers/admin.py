"""Ext fields of operators' requests: about a broker itself, its settings, statistics and queues; about users and what
they may do (access control 2.0), and the rules of 1.0.
"""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class RuntimeInfoHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_RUNTIME_INFO (28). `extensions`, our own, asks for values that only our brokers have."""

    extensions: bool | None = None


class ConfigReply(Header, kw_only=True, gc=False):
    """Reply to GET_BROKER_CONFIG (26). `version`: a DataVersion as JSON."""

    version: str


class StatsHeader(Header, kw_only=True, gc=False, rename={"name": "statsName", "key": "statsKey"}):
    """VIEW_BROKER_STATS_DATA (315)."""

    name: str
    key: str


class BrokerConsumeStatsHeader(Header, kw_only=True, gc=False, rename={"order": "isOrder"}):
    """GET_BROKER_CONSUME_STATS (317). `order`: topics whose messages keep an order only."""

    order: bool = False


class QueueUnitsHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={"queue_id": "queueId", "queue_offset": "index", "group": "consumerGroup"},
):
    """QUERY_CONSUME_QUEUE (321): `count` units from `queue_offset` on."""

    topic: str
    queue_id: Long
    queue_offset: Long
    count: Long
    group: str | None = None


class ResumeCheckHeader(Header, kw_only=True, gc=False, rename={"message_id": "msgId"}):
    """RESUME_CHECK_HALF_MESSAGE (323). `message_id`: an offset message id."""

    topic: str | None = None
    message_id: str


class ReadAheadHeader(Header, kw_only=True, gc=False, rename={"mode": "READ_AHEAD_MODE"}):
    """SET_COMMITLOG_READ_MODE (2004). `mode`: madvise's number, 0 for normal, 1 for random."""

    mode: Long


class TimerEngineHeader(Header, kw_only=True, gc=False, rename={"engine": "E_T"}):
    """SWITCH_TIMER_ENGINE (5001). `engine`: F for the wheel in files, R for RocksDB."""

    engine: str


class QuarantinedHeader(Header, kw_only=True, gc=False):
    """RETRY_QUARANTINED (7310002) and DROP_QUARANTINED (7310003). `name`: of a quarantined message."""

    name: str


class UserHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004)."""

    username: str | None = None


class ListUsersHeader(Header, kw_only=True, gc=False):
    """AUTH_LIST_USER (3005). `filter`: part of a name."""

    filter: str | None = None


class SubjectHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_GET_ACL (3009). `subject`: "User:name"."""

    subject: str | None = None


class DeleteAclHeader(Header, kw_only=True, gc=False, rename={"policy_type": "policyType"}):
    """AUTH_DELETE_ACL (3008). Without `resource` everything the subject has."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclHeader(
    Header, kw_only=True, gc=False, rename={"subject_filter": "subjectFilter", "resource_filter": "resourceFilter"}
):
    """AUTH_LIST_ACL (3010): parts of subjects and of resources."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class PlainAccountHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "access_key": "accessKey",
        "secret_key": "secretKey",
        "white_address": "whiteRemoteAddress",
        "default_topic": "defaultTopicPerm",
        "default_group": "defaultGroupPerm",
        "topics": "topicPerms",
        "groups": "groupPerms",
    },
):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). `topics`, `groups`: name=permission, with commas between."""

    access_key: str | None = None
    secret_key: str | None = None
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: str | None = None
    groups: str | None = None

    def __repr__(self) -> str:
        return f"PlainAccountHeader(access_key={self.access_key!r}, …)"


class PlainAccountNameHeader(Header, kw_only=True, gc=False, rename={"access_key": "accessKey"}):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str | None = None


class PlainWhiteHeader(
    Header, kw_only=True, gc=False, rename={"addresses": "globalWhiteAddrs", "path": "aclFileFullPath"}
):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53). `addresses`: with commas between; `path`: of the file of rules."""

    addresses: str | None = None
    path: str | None = None


class PlainVersionReply(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "all_versions": "allAclFileVersion",
        "broker_name": "brokerName",
        "broker_address": "brokerAddr",
        "cluster_name": "clusterName",
    },
):
    """Reply to GET_BROKER_CLUSTER_ACL_INFO (52). `version`: a DataVersion as JSON, `all_versions`: one of each file."""

    version: str
    all_versions: str | None = None
    broker_name: str
    broker_address: str
    cluster_name: str
