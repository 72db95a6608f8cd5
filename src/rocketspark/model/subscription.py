"""A consumer's subscription to a topic: the parsed filter expression."""

from __future__ import annotations

import msgspec

from rocketspark import machine
from rocketspark.errors import FilterIllegal
from rocketspark.model.text import string_hash

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"
EXPRESSION_LENGTH_MAX = 65_536


class Subscription(msgspec.Struct, frozen=True):
    """A topic and the filter of its messages. `codes`: the tags' hash codes; `version` (ms since 1970): the newest of
    several subscriptions counts.
    """

    topic: str
    expression: str = ALL
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0

    @property
    def is_all(self) -> bool:
        """True if every message of the topic is wanted."""
        return self.expression_type == TAG and self.expression == ALL


def newer_version(last: int) -> int:
    """Return the version of a subscription that is made now. `last`: that of the one before, 0 for none.

    Brokers keep the filter of the highest one: a clock that is set back makes no new filter an old one.
    """
    return max(int(machine.time() * 1000), last + 1)


def can_be_asked(tag: str) -> bool:
    """Tell whether a tag can stand in an expression of tags, where `||` parts them and blanks around them are trimmed
    (rule: FilterAPI, 5.x). U+FFFD stands for bytes that are no text.
    """
    return tag.strip() == tag not in ("", ALL) and "||" not in tag and "\ufffd" not in tag


def subscribe(topic: str, expression: str | None = ALL, *, version: int = 0, kind: str = TAG) -> Subscription:
    """Parse `"*"`, `"TagA || TagB"` or an SQL92 text into a subscription.

    Tags are split at `||` and trimmed; an empty expression means all (rule: FilterAPI, 5.x). Raises FilterIllegal for
    one of more than 65,536 characters.
    """
    if not isinstance(expression, str | None):
        kind_of = type(expression).__name__
        raise FilterIllegal(f"a filter expression is a text such as 'TagA || TagB', not {kind_of}", position=0)
    text = (expression or "").strip()
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise FilterIllegal(
            f"a filter expression of {len(text)} characters for topic {topic}; at most {EXPRESSION_LENGTH_MAX} are"
            " taken: subscribe to fewer tags, or to *",
            position=EXPRESSION_LENGTH_MAX,
        )
    if kind != TAG:
        return Subscription(topic, text, kind, version=version)
    tags = frozenset(t for t in (part.strip() for part in text.split("||")) if t)
    if not tags or text == ALL:
        return Subscription(topic, ALL, TAG, version=version)
    return Subscription(topic, text, TAG, tags, frozenset(string_hash(t) for t in tags), version)
