"""Ext fields of operators' requests: about a broker itself, its settings, statistics and queues; about users and what
they may do (access control 2.0), and the rules of 1.0.
"""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long


class RuntimeInfoHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_RUNTIME_INFO (28). `extensions`, our own, asks for values that only our brokers have."""

    extensions: bool | None = None


class ConfigReply(Header, kw_only=True, gc=False):
    """Reply to GET_BROKER_CONFIG (26). `version`: a DataVersion as JSON."""

    version: str


class StatsHeader(Header, kw_only=True, gc=False):
    """VIEW_BROKER_STATS_DATA (315): asks for one statistic by its name and the key that it is kept for."""

    name: str = field(name="statsName")
    key: str = field(name="statsKey")


class BrokerConsumeStatsHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_CONSUME_STATS (317): asks how far all groups have consumed; with `order` in ordered topics alone."""

    order: bool = field(name="isOrder", default=False)


class QueueUnitsHeader(Header, kw_only=True, gc=False):
    """QUERY_CONSUME_QUEUE (321): asks for `count` units of a consume queue from `queue_offset` on."""

    topic: str
    queue_id: Long
    queue_offset: Long = field(name="index")
    count: Long
    group: str | None = field(name="consumerGroup", default=None)


class ResumeCheckHeader(Header, kw_only=True, gc=False):
    """RESUME_CHECK_HALF_MESSAGE (323): has the half message of this offset message id checked anew."""

    topic: str | None = None
    message_id: str = field(name="msgId")


class ReadAheadHeader(Header, kw_only=True, gc=False):
    """SET_COMMITLOG_READ_MODE (2004): how the log is read ahead, a number of madvise: 0 normal, 1 random."""

    mode: Long = field(name="READ_AHEAD_MODE")


class TimerEngineHeader(Header, kw_only=True, gc=False):
    """SWITCH_TIMER_ENGINE (5001): where timer messages are kept from now on: F the wheel in files, R RocksDB."""

    engine: str = field(name="E_T")


class QuarantinedHeader(Header, kw_only=True, gc=False):
    """RETRY_QUARANTINED (7310002) and DROP_QUARANTINED (7310003). `name`: of the quarantined message in the broker's
    list.
    """

    name: str


class UserHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004): one user by
    name.

    `access_key`: not of this user but of the sender, who signed the request; None if it is not signed.
    """

    username: str | None = None
    access_key: str | None = field(name="AccessKey", default=None)


class ListUsersHeader(Header, kw_only=True, gc=False):
    """AUTH_LIST_USER (3005): asks for the users whose names contain `filter`."""

    filter: str | None = None


class SubjectHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_DELETE_ACL (3008), AUTH_GET_ACL (3009).

    `subject`: "User:name". AUTH_DELETE_ACL removes the subject's rule for `resource`, without it all of the subject's
    rules.
    """

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclHeader(Header, kw_only=True, gc=False):
    """AUTH_LIST_ACL (3010): asks for the rules whose subject and resource contain these texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class PlainAccountHeader(Header, kw_only=True, gc=False):
    """UPDATE_AND_CREATE_ACL_CONFIG (50): sets an account of access control 1.0. `topics`, `groups`:
    "name=permission,…".
    """

    access_key: str | None = None
    secret_key: str | None = None
    white_address: str | None = field(name="whiteRemoteAddress", default=None)
    admin: bool = False
    default_topic: str | None = field(name="defaultTopicPerm", default=None)
    default_group: str | None = field(name="defaultGroupPerm", default=None)
    topics: str | None = field(name="topicPerms", default=None)
    groups: str | None = field(name="groupPerms", default=None)

    def __repr__(self) -> str:
        return f"PlainAccountHeader(access_key={self.access_key!r}, …)"


class PlainAccountNameHeader(Header, kw_only=True, gc=False):
    """DELETE_ACL_CONFIG (51): removes an account by its access key."""

    access_key: str | None = None


class PlainWhiteHeader(Header, kw_only=True, gc=False):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): sets the addresses from which nobody needs an account. `addresses`:
    separated by commas; `path`: of the file of rules.
    """

    addresses: str | None = field(name="globalWhiteAddrs", default=None)
    path: str | None = field(name="aclFileFullPath", default=None)


class PlainVersionReply(Header, kw_only=True, gc=False):
    """Reply to GET_BROKER_CLUSTER_ACL_INFO (52). `version`: a DataVersion as JSON; `all_versions`: the version of each
    file of rules.
    """

    version: str
    all_versions: str | None = field(name="allAclFileVersion", default=None)
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster_name: str
