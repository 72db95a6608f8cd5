"""The tree of an SQL92 filter, with RocketMQ's checks. Rule: a node can only be made if it passes them.

Source of every check: the parser and expression classes of rocketmq-filter 5.5.0, as measured by
tests/vectors/sql92.json. Three kinds of value run through a tree: texts (properties and strings), numbers and
booleans; each may be unknown (None).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from rocketspark.errors import FilterIllegal
from rocketspark.filters import java_numbers
from rocketspark.model.text import whole_number

NESTING_MAX = 100


@dataclass(slots=True)
class Node:
    """A node of the tree. `position`: offset of its first character; `height`: levels of nesting in it; `raises`: its
    evaluation may raise an error.
    """

    position: int
    height: int
    raises: bool


@dataclass(slots=True)
class Property(Node):
    """A property of the message, by its name."""

    name: str


@dataclass(slots=True)
class Text(Node):
    """A string literal."""

    value: str


@dataclass(slots=True)
class Number(Node):
    """`literal`: written without a minus. `wide`: an integer of 64 bits, else of 32."""

    value: int | float
    wide: bool
    literal: bool


@dataclass(slots=True)
class Negated(Node):
    """A minus before something that is not a number literal: its value is always unknown, after `inner` was
    evaluated.
    """

    inner: Node


class Condition(Node):
    """A node that is TRUE, FALSE or unknown."""

    __slots__ = ()


@dataclass(slots=True)
class Truth(Condition):
    """The literal TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(slots=True)
class Cast(Condition):
    """A property where a condition is needed: unknown if it is absent, else FALSE, as a property is never a boolean."""

    inner: Property


@dataclass(slots=True)
class Not(Condition):
    """NOT of a condition."""

    inner: Condition


@dataclass(slots=True)
class AllOf(Condition):
    """Conditions joined by AND."""

    terms: list[Condition]


@dataclass(slots=True)
class AnyOf(Condition):
    """Conditions joined by OR."""

    terms: list[Condition]


@dataclass(slots=True)
class Equal(Condition):
    """Two values compared by =."""

    left: Node
    right: Node


@dataclass(slots=True)
class Ordered(Condition):
    """Two values compared by `sign`: one of > >= < <=."""

    left: Node
    sign: str
    right: Node


@dataclass(slots=True)
class IsNull(Condition):
    """IS NULL, or IS NOT NULL where `negated`."""

    inner: Node
    negated: bool


@dataclass(slots=True)
class OneOf(Condition):
    """A property IN a list of strings, or NOT IN it where `negated`."""

    inner: Property
    values: list[str]
    negated: bool


@dataclass(slots=True)
class Holds(Condition):
    """CONTAINS, STARTSWITH or ENDSWITH, by `how`."""

    inner: Node
    how: str
    wanted: str
    negated: bool


def refuse(text: str, position: int) -> NoReturn:
    """Raise FilterIllegal at the offset `position`; the parser adds line and column."""
    raise FilterIllegal(text, position=position)


def above(position: int, *inner: Node) -> int:
    """Return the height of a node at `position` that is put over the nodes `inner`. Raises FilterIllegal if it is above
    NESTING_MAX.
    """
    height = 1 + max((node.height for node in inner), default=0)
    if height > NESTING_MAX:
        refuse(f"nested deeper than {NESTING_MAX} levels; write it flatter", position)
    return height


def enclosed(node: Node, position: int) -> Node:
    """Return the node in parentheses or behind a plus: the same, one level deeper."""
    node.height = above(position, node)
    return node


def boolean(node: Node) -> Condition:
    """Return the node as a condition. Raises FilterIllegal for a value alone."""
    if isinstance(node, Condition):
        return node
    if isinstance(node, Property):
        return Cast(node.position, above(node.position, node), False, node)
    refuse("expected a condition here, such as a = 1, not a value alone", node.position)


def integer(text: str, position: int) -> Number:
    """Return an integer literal: 32 bits if it fits, whatever its suffix; 64 at most."""
    value = whole_number(text.rstrip("lL"))
    if value is None:
        refuse(f"integers go up to {java_numbers.INT64_MAX}; write larger ones with a decimal point", position)
    return Number(position, 1, False, value, value > java_numbers.INT32_MAX, True)


def floating(text: str, position: int) -> Number:
    """Return a literal with a point or exponent: a double, neither infinite nor zero."""
    value = float(text)
    if value == float("inf"):
        refuse(f"{text} is too large for a double", position)
    if value == 0.0:
        refuse(f"RocketMQ takes no {text} (a decimal literal must be at least 4.9E-324); write 0 or 1E-300", position)
    return Number(position, 1, False, value, True, True)


def negate(node: Node, position: int) -> Node:
    """Return a node with a minus before it: a number literal is negated, anything else becomes unknown."""
    height = above(position, node)
    if isinstance(node, Number):
        return Number(position, height, False, -node.value, node.wide, False)
    return Negated(position, height, node.raises, node)


def invert(node: Node, position: int) -> Not:
    """Return NOT of a node. It binds closer than any comparison: NOT a = 1 is (NOT a) = 1."""
    inner = boolean(node)
    return Not(position, above(position, inner), inner.raises, inner)


def join(kind: type[AllOf] | type[AnyOf], nodes: list[Node]) -> Node:
    """Return nodes joined by AND or OR, each as a condition; a single one as it is. Raises FilterIllegal."""
    if len(nodes) == 1:
        return nodes[0]
    terms = [boolean(node) for node in nodes]
    return kind(nodes[0].position, above(nodes[0].position, *terms), any(term.raises for term in terms), terms)


def equal(left: Node, right: Node) -> Equal:
    """Return a comparison by =. Raises FilterIllegal for values that RocketMQ does not compare."""
    for node in (left, right):
        if isinstance(node, Truth) and node.value is None:
            refuse("NULL cannot be compared; use IS NULL or IS NOT NULL", node.position)
    if isinstance(left, Truth) and (isinstance(right, Text) or (isinstance(right, Number) and right.literal)):
        refuse("TRUE and FALSE cannot be compared with a string or number", right.position)
    raises = left.raises or right.raises or not (_is_text(left) and _is_text(right))
    return Equal(left.position, above(left.position, left, right), raises, left, right)


def ordered(left: Node, sign: str, right: Node) -> Ordered:
    """Return a comparison by order. Raises FilterIllegal unless both sides are numbers or properties."""
    for node in (left, right):
        if isinstance(node, Text | Condition):
            hint = f"; NOT binds closer, write NOT (... {sign} ...)" if isinstance(node, Not) else ""
            refuse(f"only numbers and properties can be compared by {sign}{hint}", node.position)
    return Ordered(left.position, above(left.position, left, right), True, left, sign, right)


def between(value: Node, low: Node, high: Node) -> Condition:
    """Return BETWEEN as two comparisons. Raises FilterIllegal if the lower number does not come first."""
    if isinstance(low, Number) and isinstance(high, Number) and low.literal and high.literal:
        backwards = high.value < low.value
        if isinstance(high.value, float) or isinstance(low.value, float):
            backwards = float(high.value) < float(low.value)
        if backwards:
            refuse("BETWEEN needs the lower value first", low.position)
    return _both(AllOf, ordered(value, ">=", low), ordered(value, "<=", high))


def not_between(value: Node, low: Node, high: Node) -> Condition:
    """Return NOT BETWEEN as two comparisons; here RocketMQ does not check that the lower value comes first."""
    return _both(AnyOf, ordered(value, "<", low), ordered(value, ">", high))


def is_null(node: Node, negated: bool) -> IsNull:
    """Return IS NULL of a node, or IS NOT NULL."""
    return IsNull(node.position, above(node.position, node), node.raises, node, negated)


def one_of(node: Node, values: list[str], negated: bool) -> OneOf:
    """Return IN, or NOT IN. Raises FilterIllegal unless a property stands before it."""
    if not isinstance(node, Property):
        hint = "; write a NOT IN (...), for NOT binds closer than IN" if isinstance(node, Not) else ""
        refuse(f"IN needs a property name before it{hint}", node.position)
    return OneOf(node.position, above(node.position, node), False, node, values, negated)


def holds(node: Node, how: str, wanted: str, negated: bool) -> Holds:
    """Return CONTAINS, STARTSWITH or ENDSWITH, or one of them negated."""
    return Holds(node.position, above(node.position, node), node.raises, node, how.upper(), wanted, negated)


def _both(kind: type[AllOf] | type[AnyOf], first: Ordered, second: Ordered) -> Condition:
    # A negated value is unknown, so the second comparison changes nothing; leaving it out keeps the cost of
    # BETWEEN within BETWEEN within BETWEEN from doubling at each level.
    if isinstance(first.left, Negated):
        return first
    return boolean(join(kind, [first, second]))


def _is_text(node: Node) -> bool:
    return isinstance(node, Property | Text)
