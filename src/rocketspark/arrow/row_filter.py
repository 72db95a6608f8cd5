"""The choice of the records that become rows. Rule: equal to `accepts` on each message as the row decoder makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rocketspark.model import ReceivedMessage

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class RowFilter(NamedTuple):
    """The conditions on a row, all of which must hold; none by default.

    Attributes:
        tags: its tag is one of these; None for any, or none. An empty set wants no row.
        key: one of its keys is this.
        accepts_record: true for its properties as the record stores them; `accepts`: the same for them as a mapping.
        stored_us: (first, last) store time in us since 1970, both included.
    """

    tags: frozenset[str] | None = None
    key: str | None = None
    accepts_record: Callable[[bytes], bool] | None = None
    accepts: Callable[[Mapping[str, str]], bool] | None = None
    stored_us: tuple[int, int] = (INT64_MIN, INT64_MAX)

    @property
    def any_time(self) -> bool:
        """True if the store time does not matter."""
        return self.stored_us == (INT64_MIN, INT64_MAX)

    def takes(self, message: ReceivedMessage) -> bool:
        """Tell whether a message meets the conditions."""
        return (
            (self.tags is None or message.tag in self.tags)
            and (self.key is None or self.key in message.keys)
            and self.stored_us[0] <= message.store_time_ms * 1000 <= self.stored_us[1]
            and (self.accepts is None or self.accepts(message.properties))
        )


EVERYTHING = RowFilter()
