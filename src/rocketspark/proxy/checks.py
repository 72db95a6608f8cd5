"""What a request and its message may be: their sizes, names and fields, each with the code of its refusal. Pure.

Rule: GrpcValidator, SendMessageActivity and Validators, 5.5.0; what is refused names its field. Beyond them, refused is
what would break the stored properties: their separators in fields that Apache's proxy does not look at. Sizes are
looked at before anybody is asked who sent the request; what is done for each entry of it is done in turns of the loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.proxy.message_form import RESERVED_NAMES
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.server_bounds import place_of

# Messages or handles of one call: a broker's reply names each of a batch, in a header of 1 MiB at most.
ENTRIES_MAX = 16_384
# Entries that are worked on in one turn of the loop.
TURN = 256
# Of any request but messages, whose bodies and properties have bounds of their own.
REQUEST_BYTES_MAX = 4 << 20
# Of one request; those of a request with fewer bytes than `COUNTED_BYTES_MIN` are not counted.
FIELDS_MAX = 262_144
COUNTED_BYTES_MIN = 4 << 10
# What a client may tell of itself.
SETTINGS_BYTES_MAX = 256 << 10
TOPICS_MAX = 1000
_LISTED = {"SendMessage": "messages", "AckMessage": "entries", "SyncLiteSubscription": "lite_topic_set"}


# The share of what all clients together may have that the clients of one host may have.
OF_HOST = 0.75


class Shares:
    """Bounds something that clients use, such as memory or open calls: for all clients together, and for each host.

    `most`: what all clients together may have, of which one host gets three quarters; `refusal`: the text of the error
    for a client that asks for more. `check` and `take` raise Refused 42900.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self.most, self._refusal = most, refusal
        self.total, self.of_host = 0, Counter[str]()

    def check(self, host: str, size: int = 1) -> None:
        """Raise Refused if `size` more for a host would be over its bound or over that of all."""
        if self.total + size > self.most or self.of_host[place_of(host)] + size > self.most * OF_HOST:
            raise Refused(Code.TOO_MANY_REQUESTS, f"flow limit: {self._refusal}")

    def take(self, host: str, size: int) -> None:
        """Count `size` more for a host. Raises Refused, and counts nothing, if that is over a bound."""
        if size > 0:
            self.check(host, size)
        self.add(host, size)

    def give(self, host: str, size: int) -> None:
        """Give back what `take` or `add` counted: the host uses `size` less from now on."""
        self.add(host, -size)

    def add(self, host: str, size: int) -> None:
        """Count `size` more for a host, even if that is over the bounds."""
        self.total += size
        host = place_of(host)
        self.of_host[host] += size
        if not self.of_host[host]:
            del self.of_host[host]


def check_bytes(rpc: str, size: int) -> None:
    """Raise Refused for an encoded request of the method `rpc` that has too many bytes. Messages that are sent have
    bounds of their own.
    """
    if rpc != "SendMessage" and size > REQUEST_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, f"the request has {size} bytes, at most {REQUEST_BYTES_MAX} are allowed")


def check_fields(rpc: str, count: int) -> None:
    """Raise Refused for a request of the method `rpc` that holds too many fields."""
    if count > FIELDS_MAX:
        code = Code.MESSAGE_CORRUPTED if rpc == "SendMessage" else Code.BAD_REQUEST
        raise Refused(code, f"the request holds more than {FIELDS_MAX} fields: send fewer entries together")


def check_size(rpc: str, request: Any) -> None:
    """Raise Refused for a request of the method `rpc` that has too many entries or topics."""
    listed = _LISTED.get(rpc)
    if listed is not None and (count := len(getattr(request, listed))) > ENTRIES_MAX:
        code = Code.MESSAGE_CORRUPTED if rpc == "SendMessage" else Code.BAD_REQUEST
        raise Refused(code, f"{listed}: there are {count}, at most {ENTRIES_MAX} go together")
    if rpc == "Telemetry" and request.HasField("settings"):
        _check_settings(request.settings)


def _check_settings(told: Any) -> None:
    if (size := told.ByteSize()) > SETTINGS_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, f"settings have {size} bytes, at most {SETTINGS_BYTES_MAX} are allowed")
    if (count := len(told.publishing.topics) + len(told.subscription.subscriptions)) > TOPICS_MAX:
        raise Refused(Code.BAD_REQUEST, f"settings name {count} topics, at most {TOPICS_MAX} are allowed")


TOPIC_CHARACTERS_MAX, GROUP_CHARACTERS_MAX = 127, 120
SYSTEM_GROUP = "CID_RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    """TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRACE_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC
    TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT CHECKPOINT_TOPIC RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC
    RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC""".split()
)
SYSTEM_TOPIC = "rmq_sys_"
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


@lru_cache(maxsize=4096)
def checked_topic(name: str) -> str:
    """Return a topic's name. Raises Refused if it is no legal name, or a system topic's."""
    _check("topic", name, TOPIC_CHARACTERS_MAX, Code.ILLEGAL_TOPIC)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC):
        raise Refused(Code.ILLEGAL_TOPIC, f"topic {name} is a system topic")
    return name


@lru_cache(maxsize=4096)
def checked_group(name: str) -> str:
    """Return a consumer group's name. Raises Refused if it is no legal name, or a system group's."""
    _check("consumer group", name, GROUP_CHARACTERS_MAX, Code.ILLEGAL_CONSUMER_GROUP)
    if name.startswith(SYSTEM_GROUP):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {name} is a system group")
    return name


def _check(what: str, name: str, characters_max: int, code: Code) -> None:
    if not name.strip():
        raise Refused(code, f"{what} is blank: name one")
    if len(name) > characters_max:
        raise Refused(code, f"{what} has {len(name)} characters: {characters_max} at most")
    if not _ALLOWED.match(name):
        raise Refused(code, f"{what} {shown(name)} holds other characters than letters, digits, %, |, - and _")


# Attributes of groups that read lite topics: of which topic, and how many one client may subscribe to.
LITE_BIND_TOPIC, LITE_QUOTA = "lite.bind.topic", "lite.sub.client.quota"
LITE_QUOTA_DEFAULT = 2000
_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+\Z")


def bound_topic(group: GroupConfig | None) -> str:
    """Return the topic whose lite topics a group reads; "" for a group that reads topics as a whole."""
    return "" if group is None else group.attributes.get(LITE_BIND_TOPIC, "")


def lite_quota(group: GroupConfig | None) -> int:
    """Return how many lite topics one client of a group may subscribe to."""
    given = None if group is None else whole_number(group.attributes.get(LITE_QUOTA), high=(1 << 31) - 1)
    return LITE_QUOTA_DEFAULT if given is None else given


def check_lite_group(name: str, group: GroupConfig | None, *, lite: bool) -> None:
    """Raise Refused 40003 if a group reads lite topics and its client does not (`lite` is False), or the reverse."""
    bound = bound_topic(group)
    if lite and group is None:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    if lite and not bound:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {name}")
    if bound and not lite:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {name}")


def check_bound_topic(name: str, group: GroupConfig | None, topic: str) -> None:
    """Raise Refused if a group does not read the lite topics of `topic`: 40003 without the group, 40002 for another."""
    if group is None:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    if (bound := bound_topic(group)) != topic:
        text = f"lite group {name} is expected to bind topic {bound or 'null'}, but actual is {topic}"
        raise Refused(Code.ILLEGAL_TOPIC, text)


def check_lite_topic(name: str, bytes_max: int) -> None:
    """Raise Refused 40020 for a lite topic's name that is blank, has more than `bytes_max` bytes, or holds others than
    letters, digits, - and _.
    """
    code = Code.ILLEGAL_LITE_TOPIC
    if is_blank(name):
        raise Refused(code, "lite topic: it has only spaces")
    if len(name.encode()) > bytes_max:
        raise Refused(code, f"lite topic {_shown(name)}: it has more than {bytes_max} bytes")
    if not _LITE_TOPIC.match(name):
        raise Refused(code, f"lite topic {_shown(name)}: it holds other characters than letters, digits, - and _")


# What Java's Character.isWhitespace takes; Python's isspace also takes blanks that do not break a line.
_BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "
    "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
_control = re.compile("[\x00-\x1f\x7f-\x9f]").search
_SHOWN_MAX = 60


class SendLimits(NamedTuple):
    """The bounds of messages that are sent, from rmq-proxy.json. 0 means that there is no bound, except for user
    properties, of which it then allows none. Times are in ms or s, as the names say.
    """

    body_bytes_max: int = 4 << 20
    empty_bodies: bool = False
    user_properties_max: int = 128
    user_properties_bytes_max: int = 16 << 10
    message_group_bytes_max: int = 64
    lite_topic_bytes_max: int = 64
    delay_ms_max: int = 86_400_000
    recovery_s_max: int = 3600
    use_delay_level: bool = False


def is_blank(text: str) -> bool:
    """Tell whether a text is empty or only spaces, as Java counts them."""
    return not text or (text[0] in _BLANKS and not text.strip(_BLANKS))


def check_tag(tag: str) -> None:
    """Raise Refused 40004 for a tag of spaces, with "|" or with a control character."""
    if is_blank(tag):
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag: it has only spaces")
    if "|" in tag:
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"tag {_shown(tag)}: it may not hold '|'")
    if _control(tag):
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"tag {_shown(tag)}: it has a control character")


def check_key(key: str) -> None:
    """Raise Refused 40005 if a key is only spaces or has a control character. An empty key counts as no key."""
    if key:
        if is_blank(key):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, "key: it has only spaces")
        if _control(key):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, f"key {_shown(key)}: it has a control character")


def check_message_group(message_group: str, bytes_max: int) -> None:
    """Raise Refused 40006 for a message group of spaces, of `bytes_max` bytes or more, or with a control character."""
    code = Code.ILLEGAL_MESSAGE_GROUP
    if is_blank(message_group):
        raise Refused(code, "message group: it has only spaces")
    # Apache's proxy looks at control characters only if there is a limit; they break properties with or without.
    if 0 < bytes_max <= len(message_group.encode()):
        raise Refused(code, f"message group {_shown(message_group)}: it has {bytes_max} bytes or more")
    if _control(message_group):
        raise Refused(code, f"message group {_shown(message_group)}: it has a control character")


def check_message_id(message_id: str) -> None:
    """Raise Refused 40009 for a message id that is blank or has a control character."""
    if is_blank(message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id: it is blank")
    if _control(message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, f"message id {_shown(message_id)}: it has a control character")


def check_body(size: int, limits: SendLimits) -> None:
    """Raise Refused 41302 for an empty body, 41301 for one that is too large."""
    if not size and not limits.empty_bodies:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "body: it is empty")
    if 0 < limits.body_bytes_max < size:
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE, f"body: it has {size} bytes, at most {limits.body_bytes_max} are allowed"
        )


def check_user_properties(pairs: Mapping[str, str], limits: SendLimits) -> int:
    """Check a message's user properties, and return how many bytes their names and values have.

    Raises Refused 43101 for too many properties, 40007 for a name that belongs to the system, and for a control
    character in a name or a value.
    """
    if len(pairs) > limits.user_properties_max:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties: there are {len(pairs)}, at most {limits.user_properties_max} are allowed",
        )
    size = 0
    code = Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    for name, value in pairs.items():
        if name in RESERVED_NAMES:
            raise Refused(code, f"user property {name}: the name belongs to the system")
        if _control(name):
            raise Refused(code, f"user property {_shown(name)}: its key has a control character")
        if _control(value):
            raise Refused(code, f"user property {_shown(name)}: its value has a control character")
        size += len(name) + len(value) if name.isascii() and value.isascii() else len((name + value).encode())
    return size


def check_user_bytes(size: int, limits: SendLimits) -> None:
    """Raise Refused 43101 if `size`, the bytes of a message's user properties, tag and keys together, is too large."""
    if size > limits.user_properties_bytes_max:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys: they have {size} bytes, at most {limits.user_properties_bytes_max} are"
            " allowed",
        )


def check_separators(text: str, what: str) -> None:
    """Raise Refused 40000 for a text that has a character by which stored properties are separated. `what`: the text's
    name in the error.
    """
    if "\x01" in text or "\x02" in text:
        raise Refused(Code.BAD_REQUEST, f"{what} {_shown(text)}: it has a control character")


def _shown(text: str) -> str:
    return shown(text, characters_max=_SHOWN_MAX)
