"""The filter of a read. Rule: a broker may let other messages pass, so each row is tested again; none may be lost.

Brokers compare hash codes of tags, and Apache RocketMQ refuses SQL92 unless enablePropertyFilter is on: both cost time
only, never rows.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.arrow.decode_request import INT64_MAX, INT64_MIN, RowFilter
from rocketspark.errors import FilterIllegal
from rocketspark.filters import sql92
from rocketspark.model import Subscription, subscribe
from rocketspark.model.subscription import SQL92, can_be_asked
from rocketspark.model.text import string_hash
from rocketspark.tables.options import ReadOptions

EVERY_MESSAGE = subscribe("")
# More tags than this are left to the executors: the broker would parse them at each pull.
_TAGS_ASKED_MAX = 256


class NumberRange(NamedTuple):
    """Whole numbers from `first` to `last`, both included."""

    first: int = INT64_MIN
    last: int = INT64_MAX

    def both(self, other: NumberRange) -> NumberRange:
        """Return the numbers in both ranges."""
        return NumberRange(max(self.first, other.first), min(self.last, other.last))

    @property
    def empty(self) -> bool:
        """True if the range holds no number."""
        return self.first > self.last


class ReadFilter(NamedTuple):
    """Which messages a read gives, by its options and the filters taken over from Spark; `tags`: None for any tag, or
    none.
    """

    tags: frozenset[str] | None = None
    sql: str | None = None
    key: str | None = None
    stored_us: NumberRange = NumberRange()

    @classmethod
    def of(cls, options: ReadOptions) -> ReadFilter:
        """Return the filter of the options."""
        return cls(subscribe("", options.tags).tags or None, options.sql, options.key)

    def narrowed(self, tags: frozenset[str] | None, stored_us: NumberRange) -> ReadFilter:
        """Return this filter with further conditions: `tags`, None for any, and the store times in us."""
        both = self.tags if tags is None else tags if self.tags is None else self.tags & tags
        return self._replace(tags=both, stored_us=self.stored_us.both(stored_us))

    def wanted(self) -> RowFilter:
        """Return the conditions that executors test each row by."""
        compiled = sql92.compile(self.sql) if self.sql else None
        return RowFilter(
            self.tags,
            self.key,
            compiled.accepts_record if compiled else None,
            compiled.accepts if compiled else None,
            (self.stored_us.first, self.stored_us.last),
        )

    def codes(self) -> frozenset[int] | None:
        """Return the hash codes that consume queues hold for the tags; None if the tags cannot be found by them, or any
        tag will do.
        """
        if self.tags is None or any("\ufffd" in tag for tag in self.tags):
            return None
        return frozenset(map(string_hash, self.tags))

    def asked(self) -> Subscription:
        """Return the subscription that brokers are asked for: it may let more messages pass than the filter, but none
        less.
        """
        tags = self.tags
        if tags is not None and not (0 < len(tags) <= _TAGS_ASKED_MAX and all(map(can_be_asked, tags))):
            tags = None
        if self.sql is None:
            return subscribe("", " || ".join(sorted(tags))) if tags else EVERY_MESSAGE
        if tags:
            quoted = ", ".join("'" + tag.replace("'", "''") + "'" for tag in sorted(tags))
            both = f"({self.sql}) AND TAGS IN ({quoted})"
            try:
                return subscribe("", sql92.compile(both).expression, kind=SQL92)
            except FilterIllegal:
                pass  # Too long or too deep, or it ends in a comment.
        return subscribe("", self.sql, kind=SQL92)
