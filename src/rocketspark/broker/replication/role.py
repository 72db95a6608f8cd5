"""The role of a broker, and the requests that it refuses because of its role.

Rule: one `BrokerRole` says what the broker is; only `Replication` changes it, everything else reads it.

The refusals are one table without state (rules of 5.5.0: SendMessageProcessor, PullMessageProcessor.rejectRequest,
EndTransactionProcessor, RecallMessageProcessor, AdminBrokerProcessor for the reset of offsets, and the check before a
put). Whatever the table does not name a slave serves like a master: it even changes topics and groups, which the next
copy of the master's tables undoes. Not under a controller, where who asks may know it as the master of a moment ago,
and a slave whose queues of a topic were deleted, and not its master's, would be elected without them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from rocketspark.broker.settings import BrokerSettings
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode, ResponseCode

SENDS = frozenset(
    {
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        RequestCode.SEND_HALF_BATCH,
    }
)
ENDS = frozenset({RequestCode.END_TRANSACTION, RequestCode.END_HALF_RANGES})
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
TABLE_CHANGES = frozenset(
    {
        *(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST),
        *(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER),
        *(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
        *(RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.SET_MESSAGE_REQUEST_MODE),
        # Whoever only asks by it asks the master.
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    }
)

# Of users and rules; who serves them refuses them at a slave, as RocketMQ's do.
ACCESS_CHANGES = frozenset(
    {
        *(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER),
        *(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, RequestCode.AUTH_DELETE_ACL),
    }
)

# As Java's network layer says it: clients take it for any overload.
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
NOT_HERE = "service not available now: this broker is no master at the moment"
ON_SLAVE = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
RECALL_FAILED = "recall failed, broker service not available"


class Role(Enum):
    """MASTER takes messages; SLAVE copies; ACTING is a slave that does a lost master's work without taking messages;
    FENCED serves nothing that writes until it knows its master."""

    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting master"
    FENCED = "fenced"


class BrokerRole:
    """The role of one broker, and where its master is.

    `master_address`: "host:port" of the master's requests, None if it is not known or this is the master;
    `min_broker_id`, `min_broker_address`: of the live broker with this name and the lowest id; `epoch`: the master's, 0
    without a controller; `reason`: why the role is what it is.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self.kind = Role.MASTER
        self.reason = "start"
        self.master_address: str | None = None
        self.min_broker_id = MASTER_ID
        self.min_broker_address = ""
        self.epoch = 0
        # True while the master's log arrives here.
        self.is_copying: Callable[[], bool] = lambda: False

    @property
    def broker_id(self) -> int:
        """The id under which the NameServers know this broker."""
        return self._settings.broker_id

    @property
    def is_master(self) -> bool:
        """True if messages are taken here."""
        return self.kind is Role.MASTER

    @property
    def is_sync_master(self) -> bool:
        """True if messages may wait for replicas."""
        return self.is_master and self._settings.broker_role == "SYNC_MASTER"

    @property
    def has_live_master(self) -> bool:
        """True on a slave whose master serves: consumers that are not far behind are sent back to it."""
        return self.kind is Role.SLAVE and self.min_broker_id == MASTER_ID and self.is_copying()

    @property
    def delivers(self) -> bool:
        """True if delay levels, timers and transaction checks run here."""
        return self.kind in (Role.MASTER, Role.ACTING)


class Situation(NamedTuple):
    """What decides whether a request is refused.

    `copies`: the broker is a slave, acting or not; `fenced`: it may not write until it knows its role; `controlled`: a
    controller says which. The others are settings: enableSlaveActingMaster, slaveReadEnable, recallMessageEnable,
    useServerSideResetOffset.
    """

    copies: bool = False
    fenced: bool = False
    acting_allowed: bool = False
    reads_allowed: bool = False
    recalls_allowed: bool = False
    resets_here: bool = True
    controlled: bool = False


class Refusal(NamedTuple):
    """A refused request's code and remark."""

    code: int
    remark: str | None


def refusal(code: int, s: Situation, *, host: str = "") -> Refusal | None:
    """Return how a request with this code is refused, None if it is not. `host`: the broker's address, for a remark."""
    if s.copies:
        found = _of_slave(code, s, host)
        if found is not None:
            return found
    return _of_fenced(code, s) if s.fenced else None


def _of_slave(code: int, s: Situation, host: str) -> Refusal | None:
    if code in SENDS or code == SEND_BACK:
        if not s.acting_allowed:
            return Refusal(ResponseCode.SYSTEM_BUSY, REJECTED)
        if code == SEND_BACK:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"no master available along with {host}")
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_HERE)
    if code in PULLS and not s.reads_allowed:
        return Refusal(ResponseCode.SYSTEM_BUSY, REJECTED)
    if code in TABLE_CHANGES and s.controlled:
        return Refusal(ResponseCode.SYSTEM_ERROR, ON_SLAVE)
    if code in ENDS:
        return Refusal(ResponseCode.SLAVE_NOT_AVAILABLE, None)
    # A broker that allows no recalls says so first.
    if code == RequestCode.RECALL_MESSAGE and s.recalls_allowed:
        return Refusal(ResponseCode.SLAVE_NOT_AVAILABLE, RECALL_FAILED)
    if code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET and s.resets_here:
        return Refusal(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    return None


def _of_fenced(code: int, s: Situation) -> Refusal | None:
    if code in SENDS or code in ENDS:
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_HERE)
    if code == SEND_BACK:
        return Refusal(ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
    if code == RequestCode.RECALL_MESSAGE and s.recalls_allowed:
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, RECALL_FAILED)
    return None
