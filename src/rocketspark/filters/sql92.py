"""SQL92 message filters, as RocketMQ 5.x understands them. Rule: a filter accepts the messages that it accepts there.

The dialect is in docs/reference/sql92.md. Grammar and library load when the first expression is compiled, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketspark.errors import FilterIllegal

LENGTH_MAX = 16384
_KEPT_MAX = 128


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
    """Compile an expression; the 128 used last are kept.

    Args:
        expression: at most 16,384 characters, nested at most 100 levels deep.

    Raises:
        FilterIllegal: it is none of RocketMQ's SQL92. `position` is the offset of the mistake; the message names
            line and column, and what was expected.
    """
    if not isinstance(expression, str):
        raise FilterIllegal(f"a filter expression is a text, not {type(expression).__name__}", position=0)
    if len(expression) > LENGTH_MAX:
        raise FilterIllegal(
            f"filter expression of {len(expression)} characters; at most {LENGTH_MAX} are taken, write it shorter",
            position=LENGTH_MAX,
        )
    # Without a lock: two threads that compile the same expression get equal filters.
    found = _kept.pop(expression, None) or _compiled(expression)
    _kept[expression] = found
    while len(_kept) > _KEPT_MAX:
        # Drop the filter used longest ago; another thread may have dropped it.
        _kept.pop(next(iter(tuple(_kept))), None)
    if isinstance(found, Filter):
        return found
    raise FilterIllegal(found[0], position=found[1])


def is_quick(expression: str, characters_max: int) -> bool:
    """Tell whether `compile` would return at once: the expression is among those kept, or is short and the grammar is
    loaded.
    """
    return expression in _kept or (bool(_kept) and len(expression) <= characters_max)


_kept: dict[str, Filter | tuple[str, int]] = {}


def _compiled(expression: str) -> Filter | tuple[str, int]:
    """Return the filter, or text and position of the mistake: wrong ones are kept too, as clients repeat them."""
    from rocketspark.filters import sql92_code, sql92_parse

    try:
        root = sql92_parse.parse(expression)
    except FilterIllegal as error:
        return str(error), error.position
    accepts, accepts_record, names = sql92_code.compile_tree(root)
    return Filter(expression, names, accepts, accepts_record)
