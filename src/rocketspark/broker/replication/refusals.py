"""What a broker refuses because of its role, before anything else is looked at. Rule: one table, without state.

Rules (5.5.0): SendMessageProcessor, PullMessageProcessor (rejectRequest), EndTransactionProcessor,
RecallMessageProcessor, AdminBrokerProcessor (reset of offsets), the check before a put. Whatever is not here a slave
serves as a master: topics and groups too, which the next look at the master undoes.
"""

from __future__ import annotations

from typing import NamedTuple

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

# As Java's network layer says it: clients take it for any overload.
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
NOT_HERE = "service not available now: this broker is no master at the moment"
RECALL_FAILED = "recall failed, broker service not available"


class Situation(NamedTuple):
    """What decides. `copies`: the broker is a slave, acting or not; `fenced`: it may not write until it knows its role.

    The others are settings: enableSlaveActingMaster, slaveReadEnable, recallMessageEnable, useServerSideResetOffset.
    """

    copies: bool = False
    fenced: bool = False
    acting_allowed: bool = False
    reads_allowed: bool = False
    recalls_allowed: bool = False
    resets_here: bool = True


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
