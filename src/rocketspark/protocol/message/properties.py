"""Message properties: `name 0x01 value 0x02` repeated. Rule: reading never fails on text, it drops malformed pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from rocketspark.errors import MessageIllegal

NAME_END = "\x01"
PAIR_END = "\x02"
BYTES_MAX = 32767
# Names begin at the start or after 0x02: tried at every byte, a long text without 0x01 would cost its length squared.
_PAIR = re.compile(rb"(?:^|\x02)([^\x01\x02]+)\x01([^\x02]+)")

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQUE_ID = "UNIQ_KEY"
CLUSTER = "CLUSTER"
SHARDING_KEY = "__SHARDINGKEY"
INNER_COUNT = "INNER_NUM"
INNER_BASE = "INNER_BASE"
RECORD_CRC = "__CRC32#"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
# The receipt handle of a message of a retry topic, set by the broker in the answer to a pop.
POP_HANDLE = "POP_CK"
# The group that a popped message failed in, set by the broker in its retry topic.
ORIGIN_GROUP = "ORIGIN_GROUP"
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# Names an application may not set itself (rule: MessageConst.STRING_HASH_SET, 5.x).
SYSTEM_NAMES = frozenset(
    """KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET __transactionId__
    TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_NUM INNER_BASE DUP_INFO TIMER_DELAY_SEC TIMER_DELAY_MS
    TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY
    BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32# __SHARDINGKEY""".split()
)

# Applications may set these by hand too.
PRIORITY, LITE_TOPIC = "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"
# The argument or field that sets one of the above.
ARGUMENTS = {
    TAGS: "tag",
    KEYS: "keys",
    WAIT: "wait_store_ok",
    DELAY: "delay_level",
    TIMER_DELAY_MS: "delay_ms",
    "TIMER_DELAY_SEC": "delay_ms",
    TIMER_DELIVER_MS: "deliver_at_ms",
    SHARDING_KEY: "sharding_key",
    CHECK_IMMUNITY_S: "check_after_s of send_in_transaction",
    TTL: "timeout_ms of request",
}


def encode(properties: Mapping[str, str]) -> str:
    """Return the stored text of the properties. Raises MessageIllegal for a name or value with 0x01 or 0x02."""
    parts = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or NAME_END in value or PAIR_END in value or not name:
            if not name:
                raise MessageIllegal(f"a property with the value {value!r} has no name: give it one")
            raise MessageIllegal(f"property {name!r}: names and values may not hold the characters 0x01 and 0x02")
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def decode(text: str) -> dict[str, str]:
    """Return the pairs of a stored text, in stored order.

    A pair counts if its name and value are not empty (rule: MessageDecoder, 5.x).
    """
    try:
        found = dict([pair.split(NAME_END, 1) for pair in text.split(PAIR_END) if pair])
    except ValueError:  # A part that is no pair.
        found = {"": ""}
    if "" in found or "" in found.values():
        found = {}
        for pair in text.split(PAIR_END):
            name, _, value = pair.partition(NAME_END)
            if name and value:
                found[name] = value
    return found


def pairs_of(stored: bytes) -> dict[bytes, bytes]:
    """Return the properties of a stored text, as bytes."""
    return dict(_PAIR.findall(stored))


def of_pairs(pairs: Mapping[bytes, bytes]) -> bytes:
    """Return pairs as a record stores them; `pairs_of` reads them."""
    return b"".join([b"%b\x01%b\x02" % pair for pair in pairs.items()])


def without(stored: bytes, names: Collection[bytes]) -> bytes:
    """Return a stored text without the properties of these names; all others stay as they are, even malformed ones."""
    pieces = [piece for piece in stored.split(b"\x02") if piece and piece.partition(b"\x01")[0] not in names]
    return b"".join([piece + b"\x02" for piece in pieces])


# What tells a message from others.
_KEPT = frozenset(name.encode() for name in (UNIQUE_ID, RETRY_TOPIC, ORIGIN_MESSAGE_ID))


def fitted(stored: bytes, bytes_max: int) -> bytes:
    """Return the properties of a dead letter, without the longest ones if they are longer than `bytes_max` together."""
    over = len(stored) - bytes_max
    if over <= 0:
        return stored
    pieces = [piece + b"\x02" for piece in stored.split(b"\x02") if piece]
    weights = [(piece.partition(b"\x01")[0] not in _KEPT, len(piece)) for piece in pieces]
    for at in sorted(range(len(pieces)), key=weights.__getitem__, reverse=True):
        if over > 0:
            over -= len(pieces[at])
            pieces[at] = b""
    return b"".join(pieces)


def with_value(stored: bytes, name: bytes, value: bytes) -> bytes:
    """Return a stored text in which one property has this value; it stands at the end."""
    return b"%b%b\x01%b\x02" % (without(stored, (name,)), name, value)


def of_inner(inner: bytes, outer: bytes) -> bytes:
    """Return the stored properties of a message of an inner batch, with the receipt handle of its record added if that
    has one.
    """
    handle = find(outer, POP_HANDLE.encode())
    return inner if handle is None else with_value(inner, POP_HANDLE.encode(), handle)


def find(stored: bytes, name: bytes) -> bytes | None:
    """Return the value of one property in the stored bytes, without decoding the others; None if absent or empty.

    Of several the last counts, as in `decode`.
    """
    mark = name + b"\x01"
    at = stored.rfind(mark)
    while at >= 0:
        if at == 0 or stored[at - 1] == 2:
            start = at + len(mark)
            end = stored.find(b"\x02", start)
            value = stored[start:] if end < 0 else stored[start:end]
            if value:
                return value
        at = stored.rfind(mark, 0, at + len(mark) - 1)
    return None


def finder(name: str) -> Callable[[bytes], re.Match[bytes] | None]:
    """Return what does the same as `find` for one name in half of the time: it returns a match, with the value as group
    1.
    """
    return re.compile(rb"(?s:.*\x02)?%b\x01([^\x02]+)" % re.escape(name.encode())).match
