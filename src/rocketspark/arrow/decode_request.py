"""A request to decode records: the columns and the range of offsets that are wanted, the filter of rows, and the object
that is called for records that are missing or broken.

Rule: a row is wanted if `RowFilter.takes` is true for its message as the decoder of messages makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rocketspark.arrow.message_columns import COLUMNS
from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class RowFilter(NamedTuple):
    """The conditions that a message must meet to become a row, all of them; by default there is none.

    Attributes:
        tags: the message's tag is one of these; None for any tag, or no tag. An empty set wants no row.
        key: one of the message's keys is this.
        accepts_record: true for the message's properties as the record stores them; `accepts`: the same as a mapping.
        stored_us: (first, last) store time in us since 1970, both included.
    """

    tags: frozenset[str] | None = None
    key: str | None = None
    accepts_record: Callable[[bytes], bool] | None = None
    accepts: Callable[[Mapping[str, str]], bool] | None = None
    stored_us: tuple[int, int] = (INT64_MIN, INT64_MAX)

    @property
    def any_time(self) -> bool:
        """True if the filter sets no bounds to the store time."""
        return self.stored_us == (INT64_MIN, INT64_MAX)

    def takes(self, message: ReceivedMessage) -> bool:
        """Tell whether a message meets the conditions."""
        return (
            (self.tags is None or message.tag in self.tags)
            and (self.key is None or self.key in message.keys)
            and self.stored_us[0] <= message.store_time_ms * 1000 <= self.stored_us[1]
            and (self.accepts is None or self.accepts(message.properties))
        )


class DecodeFindings:
    """Called by a decoder for each problem that it finds. This class ignores missing records, and raises an error for a
    body that cannot be read.
    """

    def missing(self, first: int, end: int) -> None:
        """Note that no record of the queue offsets [first, end) came, though all of the range were asked for."""

    def spoiled(self, offset: int, why: str, stored: bytes | None) -> bytes | None:
        """Return the bytes that stand for the body of the message at a queue offset, as that body cannot be read.
        `why`: the reason.

        `stored`: the body's bytes as they are stored; None where a whole batch of messages is one body, which is lost
        then.
        """
        raise RecordError(f"the message at queue offset {offset}: {why}")


class DecodeRequest(NamedTuple):
    """What `records.batches` makes of a buffer's records.

    Attributes:
        columns: names of COLUMNS, in the order wanted; none of the others is decoded.
        broker: for column `broker`, which the records don't know.
        topic: the topic of all records where the caller knows it, which saves reading it.
        offset_first, offset_end: rows whose queue offset is outside [first, end) are left out.
        position_end: if given, so are rows that do not lie before this place in the log.
        wanted: what else a row must be; columns of other rows are not decoded.
        ascending: a row whose queue offset does not come after that of every row before it is left out: for a queue
            that was read in pieces which may overlap.
        check_crc: compare the bodies with their CRC (adds 0.2 us a row).
        whole: all offsets from `offset_first` to `offset_end` should be there, ascending; `findings.missing` is called
            for those that are not.
        findings: called for missing records, and for bodies that don't inflate or have a wrong CRC; by default the
            latter are an error.
        inflated_bytes_max: bodies of so many bytes, as they inflate, make one batch of rows; one body alone may be
            larger.
    """

    columns: Sequence[str] = tuple(COLUMNS)
    broker: str = ""
    topic: str | None = None
    offset_first: int = 0
    offset_end: int = INT64_MAX
    position_end: int | None = None
    wanted: RowFilter = RowFilter()
    ascending: bool = False
    check_crc: bool = False
    whole: bool = False
    findings: DecodeFindings = DecodeFindings()
    inflated_bytes_max: int = 32 << 20
