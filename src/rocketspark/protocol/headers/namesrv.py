"""Headers of the requests to a NameServer."""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long


class RouteHeader(Header, kw_only=True, gc=False):
    """GET_ROUTEINFO_BY_TOPIC (105): asks which brokers have a topic."""

    topic: str
    standard_json: bool = field(name="acceptStandardJsonOnly", default=False)
    # Of whoever wants brokers of its own zone alone: `zone_mode` "true".
    zone: str | None = field(name="__ZONE_NAME", default=None)
    zone_mode: str | None = field(name="__ZONE_MODE", default=None)


class RegisterBrokerHeader(Header, kw_only=True, gc=False):
    """REGISTER_BROKER (103). `expiry_ms`: how long the broker may be silent; `crc`: of the body as sent, 0 none."""

    broker_name: str
    address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    ha_address: str = field(name="haServerAddr", default="")
    broker_id: Long
    expiry_ms: Long | None = field(name="heartbeatTimeoutMillis", default=None)
    acting_master: bool | None = field(name="enableActingMaster", default=None)
    compressed: bool = False
    crc: Long | None = field(name="bodyCrc32", default=None)
    zone: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerReply(Header, kw_only=True, gc=False):
    """Reply to a slave's REGISTER_BROKER: its master."""

    ha_address: str | None = field(name="haServerAddr", default=None)
    master_address: str | None = field(name="masterAddr", default=None)


class BrokerHeader(Header, kw_only=True, gc=False):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322), BROKER_HEARTBEAT (904): one broker."""

    broker_name: str
    address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: Long = 0


class DataVersionReply(Header, kw_only=True, gc=False):
    """Reply to QUERY_DATA_VERSION (322): whether the broker's table differs from the one registered, so that it has to
    register again.
    """

    changed: bool


class MemberGroupHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_MEMBER_GROUP (901): asks for the addresses of all brokers of one name."""

    cluster: str = field(name="clusterName")
    broker_name: str


class MinBrokerIdHeader(Header, kw_only=True, gc=False):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905): which broker has the lowest id of a broker name now.

    `offline_address`: of the broker that had it before and is gone; `ha_address`: the replication address of a broker
    that came.
    """

    broker_id: Long | None = field(name="minBrokerId", default=None)
    broker_name: str | None = None
    address: str | None = field(name="minBrokerAddr", default=None)
    offline_address: str | None = field(name="offlineBrokerAddr", default=None)
    ha_address: str | None = field(name="haBrokerAddr", default=None)


class DeleteTopicHeader(Header, kw_only=True, gc=False):
    """DELETE_TOPIC_IN_NAMESRV (216): removes a topic from the routes of all brokers, or of those of one cluster."""

    topic: str
    cluster: str = field(name="clusterName", default="")


class KvHeader(Header, kw_only=True, gc=False):
    """A value of a namespace: PUT_, GET_ and DELETE_KV_CONFIG (100 to 102), or all: GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
    key: str = ""
    value: str = ""


class ValueReply(Header, kw_only=True, gc=False):
    """Reply to GET_KV_CONFIG (101): the value."""

    value: str | None = None


class BrokerNameHeader(Header, kw_only=True, gc=False):
    """WIPE_WRITE_PERM_OF_BROKER (205): producers shall not send to the brokers of a name any more; 327: they may
    again.
    """

    broker_name: str


class ClusterHeader(Header, kw_only=True, gc=False):
    """GET_TOPICS_BY_CLUSTER (224): asks for the topics on the brokers of a cluster."""

    cluster: str
