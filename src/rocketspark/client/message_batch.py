"""Messages that were read, as columns.

Rule: a column of a MessageBatch equals the field of each of its messages, whichever of the two is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar, overload

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rocketspark.errors import ConfigError, RecordError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.message import properties as stored_properties
from rocketspark.protocol.message import record, sysflags
from rocketspark.protocol.message.record_places import find_records
from rocketspark.protocol.message.record_rows import RecordRows

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

# Flags of records whose body is not the message's as it lies there.
_NOT_AS_STORED = sysflags.COMPRESSED | sysflags.INNER_BATCH | sysflags.NEED_UNWRAP


class _Records(msgspec.Struct, frozen=True):
    """Messages of one queue as records, not decoded. `topic`: that of the messages, without a namespace."""

    rows: RecordRows
    broker_name: str
    topic: str

    def __len__(self) -> int:
        return len(self.rows)

    def messages(self) -> list[ReceivedMessage]:
        found = record.decode_messages(b"".join(self.rows.records()), self.broker_name)
        for message in found:
            message.topic = self.topic
        return found


_Part = _Records | list[ReceivedMessage]
T = TypeVar("T")


class MessageBatch(Sequence[ReceivedMessage]):
    """Messages that were read, as columns: no object is made for a message until one is asked for.

    `batch[i]` and iteration give messages; `batch[i:j]`, and `batch[mask]` with a row of truth values as long as the
    batch, give a smaller batch. Columns that are numbers are numpy arrays of 64 bits, to be read only, which share no
    memory with what was received; the others are lists. Times are ms since 1970. A batch is a value and stays as it is;
    it keeps what was received for as long as it lives.
    """

    def __init__(self, messages: Iterable[ReceivedMessage] = ()) -> None:
        self._parts: list[_Part] = [list(messages)]

    @classmethod
    def of_parts(cls, parts: Iterable[Sequence[ReceivedMessage]]) -> Self:
        """Return one batch of several batches and lists of messages."""
        found: list[_Part] = []
        for part in parts:
            if isinstance(part, MessageBatch):
                found += part._parts
            else:
                found.append(list(part))
        return cls._of(found)

    @classmethod
    def of_records(cls, data: bytes, queue: MessageQueue) -> Self | None:
        """Return the messages of a pull's reply as columns.

        None if a record has to be decoded by `record.decode_messages`: one that is compressed, an inner batch, or
        damaged.
        """
        try:
            rows = RecordRows(data, find_records(data, (0, len(data))))
            rows.check()
        except RecordError:
            return None
        if (rows.sys_flags & _NOT_AS_STORED).any() or (rows.number("position") < 0).any():
            return None
        if not rows.is_of(queue.topic.encode()) or rows.wrong_crcs():
            return None
        return cls._of([_Records(rows, queue.broker_name, queue.topic)])

    @classmethod
    def _of(cls, parts: list[_Part]) -> Self:
        self = cls.__new__(cls)
        self._parts = parts
        return self

    # -- as a sequence -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _messages(self) -> list[ReceivedMessage]:
        """Return all messages as objects, the same ones from now on."""
        if len(self._parts) != 1 or isinstance(self._parts[0], _Records):
            found: list[ReceivedMessage] = []
            for part in self._parts:
                found += part.messages() if isinstance(part, _Records) else part
            self._parts = [found]
        only = self._parts[0]
        assert isinstance(only, list)
        return only

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._messages())

    @overload
    def __getitem__(self, wanted: int) -> ReceivedMessage: ...

    @overload
    def __getitem__(self, wanted: slice | Sequence[bool] | NDArray[np.bool_]) -> MessageBatch: ...

    def __getitem__(self, wanted: int | slice | Sequence[bool] | NDArray[np.bool_]) -> ReceivedMessage | MessageBatch:
        if isinstance(wanted, slice):
            first, end, step = wanted.indices(len(self))
            if step == 1:
                return self._between(first, max(first, end))
            return MessageBatch(self._messages()[wanted])
        if isinstance(wanted, int | np.integer):
            at = int(wanted) + (len(self) if wanted < 0 else 0)
            if not 0 <= at < len(self):
                raise IndexError(f"message {wanted} of a batch of {len(self)}")
            return self._between(at, at + 1)._messages()[0]
        # Of no truth values numpy makes numbers.
        mask = np.asarray(wanted, bool if not len(wanted) else None)
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise UsageError(f"a batch of {len(self)} messages takes an index, a slice, or as many truth values")
        return self._only(mask)

    def _between(self, first: int, end: int) -> MessageBatch:
        found: list[_Part] = []
        for part in self._parts:
            some = slice(max(first, 0), max(end, 0))
            if some.start < min(some.stop, len(part)):
                if isinstance(part, _Records):
                    found.append(replace(part, rows=part.rows.between(some.start, some.stop)))
                else:
                    found.append(part[some])
            first, end = first - len(part), end - len(part)
        return MessageBatch._of(found)

    def _only(self, mask: NDArray[np.bool_]) -> MessageBatch:
        found: list[_Part] = []
        for part in self._parts:
            chosen, mask = mask[: len(part)], mask[len(part) :]
            if isinstance(part, _Records):
                found.append(replace(part, rows=part.rows.only(chosen)))
            else:
                found.append([part[i] for i in np.flatnonzero(chosen).tolist()])
        return MessageBatch._of(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageBatch) and self._messages() == other._messages()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} messages from {', '.join(map(str, self.queues)) or 'nowhere'}>"

    # -- columns -------------------------------------------------------------------------------------------------

    def _column(self, of_records: Callable[[_Records], list[T]], of_message: Callable[[ReceivedMessage], T]) -> list[T]:
        found: list[T] = []
        for part in self._parts:
            found += of_records(part) if isinstance(part, _Records) else [of_message(message) for message in part]
        return found

    def _number(self, field: str, name: str = "") -> NDArray[np.int64]:
        found = [np.zeros(0, np.int64)]
        for part in self._parts:
            if isinstance(part, _Records):
                found.append(part.rows.number(field))
            else:
                found.append(np.array([getattr(message, name or field) for message in part], np.int64))
        made = np.concatenate(found).astype(np.int64)
        # It is kept, and tells what is done: one that an application changes would count as never done.
        made.flags.writeable = False
        return made

    def _property(self, name: str) -> list[str | None]:
        wanted = name.encode()

        def of_records(part: _Records) -> list[str | None]:
            values = [stored_properties.find(stored, wanted) for stored in part.rows.stored_properties()]
            return [None if value is None else value.decode("utf-8", "replace") for value in values]

        return self._column(of_records, lambda message: message.properties.get(name))

    @cached_property
    def bodies(self) -> list[bytes]:
        """The bodies."""
        return self._column(lambda part: part.rows.stored_bodies(), lambda message: message.body)

    @cached_property
    def topics(self) -> list[str]:
        """The topic of each message."""
        return self._column(lambda part: [part.topic] * len(part), lambda message: message.topic)

    @cached_property
    def tags(self) -> list[str | None]:
        """The tag of each message, None for one without."""
        return self._property(stored_properties.TAGS)

    @cached_property
    def keys(self) -> list[tuple[str, ...]]:
        """The keys of each message."""
        return [tuple(keys.split()) if keys else () for keys in self._property(stored_properties.KEYS)]

    @cached_property
    def message_ids(self) -> list[str]:
        """The unique id of each message that its producer gave it; for a message without one, the broker's offset
        message id.
        """
        found = self._property(stored_properties.UNIQUE_ID)
        return [self[at].message_id if one is None else one for at, one in enumerate(found)]

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        """All properties of each message, system ones too."""
        return self._column(
            lambda part: [
                stored_properties.decode(stored.decode("utf-8", "replace")) for stored in part.rows.stored_properties()
            ],
            lambda message: message.properties,
        )

    @cached_property
    def queue_ids(self) -> NDArray[np.int64]:
        """The number of each message's queue."""
        return self._number("queue_id")

    @cached_property
    def queue_offsets(self) -> NDArray[np.int64]:
        """The queue offset of each message."""
        return self._number("queue_offset")

    @cached_property
    def physical_offsets(self) -> NDArray[np.int64]:
        """The byte of the broker's commit log where each message begins."""
        return self._number("position", "physical_offset")

    @cached_property
    def stored_bytes(self) -> NDArray[np.int64]:
        """How many bytes each message takes in the log."""
        return self._number("size", "stored_bytes")

    @cached_property
    def born_times_ms(self) -> NDArray[np.int64]:
        """When each message was sent."""
        return self._number("born_time_ms")

    @cached_property
    def store_times_ms(self) -> NDArray[np.int64]:
        """When each message was stored."""
        return self._number("store_time_ms")

    @cached_property
    def flags(self) -> NDArray[np.int64]:
        """The flag of each message: the application's own 32-bit number."""
        return self._number("flag")

    @property
    def reconsume_times(self) -> NDArray[np.int64]:
        """How often a consumer gave each message back."""
        return self._number("reconsume_times")

    def _firsts(self) -> Iterator[tuple[MessageQueue, int, int]]:
        """Yield of each run of one queue the queue, the lowest offset and the one after the highest."""
        for part in self._parts:
            if isinstance(part, _Records):
                if offsets := part.rows.offsets.tolist():
                    queue_id = int(part.rows.number("queue_id")[0])
                    yield MessageQueue(part.topic, part.broker_name, queue_id), min(offsets), max(offsets) + 1
            else:
                for message in part:
                    yield message.queue, message.queue_offset, message.queue_offset + 1

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that the messages were read from, each once, in the order in which they come."""
        return list(dict.fromkeys(queue for queue, _, _ in self._firsts()))

    @property
    def first_offsets(self) -> dict[MessageQueue, int]:
        """The lowest offset in this batch, by queue."""
        found: dict[MessageQueue, int] = {}
        for queue, first, _ in self._firsts():
            found[queue] = min(first, found.get(queue, first))
        return found

    @property
    def next_offsets(self) -> dict[MessageQueue, int]:
        """The offset after the last message of this batch, by queue: what to commit once all of them are done."""
        found: dict[MessageQueue, int] = {}
        for queue, _, end in self._firsts():
            found[queue] = max(end, found.get(queue, end))
        return found

    # -- tables --------------------------------------------------------------------------------------------------

    def to_arrow(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return the messages as a table with the columns of `format("rocketmq")`: `topic`, `body`, `queueOffset` …

        `columns`: the names of those that are wanted, in this order; all by default. Raises UsageError for a name that
        is none of them, ConfigError without pyarrow.
        """
        try:
            from rocketspark.arrow import records
            from rocketspark.arrow.message_columns import COLUMNS
        except ImportError:
            raise ConfigError("a table needs pyarrow: pip install 'rocketspark[arrow]'") from None
        try:
            return records.table(
                [part if isinstance(part, list) else (part.rows, part.broker_name, part.topic) for part in self._parts],
                columns,
            )
        except KeyError as e:
            raise UsageError(f"there is no column {e}: the columns are {', '.join(COLUMNS)}") from None

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Return the messages as a data frame of pandas, as `to_arrow`. Raises ConfigError without pandas."""
        try:
            return self.to_arrow(columns).to_pandas()
        except ImportError:
            raise ConfigError("a data frame needs pandas: pip install 'rocketspark[arrow]' pandas") from None

    def to_polars(self, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """Return the messages as a data frame of Polars, as `to_arrow`. Raises ConfigError without Polars."""
        try:
            import polars
        except ImportError:
            raise ConfigError("a data frame of Polars needs it: pip install 'rocketspark[polars]'") from None
        found = polars.from_arrow(self.to_arrow(columns))
        assert isinstance(found, polars.DataFrame)
        return found


# Messages on their way to an application: objects, or columns.
Messages = list[ReceivedMessage] | MessageBatch


def messages_given(given: ReceivedMessage | Messages) -> list[ReceivedMessage]:
    """Return the messages that a call of a listener got: one, a list or a batch."""
    return [given] if isinstance(given, ReceivedMessage) else list(given)


def without_namespace(messages: Messages, space: str) -> Messages:
    """Take the namespace `space`, "" for none, off the topics of messages that were just decoded, and return these."""
    if not space:
        return messages
    if isinstance(messages, MessageBatch):
        messages._parts = [
            replace(part, topic=namespace.unwrap(space, part.topic))
            if isinstance(part, _Records)
            else list(without_namespace(part, space))
            for part in messages._parts
        ]
        return messages
    for message in messages:
        message.topic = namespace.unwrap(space, message.topic)
    return messages
