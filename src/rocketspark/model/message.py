"""Messages to send and messages received. Values only; nothing here touches the wire."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from rocketspark.model.route import MessageQueue
from rocketspark.model.text import nearest

# Makes a value of fields that are known: the call of its class costs half as much again.
make = msgspec.StructMeta.__call__


class NamedFields(msgspec.StructMeta):
    """The metaclass of value classes: for a field that a class does not have, the error names the nearest field that it
    has.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """Make a value. Raises TypeError for an unknown field."""
        try:
            return make(cls, *args, **fields)
        except TypeError:
            for name in fields.keys() - cls.__struct_fields__:
                text = f"{cls.__name__} has no argument {name!r}{nearest(name, cls.__struct_fields__)}"
                raise TypeError(text) from None
            raise


class _Placed(msgspec.Struct, metaclass=NamedFields):
    topic: str
    body: bytes


class Message(_Placed, kw_only=True):
    """A message to send: `Message("orders", b"42 apples", tag="fruit")`.

    `body` bytes, at most 4 MiB by default; `keys` are indexed and searched by, none may hold a blank;
    `delay_level` 1..18 (0 = at once); `delay_ms` or `deliver_at_ms` (since 1970) ask for a time of one's own (a timer
    message, RocketMQ 5); messages of one `sharding_key` keep their order; `flag` is the application's
    own 32-bit number; `wait_store_ok` false lets a SYNC_FLUSH broker answer before the flush; `transaction_id` is told
    to the listener of a transaction, and not sent. `priority` from 0 on, higher ones first, for topics of the type
    PRIORITY; `lite_topic`: the lite topic that it belongs to, for topics of the type LITE (RocketMQ 5.5).
    `properties` are the application's own; names of RocketMQ's system properties are refused when sending.
    """

    tag: str | None = None
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at_ms: int = 0
    flag: int = 0
    wait_store_ok: bool = True
    priority: int | None = None
    lite_topic: str | None = None
    transaction_id: str | None = None


class MessageFields(TypedDict, total=False):
    """The fields of a Message besides topic and body, as a send call takes them."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    sharding_key: str | None
    delay_level: int
    delay_ms: int
    deliver_at_ms: int
    flag: int
    wait_store_ok: bool
    priority: int | None
    lite_topic: str | None


# The property by which the rows of one transaction name it; RocketMQ has none for several messages.
ROWS_TRANSACTION = "ROWS_TRANSACTION"
# What a received message keeps in `_rest`, in this order.
LATE = (
    "body_error",
    "born_host",
    "born_time_ms",
    "broker_name",
    "flag",
    "keys",
    "message_id",
    "offset_message_id",
    "physical_offset",
    "prepared_transaction_position",
    "properties",
    "queue_id",
    "read_from",
    "receipt_handle",
    "reconsume_times",
    "store_host",
    "store_time_ms",
    "sys_flag",
    "tag",
)
# In `_rest`: a field that was not read yet; `_rest[MADE](_rest, at)` makes the one at `at`.
UNREAD: Any = object()
MADE = len(LATE)
_FIELDS = sorted((*LATE, "topic", "body", "queue_offset", "stored_bytes"))


class _WithInit(msgspec.StructMeta):
    """The metaclass of a Struct that a call of its class makes by `__init__`, as other classes; `make` does without."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **how: Any) -> Any:
        init = namespace.pop("__init__", None)
        if any(isinstance(base, _WithInit) for base in bases):
            # An application's: it may have attributes of its own, which the collector looks at.
            how = {"dict": True, "gc": True} | how
        cls = super().__new__(mcls, name, bases, namespace, **how)
        if init is not None:
            # Only now: a Struct cannot be made with one.
            cls.__init__ = init  # type: ignore[misc]
        return cls

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        self = make(cls, "", b"", 0, 0, [UNREAD] * len(LATE), 0)
        self.__init__(*args, **fields)
        return self

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(cls.__init__.__get__(cls))  # type: ignore[misc]


class ReceivedMessage(msgspec.Struct, metaclass=_WithInit, gc=False):
    """A message as read from a queue.

    `message_id` is the producer's unique id (UNIQ_KEY), `offset_message_id` the broker's; `queue_offset` counts
    messages of the queue, `physical_offset` bytes of the broker's commit log; times are ms since 1970; hosts are
    "ip:port". `properties` hold everything stored, system ones too; `body` is inflated. `body_error`: why `body` is as
    stored instead and not what was sent (it does not inflate, or is not what its CRC says); None: it is. `read_from`:
    the topic of the queue it was read from, where `topic` is another one, that of a message that comes again.
    `receipt_handle`: by which a message that was popped is acknowledged; None for one that was pulled.
    """

    # Most listeners look at few fields, and to make all of them costs several times what the rest of a pull does. So
    # all but the first four are in a list of their own, `_rest`, which is made when one of them is first looked at:
    # until then it is a tuple that messages which were read together share; its first element makes the list, of this
    # tuple and of `_at`, where in it the message is. Python's collector looks at no message: none is in a cycle.
    topic: str
    body: bytes
    queue_offset: int
    stored_bytes: int
    _rest: Any
    _at: int

    if TYPE_CHECKING:
        tag: str | None
        keys: tuple[str, ...]
        properties: dict[str, str]
        broker_name: str
        queue_id: int
        physical_offset: int
        message_id: str
        offset_message_id: str
        born_time_ms: int
        born_host: str
        store_time_ms: int
        store_host: str
        reconsume_times: int
        prepared_transaction_position: int
        flag: int
        sys_flag: int
        body_error: str | None
        read_from: str | None
        receipt_handle: str | None

    def __init__(
        self,
        *,
        topic: str,
        body: bytes,
        tag: str | None,
        keys: tuple[str, ...],
        properties: dict[str, str],
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int | None = None,
        log_position: int | None = None,
        stored_bytes: int,
        message_id: str,
        offset_message_id: str,
        born_time_ms: int,
        born_host: str,
        store_time_ms: int,
        store_host: str,
        reconsume_times: int = 0,
        prepared_transaction_position: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> None:
        # `log_position` is its old name.
        if (given := log_position if physical_offset is None else physical_offset) is None:
            raise TypeError("a ReceivedMessage needs its physical_offset")
        self.topic = topic
        self.body = body
        self.queue_offset = queue_offset
        self.stored_bytes = stored_bytes
        self._rest = [UNREAD] * len(LATE)
        self.tag = tag
        self.keys = keys
        self.properties = properties
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.physical_offset = given
        self.message_id = message_id
        self.offset_message_id = offset_message_id
        self.born_time_ms = born_time_ms
        self.born_host = born_host
        self.store_time_ms = store_time_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_position = prepared_transaction_position
        self.flag = flag
        self.sys_flag = sys_flag
        self.body_error = self.read_from = self.receipt_handle = None

    @property
    def log_position(self) -> int:
        """The old name of `physical_offset`."""
        return self.physical_offset

    @property
    def transaction_id(self) -> str:
        """The id that the producer of a transaction knows it by: the message's unique id, or one that all rows of a
        `send_many_in_transaction` share.
        """
        return self.properties.get(ROWS_TRANSACTION) or self.message_id

    def _open(self, waiting: tuple[Any, ...]) -> list[Any]:
        # Two threads may both come here: their lists are equal.
        self._rest = rest = waiting[0](waiting, self._at)
        return rest  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Make the fields that are otherwise made when they are first read: the message keeps nothing else then of what
        it was read from.
        """
        self._rest = [getattr(self, name) for name in LATE]

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    def _kept(self) -> dict[str, Any]:
        """Return the fields, and what a class of an application's adds to them."""
        added = {name: getattr(self, name) for name in self.__struct_fields__[_OWN_FIELDS:]}
        return self._values() | added | getattr(self, "__dict__", {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReceivedMessage) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ReceivedMessage({', '.join(f'{k}={v!r}' for k, v in self._values().items())})"

    # What a Struct has of its own would know of six fields, and share `_rest`.

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self._values().items())

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self._kept())

    def __copy__(self) -> ReceivedMessage:
        return _remade(type(self), self._kept())

    def __replace__(self, /, **changes: Any) -> ReceivedMessage:
        return _remade(type(self), self._kept() | changes)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic that the message belongs to; None for a message of a topic as a whole."""
        return self.properties.get("__LITE_TOPIC")

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from."""
        return MessageQueue(self.read_from or self.topic, self.broker_name, self.queue_id)


_OWN_FIELDS = len(ReceivedMessage.__struct_fields__)


def _remade(cls: type[ReceivedMessage], values: dict[str, Any]) -> ReceivedMessage:
    message: ReceivedMessage = make(cls, "", b"", 0, 0, [UNREAD] * len(LATE), 0)
    for name, value in values.items():
        setattr(message, name, value)
    return message


def _late(at: int) -> property:
    """Return the property of a field that is kept in `_rest`."""

    def get(self: ReceivedMessage) -> Any:
        rest = self._rest
        if type(rest) is tuple:
            rest = self._open(rest)
        value = rest[at]
        return rest[MADE](rest, at) if value is UNREAD else value

    def put(self: ReceivedMessage, value: Any) -> None:
        rest = self._rest
        (self._open(rest) if type(rest) is tuple else rest)[at] = value

    return property(get, put)


for _at, _name in enumerate(LATE):
    setattr(ReceivedMessage, _name, _late(_at))
