"""Headers of the requests to a controller, of its replies, and of what it tells brokers."""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long

# In place of a broker's id: the controller itself asks for an election.
CONTROLLER_ASKS = -1


class ControllerMetadataReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_GET_METADATA_INFO (1005). `peers`: "n0:host:port;" of each node."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str = ""


class BrokerSetHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012), and the replies to 1012 and 1013: names one set of replicas, the brokers of
    one name.
    """

    cluster_name: str = ""
    broker_name: str


class NextBrokerIdReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_GET_NEXT_BROKER_ID (1012): the id that the set's next broker may apply for."""

    cluster_name: str = ""
    broker_name: str = ""
    next_broker_id: Long


class ApplyBrokerIdHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_APPLY_BROKER_ID (1013). `register_check_code`: the broker's address, ";", and when it asked (ms)."""

    cluster_name: str = ""
    broker_name: str
    applied_broker_id: Long
    register_check_code: str


class RegisterToControllerHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_REGISTER_BROKER (1003): tells the address of a broker that has applied for its id before."""

    cluster_name: str = ""
    broker_name: str
    broker_id: Long
    broker_address: str
    invoke_time: Long | None = None


class RegisterToControllerReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_REGISTER_BROKER (1003): the set's master, if it is alive, and its epochs."""

    cluster_name: str = ""
    broker_name: str = ""
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Long | None = None
    sync_state_set_epoch: Long | None = None
    awaits_word: bool | None = None


class ReplicaHeartbeatHeader(Header, kw_only=True, gc=False):
    """BROKER_HEARTBEAT (904) to a controller: how far the broker's log goes, and in which epoch it ends.

    Of our brokers alone: `asker`: a number that tells this process of the broker from those before it; a broker that
    sends it, once elected, first gives its word that it begins as master. `may_lack`: its machine stopped before all
    was flushed, so it may lack acknowledged messages, or its disk takes nothing: others are elected first.
    """

    cluster_name: str
    broker_name: str
    address: str = field(name="brokerAddr")
    broker_id: Long | None = None
    epoch: Long | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    # RocketMQ's spelling; that of REGISTER_BROKER is another.
    timeout_ms: Long | None = field(name="heartbeatTimeoutMills", default=None)
    election_priority: Long | None = None
    zone: str | None = field(name="__ZONE_NAME", default=None)
    asker: Long | None = None
    may_lack: bool | None = None


class ElectMasterHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_ELECT_MASTER (1002). `designate_elect`: elect this broker and no other.

    `may_lack`, of our brokers alone: this broker is elected but has not begun as master, and may lack messages that
    others have. With `designate_elect` it stays, and begins in a new epoch.
    """

    cluster_name: str = ""
    broker_name: str
    broker_id: Long = CONTROLLER_ASKS
    designate_elect: bool = False
    invoke_time: Long | None = None
    may_lack: bool | None = None


class ElectMasterReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_ELECT_MASTER (1002), and NOTIFY_BROKER_ROLE_CHANGED (1008): who is master, in which epoch.

    `awaits_word`, here and in other replies, of our controllers alone: the elected master has not yet given its word
    that it begins, which it does by asking for its in-sync set.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Long | None = None
    sync_state_set_epoch: Long | None = None
    awaits_word: bool | None = None


class ReplicaInfoHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_GET_REPLICA_INFO (1004): asks for a set's master.

    Of our brokers alone, if a master asks: its id, its process (`asker`), and the number that it gave this request
    (`asked`).
    """

    broker_name: str
    master_broker_id: Long | None = None
    asker: Long | None = None
    asked: Long | None = None


class ReplicaInfoReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_GET_REPLICA_INFO (1004). The master's id and address are there only if the set has a master.

    `asked`, of our controllers alone: the number of the master's request. What it asked for in earlier requests is not
    done any more.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Long | None = None
    asked: Long | None = None
    awaits_word: bool | None = None


class AlterSyncStateSetHeader(Header, kw_only=True, gc=False):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001): a master asks to change its in-sync set. `asker`, `asked`: as in
    `ReplicaInfoHeader`.
    """

    broker_name: str
    master_broker_id: Long
    master_epoch: Long
    invoke_time: Long | None = None
    asker: Long | None = None
    asked: Long | None = None


class AlterSyncStateSetReply(Header, kw_only=True, gc=False):
    """Reply to CONTROLLER_ALTER_SYNC_STATE_SET (1001): the epoch of the new in-sync set; 0 if the change was
    refused.
    """

    new_sync_state_set_epoch: Long = 0


class CleanBrokerDataHeader(Header, kw_only=True, gc=False):
    """CLEAN_BROKER_DATA (1011): has a controller forget brokers.

    `broker_controller_ids_to_clean`: their ids, separated by ";"; None for all brokers of the set.
    """

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long | None = None
