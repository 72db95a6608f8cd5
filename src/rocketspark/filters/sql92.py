"""SQL92 message filters, as RocketMQ 5.x understands them. Rule: what a message passes there, it passes here.

The dialect is in docs/sql92.md. Grammar and library load when the first expression is compiled, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from rocketspark.errors import FilterIllegal

LENGTH_MAX = 16384
_CACHED_MAX = 128


class Filter:
    """A compiled expression.

    Attributes:
        expression: its text.
        names: the properties it uses.
        accepts: whether a message with these properties passes: TRUE does, FALSE, unknown and errors do not.
        accepts_record: the same for properties as a record stores them; reads only those in `names`.
    """

    __slots__ = ("accepts", "accepts_record", "expression", "names")

    def __init__(
        self,
        expression: str,
        names: frozenset[str],
        accepts: Callable[[Mapping[str, str]], bool],
        accepts_record: Callable[[bytes], bool],
    ) -> None:
        self.expression = expression
        self.names = names
        self.accepts = accepts
        self.accepts_record = accepts_record

    def __repr__(self) -> str:
        return f"Filter({self.expression!r})"


def compile(expression: str) -> Filter:
    """Compiles an expression; the 128 used last are kept.

    Args:
        expression: at most 16,384 characters, nested at most 100 levels deep.

    Raises:
        FilterIllegal: it is none of RocketMQ's SQL92. `position` is the offset of the mistake; the message names
            line and column, and what was expected.
    """
    if len(expression) > LENGTH_MAX:
        raise FilterIllegal(
            f"filter expression of {len(expression)} characters; at most {LENGTH_MAX} are taken, write it shorter",
            position=LENGTH_MAX,
        )
    found = _compiled(expression)
    if isinstance(found, Filter):
        return found
    raise FilterIllegal(found[0], position=found[1])


@lru_cache(maxsize=_CACHED_MAX)
def _compiled(expression: str) -> Filter | tuple[str, int]:
    """The filter, or text and position of the mistake: wrong ones are kept too, clients repeat them."""
    from rocketspark.filters import sql92_code, sql92_parse

    try:
        root = sql92_parse.parse(expression)
    except FilterIllegal as error:
        return str(error), error.position
    accepts, accepts_record, names = sql92_code.compile_tree(root)
    return Filter(expression, names, accepts, accepts_record)
