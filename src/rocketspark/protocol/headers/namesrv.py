"""Headers of the requests to a NameServer."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class RouteHeader(Header, kw_only=True, gc=False, rename={"standard_json": "acceptStandardJsonOnly"}):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    standard_json: bool = False


class RegisterBrokerHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "broker_name": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "ha_address": "haServerAddr",
        "broker_id": "brokerId",
        "expiry_ms": "heartbeatTimeoutMillis",
        "acting_master": "enableActingMaster",
        "crc": "bodyCrc32",
    },
):
    """REGISTER_BROKER (103). `expiry_ms`: how long the broker may be silent; `crc`: of the body as sent, 0 none."""

    broker_name: str
    address: str
    cluster: str
    ha_address: str = ""
    broker_id: Long
    expiry_ms: Long | None = None
    acting_master: bool | None = None
    compressed: bool = False
    crc: Long | None = None


class RegisterBrokerReply(
    Header, kw_only=True, gc=False, rename={"ha_address": "haServerAddr", "master_address": "masterAddr"}
):
    """Reply to a slave's REGISTER_BROKER: its master."""

    ha_address: str | None = None
    master_address: str | None = None


class BrokerHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "broker_name": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "broker_id": "brokerId",
    },
):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322), BROKER_HEARTBEAT (904): one broker."""

    broker_name: str
    address: str
    cluster: str
    broker_id: Long = 0


class DataVersionReply(Header, kw_only=True, gc=False):
    """Reply to QUERY_DATA_VERSION (322)."""

    changed: bool


class MemberGroupHeader(Header, kw_only=True, gc=False, rename={"cluster": "clusterName", "broker_name": "brokerName"}):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster: str
    broker_name: str


class MinBrokerIdHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "broker_id": "minBrokerId",
        "broker_name": "brokerName",
        "address": "minBrokerAddr",
        "offline_address": "offlineBrokerAddr",
        "ha_address": "haBrokerAddr",
    },
):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905): who has the lowest id of a broker name now.

    `offline_address`: of the one that had it and left; `ha_address`: the replication address of one that came.
    """

    broker_id: Long | None = None
    broker_name: str | None = None
    address: str | None = None
    offline_address: str | None = None
    ha_address: str | None = None


class DeleteTopicHeader(Header, kw_only=True, gc=False, rename={"cluster": "clusterName"}):
    """DELETE_TOPIC_IN_NAMESRV (216): on all brokers, or on those of a cluster."""

    topic: str
    cluster: str = ""


class KvHeader(Header, kw_only=True, gc=False):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102), GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
    key: str = ""
    value: str = ""


class ValueReply(Header, kw_only=True, gc=False):
    """Reply to GET_KV_CONFIG."""

    value: str | None = None


class BrokerNameHeader(Header, kw_only=True, gc=False, rename={"broker_name": "brokerName"}):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class ClusterHeader(Header, kw_only=True, gc=False):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
