"""A message of the gRPC protocol as brokers store it. Pure; refuses what breaks a rule.

Rule: SendMessageActivity, 5.5.0: the properties are those that Apache's proxy makes of the same message.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

from rocketspark.protocol import topic_attributes
from rocketspark.protocol.message import properties, sysflags
from rocketspark.proxy import checks
from rocketspark.proxy.checks import SendLimits
from rocketspark.proxy.message_form import (
    BORN_HOST,
    BORN_TIME_MS,
    DELAY_LEVEL,
    DELIVERY_MS,
    KEY_SEPARATOR,
    LITE_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
    RECOVERY_S,
    TRACE_CONTEXT,
    WIRE_TYPES,
)
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

# Numbers of messaging.proto.
IDENTITY, GZIP = 1, 2
TRANSACTION = WIRE_TYPES[topic_attributes.TRANSACTION]
# Bounds of a Timestamp and of a Duration: the years 1 to 9999, and as many years.
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
_DURATION_S_MAX = 315_576_000_000
_NANOS = 1_000_000_000
# 1s 5s 10s 30s 1m 2m … 10m 20m 30m 1h 2h.
_LEVELS_MS = [s * 1000 for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)]
# No text of fewer characters is too long for the properties of a record.
_SURELY_SHORT = properties.BYTES_MAX // 4


class StoredForm(NamedTuple):
    """A message of a client in the form that brokers store.

    `type`: its message type, one of those in `message_form`.
    """

    body: bytes
    properties: str
    sys_flag: int
    born_time_ms: int
    type: str
    message_id: str
    message_group: str
    delivery_attempt: int
    lite_topic: str = ""

    @property
    def queue_key(self) -> str:
        """What decides its queue: messages with the same one go to one queue; "" for any queue."""
        return self.message_group or self.lite_topic


def stored_form(message: Any, topic: str, client: str, now_ms: int, limits: SendLimits) -> StoredForm:
    """Return a client's message in the form that brokers store. `topic`: its topic, checked before; `client`: "ip:port"
    of its sender.

    Raises Refused with the code of the first rule that the message breaks.
    """
    body = message.body
    if not 0 < len(body) <= limits.body_bytes_max:
        checks.check_body(len(body), limits)
    system = message.system_properties
    given = _given_text(message, system, limits)
    # In the order in which Apache's proxy looks at them.
    kind, typed = _typed_text(system, now_ms, limits)
    sys_flag = sysflags.TRANSACTION_PREPARED if kind == topic_attributes.TRANSACTION else 0
    encoding = system.body_encoding
    if encoding == GZIP:
        sys_flag |= sysflags.COMPRESSED
    elif encoding > GZIP or encoding < 0:
        raise Refused(Code.BAD_REQUEST, f"body encoding {encoding}: only identity and gzip are known")
    origin = _origin_text(system, client)
    born = system.born_timestamp
    seconds, nanos = born.seconds, born.nanos
    if _SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos < _NANOS:
        born_ms = seconds * 1000 + nanos // 1_000_000
        origin += f"{BORN_TIME_MS}\x01{born_ms}\x02"
    else:
        born_ms = now_ms
    message_id, attempt = system.message_id, system.delivery_attempt
    text = f"{given}UNIQ_KEY\x01{message_id}\x02RECONSUME_TIME\x01{attempt}\x02PGROUP\x01{topic}\x02{typed}{origin}"
    if len(text) > _SURELY_SHORT and (length := len(text.encode())) > properties.BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties: all of them have {length} bytes, at most {properties.BYTES_MAX} are allowed",
        )
    return StoredForm(body, text, sys_flag, born_ms, kind, message_id, system.message_group, attempt, system.lite_topic)


def _given_text(message: Any, system: Any, limits: SendLimits) -> str:
    """Return the stored text of what the user gave: his own properties, tag and keys; checks the message id too."""
    size, text = 0, ""
    user = message.user_properties
    if user:
        size, text = _user_text(dict(user), limits)
    if tag := system.tag:
        checks.check_tag(tag)
        size += len(tag.encode())
        text += f"TAGS\x01{tag}\x02"
    keys = system.keys
    if keys:
        for key in keys:
            checks.check_key(key)
            size += len(key.encode())
        if joined := KEY_SEPARATOR.join(keys):
            text += f"KEYS\x01{joined}\x02"
    if size:
        checks.check_user_bytes(size, limits)
    checks.check_message_id(system.message_id)
    return text


def _typed_text(system: Any, now_ms: int, limits: SendLimits) -> tuple[str, str]:
    """Return the type of a message, and the stored text of what makes it one of that type."""
    kind, text = topic_attributes.NORMAL, ""
    is_transaction = system.message_type == TRANSACTION
    if is_transaction:
        text = "TRAN_MSG\x01true\x02" + _recovery(system, limits)
    if delayed := system.HasField("delivery_timestamp"):
        delivery_ms = _delivery_ms(system.delivery_timestamp, now_ms, limits)
        if limits.use_delay_level:
            text += f"{DELAY_LEVEL}\x01{delay_level(delivery_ms - now_ms)}\x02"
        text += f"{DELIVERY_MS}\x01{delivery_ms}\x02"
    if system.HasField("priority"):
        if system.priority < 0:
            raise Refused(Code.BAD_REQUEST, f"priority {system.priority}: it is below 0")
        text += f"{PRIORITY}\x01{system.priority}\x02"
        kind = topic_attributes.PRIORITY
    if message_group := system.message_group:
        checks.check_message_group(message_group, limits.message_group_bytes_max)
        text += f"{MESSAGE_GROUP}\x01{message_group}\x02"
        kind = topic_attributes.FIFO
    if lite_topic := system.lite_topic:
        checks.check_lite_topic(lite_topic, limits.lite_topic_bytes_max)
        text += f"{LITE_TOPIC}\x01{lite_topic}\x02"
        kind = topic_attributes.LITE if kind == topic_attributes.NORMAL else kind
    return topic_attributes.TRANSACTION if is_transaction else topic_attributes.DELAY if delayed else kind, text


def _origin_text(system: Any, client: str) -> str:
    """Return the stored text of where a message comes from: its trace, and the host that it names, else the client."""
    text = ""
    if trace := system.trace_context:
        checks.check_separators(trace, "trace context")
        text = f"{TRACE_CONTEXT}\x01{trace}\x02"
    born_host = system.born_host
    if born_host:
        checks.check_separators(born_host, "born host")
        if checks.is_blank(born_host):
            born_host = client
    else:
        born_host = client
    return f"{text}{BORN_HOST}\x01{born_host}\x02" if born_host else text


def _user_text(pairs: dict[str, str], limits: SendLimits) -> tuple[int, str]:
    """Return the bytes of the user properties, and their stored text, without those that no reader would find."""
    size = checks.check_user_properties(pairs, limits)
    return size, "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if name and value])


def delay_level(delay_ms: int) -> int:
    """Return the first of the 18 delay levels whose time is longer than `delay_ms`; the last level if none is."""
    return min(bisect_right(_LEVELS_MS, delay_ms), len(_LEVELS_MS) - 1) + 1


def _delivery_ms(stamp: Any, now_ms: int, limits: SendLimits) -> int:
    seconds, nanos = stamp.seconds, stamp.nanos
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos < _NANOS):
        raise Refused(Code.ILLEGAL_DELIVERY_TIME, "delivery timestamp: it is no time of the years 1 to 9999")
    delivery_ms: int = seconds * 1000 + nanos // 1_000_000
    if 0 < limits.delay_ms_max < delivery_ms - now_ms:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"delivery timestamp: it is {delivery_ms - now_ms} ms ahead, at most {limits.delay_ms_max} are allowed",
        )
    return delivery_ms


def _recovery(system: Any, limits: SendLimits) -> str:
    """Return the property of after how long a transaction is asked about, if the message says so."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return ""
    duration = system.orphaned_transaction_recovery_duration
    seconds, nanos = duration.seconds, duration.nanos
    name = "orphaned transaction recovery duration"
    if abs(seconds) > _DURATION_S_MAX or abs(nanos) >= _NANOS or seconds * nanos < 0:
        raise Refused(Code.BAD_REQUEST, f"{name}: it is no time of up to 10000 years")
    if 0 < limits.recovery_s_max < seconds:
        raise Refused(Code.BAD_REQUEST, f"{name}: it has {seconds} s, at most {limits.recovery_s_max} are allowed")
    return f"{RECOVERY_S}\x01{seconds}\x02"
