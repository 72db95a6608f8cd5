"""Messages of the gRPC protocol and of the log: which property holds which field, and which type a message has.

Rule: names and order of tests as MessageConst and TopicMessageType, 5.5.0. Both ways use this: sends and receives.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketspark.protocol.message import properties

TAGS = properties.TAGS
KEYS = properties.KEYS
KEY_SEPARATOR = " "
MESSAGE_ID = properties.UNIQUE_ID
TRANSACTION = properties.TRANSACTION
RECOVERY_S = properties.CHECK_IMMUNITY_S
DELIVERY_MS = properties.TIMER_DELIVER_MS
DELIVERY_DELAY_S = "TIMER_DELAY_SEC"
DELAY_LEVEL = properties.DELAY
RECONSUME_TIME = properties.RECONSUME_TIME
PRODUCER_GROUP = properties.PRODUCER_GROUP
MESSAGE_GROUP = properties.SHARDING_KEY
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "__BORNHOST"
BORN_TIME_MS = "BORN_TIMESTAMP"
RECEIPT_HANDLE = "POP_CK"
DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

# Names that are no user properties: refused in a send, left out of what is delivered (rule: MessageConst, 5.5.0).
RESERVED_NAMES = frozenset(
    """1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY
    DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS
    MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK
    POP_CK_OFFSET PUSH_REPLY_TIME REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL
    TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS
    TIMER_ROLL_TIMES TRACE_ON TRANSFER_FLAG TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_
    __BORNHOST __CRC32# __LITE_TOPIC""".split()
)

# Types of messages and of topics; UNSPECIFIED is the type of a topic that has none that is known.
NORMAL, FIFO, DELAY, TRANSACTIONAL = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
PRIORITIZED, LITE, MIXED, UNSPECIFIED = "PRIORITY", "LITE", "MIXED", "UNSPECIFIED"
TOPIC_TYPES = frozenset((NORMAL, FIFO, DELAY, TRANSACTIONAL, PRIORITIZED, LITE, MIXED, UNSPECIFIED))
# The attribute of a topic that names its type, and the numbers of the types on the wire (MessageType).
TYPE_ATTRIBUTE = "message.type"
WIRE_TYPES = {NORMAL: 1, FIFO: 2, DELAY: 3, TRANSACTIONAL: 4, LITE: 5, PRIORITIZED: 6}


def type_of(pairs: Mapping[str, str]) -> str:
    """Return the type of a message with these properties."""
    if pairs.get(TRANSACTION, "").lower() == "true":
        return TRANSACTIONAL
    if DELAY_LEVEL in pairs or DELIVERY_MS in pairs or DELIVERY_DELAY_S in pairs or properties.TIMER_DELAY_MS in pairs:
        return DELAY
    if MESSAGE_GROUP in pairs:
        return FIFO
    if PRIORITY in pairs:
        return PRIORITIZED
    if LITE_TOPIC in pairs:
        return LITE
    return NORMAL


def user_properties(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return those of a stored message's properties that are its user's."""
    return {name: value for name, value in pairs.items() if name not in RESERVED_NAMES}
