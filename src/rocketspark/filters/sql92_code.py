"""Python functions from the tree of an SQL92 filter. Rule: TRUE, FALSE, unknown and errors come out as in RocketMQ.

A message passes if its filter is TRUE. A property that should be a number and is none is an error (ValueError): it
ends the whole evaluation, and the message does not pass, so it matters what is evaluated and in which order.

Every condition can be written in two ways: `_exact` gives True, False or None; `_passes` only says whether it is
TRUE, which is shorter and faster. `last` in `_passes` means that the message fails unless this condition is TRUE;
then errors need not come out either.
"""

from __future__ import annotations

import builtins
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from rocketspark.filters import java_numbers
from rocketspark.filters import sql92_tree as tree

# Deeper code than this goes to a function of its own, for Python bounds how deep an expression may nest.
_FUNCTION_LEVELS = 5
# More terms in a row than this go to functions of their own, too.
_TERMS_MAX = 32

# {0} is the property, {1} the constant. NaN is above all numbers (Double.compareTo), hence the negations.
_DOUBLE_TESTS = {">": "not {0} <= {1}", ">=": "not {0} < {1}", "<": "{0} < {1}", "<=": "{0} <= {1}"}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_COMPARED = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def compile_tree(
    root: tree.Condition,
) -> tuple[Callable[[Mapping[str, str]], bool], Callable[[bytes], bool], frozenset[str]]:
    """Return the filter as functions of a mapping and of stored properties, and the names of the properties it uses."""
    of_mapping = _Code(lambda name: f"get({name!r})", "get")
    of_record = _Code(lambda name: f"find(stored, {_mark(name)!r})", "stored")
    return (
        of_mapping.compile(root, "properties", "get = properties.get"),
        of_record.compile(root, "stored", "stored = PAIR_END + stored"),
        frozenset(of_mapping.names),
    )


class _Code:
    """One filter in the making. `fetch`: source that gets a property; `argument`: what every function hands on."""

    def __init__(self, fetch: Callable[[str], str], argument: str) -> None:
        self._fetch = fetch
        self._argument = argument
        self._functions: list[str] = []
        self._variables = 0
        self._space: dict[str, Any] = dict(_RUNTIME)
        self.names: set[str] = set()

    def compile(self, root: tree.Condition, parameter: str, first: str) -> Callable[[Any], bool]:
        test = self._passes(root, True)
        source = f"def accepts({parameter}):\n {first}\n try:\n  return {test}\n except ValueError:\n  return False\n"
        # One by one: Python lets no other thread run while it compiles.
        for function in (*self._functions, source):
            exec(builtins.compile(function, "<sql92 filter>", "exec"), self._space)
        accepts: Callable[[Any], bool] = self._space["accepts"]
        return accepts

    def _passes(self, node: tree.Condition, last: bool) -> str:
        """Source that is true if the condition is TRUE, and raises what the condition raises unless `last`."""
        match node:
            case tree.AllOf(terms=terms) if last or not any(term.raises for term in terms[1:]):
                return self._apart(node, self._joined([self._passes(term, last) for term in terms], " and "))
            case tree.AnyOf(terms=terms):
                tests = [self._passes(term, False) for term in terms[:-1]] + [self._passes(terms[-1], last)]
                return self._apart(node, self._joined(tests, " or "))
            case tree.AllOf():
                return f"({self._exact(node)} is True)"
            case tree.Not(inner=inner):
                return f"({self._exact(inner)} is False)"
            case tree.Equal(left=tree.Property(), right=tree.Text()):
                return f"({self._value(node.left)} == {self._value(node.right)})"
            case (
                tree.Equal(left=tree.Property(), right=tree.Number())
                | tree.Ordered(left=tree.Property(), right=tree.Number())
            ):
                text = self._variable()
                found = f"({text} := {self._value(node.left)}) is not None"
                return f"({found} and {self._test(text, node)})"
            case tree.OneOf() if not node.negated:
                return f"({self._value(node.inner)} in {self._constant(frozenset(node.values))})"
            case tree.IsNull() | tree.Holds():
                return self._exact(node)
        return f"({self._exact(node)} is True)"

    def _joined(self, tests: list[str], word: str) -> str:
        while len(tests) > _TERMS_MAX:
            groups = (tests[at : at + _TERMS_MAX] for at in range(0, len(tests), _TERMS_MAX))
            tests = [self._function([f"return {word.join(group)}"]) for group in groups]
        return "(" + word.join(tests) + ")"

    def _exact(self, node: tree.Condition) -> str:
        """Source whose value is True, False or None, as the condition is TRUE, FALSE or unknown."""
        match node:
            case tree.AllOf():
                return self._sequence(node.terms, "False")
            case tree.AnyOf():
                return self._sequence(node.terms, "True")
            case tree.Truth():
                return str(node.value)
            case tree.Cast():
                return f"(None if {self._value(node.inner)} is None else False)"
            case tree.Not():
                inner = self._variable()
                source = f"(None if ({inner} := {self._exact(node.inner)}) is None else not {inner})"
            case tree.IsNull(inner=tree.Text() | tree.Number()):
                return str(node.negated)
            case tree.IsNull():
                source = f"({self._value(node.inner)} is {'not ' * node.negated}None)"
            case tree.OneOf():
                text = self._variable()
                test = f"{text} {'not ' * node.negated}in {self._constant(frozenset(node.values))}"
                source = f"(None if ({text} := {self._value(node.inner)}) is None else {test})"
            case tree.Holds():
                source = self._holds(node)
            case tree.Equal():
                source = self._equal(node)
            case tree.Ordered():
                source = self._ordered(node)
            case _:
                raise AssertionError(node)
        return self._apart(node, source)

    def _value(self, node: tree.Node) -> str:
        match node:
            case tree.Property():
                self.names.add(node.name)
                return self._fetch(node.name)
            case tree.Text() | tree.Number():
                return self._constant(node.value)
            case tree.Negated():
                return f"nothing({self._value(node.inner)})"
            case tree.Condition():
                return self._exact(node)
        raise AssertionError(node)

    def _sequence(self, terms: list[tree.Condition], decisive: str) -> str:
        """AND (decisive is False) and OR (True): the first decisive term ends it; else unknown if any term is."""
        truths = [self._exact(term) for term in terms]
        while len(truths) > _TERMS_MAX:
            groups = (truths[at : at + _TERMS_MAX] for at in range(0, len(truths), _TERMS_MAX))
            truths = [self._in_order(group, decisive) for group in groups]
        return self._in_order(truths, decisive)

    def _in_order(self, truths: list[str], decisive: str) -> str:
        lines = ["unknown = False"]
        for truth in truths:
            lines.append(f"truth = {truth}")
            lines.append(f"if truth is {decisive}: return {decisive}")
            lines.append("if truth is None: unknown = True")
        lines.append(f"return None if unknown else {decisive == 'False'}")
        return self._function(lines)

    def _equal(self, node: tree.Equal) -> str:
        kinds = _kind(node.left), _kind(node.right)
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.left, tree.Property) and isinstance(node.right, tree.Text | tree.Number | tree.Truth):
            text = self._variable()
            return f"(None if ({text} := {left}) is None else {self._test(text, node)})"
        if kinds == ("number", "number"):
            assert isinstance(node.left, tree.Number)
            assert isinstance(node.right, tree.Number)
            return str(operator.eq(*_alike(node.left.value, node.right.value)))
        if kinds == ("text", "number"):
            return f"equal({left}, {right}, as_{_reader(node.right)})"
        if kinds == ("number", "text"):
            return f"equal_mirrored({left}, {right}, as_{_reader(node.left)})"
        return f"equal({left}, {right}, {_SAME.get(kinds, 'never')})"

    def _ordered(self, node: tree.Ordered) -> str:
        match node.left, node.right:
            case tree.Number() as left, tree.Number() as right:
                return str(_COMPARED[node.sign](*_alike(left.value, right.value)))
            case tree.Property(), tree.Number():
                text = self._variable()
                return f"(None if ({text} := {self._value(node.left)}) is None else {self._test(text, node)})"
            case tree.Number(), tree.Property():
                mirrored = tree.Ordered(
                    node.position, node.height, node.raises, node.right, _MIRRORED[node.sign], node.left
                )
                return self._ordered(mirrored)
            case tree.Negated(), _:
                return self._value(node.left)
        left_text, right_text = self._variable(), self._variable()
        values = f"None if ({left_text} := {self._value(node.left)}) is None else"
        values += f" None if ({right_text} := {self._value(node.right)}) is None else"
        return f"({values} order(double({left_text}), double({right_text})) {node.sign} 0)"

    def _test(self, text: str, node: tree.Equal | tree.Ordered) -> str:
        """Source that compares the text in a variable, not None, with the constant on the right."""
        sign = node.sign if isinstance(node, tree.Ordered) else "=="
        if isinstance(node.right, tree.Truth):
            return f"({text}.lower() == 'true') is {node.right.value}"
        constant = self._value(node.right)
        if isinstance(node.right, tree.Number):
            text = f"{_reader(node.right)}({text})"
            if isinstance(node.right.value, float) and isinstance(node, tree.Ordered):
                return _DOUBLE_TESTS[sign].format(text, constant)
        return f"{text} {sign} {constant}"

    def _holds(self, node: tree.Holds) -> str:
        if not node.wanted:
            return "False"  # An empty text is in none, and not in none either; what stands before is not evaluated.
        value = self._value(node.inner)
        if _kind(node.inner) != "text":
            return f"(nothing({value}) is not None)"
        text, wanted = self._variable(), self._constant(node.wanted)
        if node.how == "CONTAINS":
            test = f"{wanted} {'not ' * node.negated}in {text}"
        else:
            test = f"{'not ' * node.negated}{text}.{node.how.lower()}({wanted})"
        return f"(({text} := {value}) is not None and {test})"

    def _apart(self, node: tree.Node, source: str) -> str:
        """Return the source, or a call of a function with it where it would nest too deep."""
        return self._function([f"return {source}"]) if node.height % _FUNCTION_LEVELS == 0 else source

    def _function(self, lines: list[str]) -> str:
        name = f"part{len(self._functions)}"
        self._functions.append(f"def {name}({self._argument}):\n " + "\n ".join(lines) + "\n")
        return f"{name}({self._argument})"

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _constant(self, value: object) -> str:
        """Return the source of a constant: numbers and texts themselves, sets by a name."""
        if isinstance(value, int | float | str):
            return f"({value!r})" if isinstance(value, int | float) else repr(value)
        name = f"c{len(self._space)}"
        self._space[name] = value
        return name


def _mark(name: str) -> bytes:
    return b"\x02" + name.encode() + b"\x01"


def _kind(node: tree.Node) -> str:
    """Return the kind of a node's value, when it is known: text, number, truth or nothing."""
    if isinstance(node, tree.Property | tree.Text):
        return "text"
    if isinstance(node, tree.Number):
        return "number"
    return "truth" if isinstance(node, tree.Condition) else "nothing"


def _reader(node: tree.Node) -> str:
    """Return the function that reads a text to compare it with a number: as wide as the number, not as the text."""
    assert isinstance(node, tree.Number)
    if isinstance(node.value, float):
        return "double"
    return "int64" if node.wide else "int32"


def _alike(left: int | float, right: int | float) -> tuple[int | float, int | float]:
    """Return two numbers as Java compares them: as doubles as soon as one of them is a double."""
    if isinstance(left, float) or isinstance(right, float):
        return float(left), float(right)
    return left, right


def _equal(left: Any, right: Any, same: Callable[[Any, Any], bool]) -> bool | None:
    """=, for any two values. An unknown on the left alone is unknown, on the right alone FALSE, on both TRUE."""
    if left is None:
        return True if right is None else None
    return False if right is None else same(left, right)


def _equal_mirrored(left: Any, right: Any, same: Callable[[Any, Any], bool]) -> bool | None:
    return _equal(left, right, lambda one, other: same(other, one))


def _as(read: Callable[[str], float]) -> Callable[[str, float], bool]:
    return lambda text, number: read(text) == number


def _fail(left: object, right: object) -> NoReturn:
    raise ValueError("RocketMQ cannot compare a condition with a text")


def _nothing(value: object) -> None:
    return None


def _find(stored: bytes, mark: bytes) -> str | None:
    """Return the value of a property in stored bytes (`0x02 name 0x01 value` repeated); if it repeats, the last one."""
    _, found, rest = stored.rpartition(mark)
    if not found:
        return None
    if value := rest.partition(b"\x02")[0]:
        return value.decode("utf-8", "replace")
    # The last one is empty: one pass finds the last that is not, however many are.
    values = re.findall(re.escape(mark) + b"([^\x02]+)", stored)
    return values[-1].decode("utf-8", "replace") if values else None


_SAME = {
    ("text", "text"): "same",
    ("truth", "truth"): "same",
    ("text", "truth"): "as_truth",
    ("truth", "text"): "fail",
}

_RUNTIME: dict[str, Any] = {
    "int32": java_numbers.int32,
    "int64": java_numbers.int64,
    "double": java_numbers.double,
    "order": java_numbers.order,
    "equal": _equal,
    "equal_mirrored": _equal_mirrored,
    "as_int32": _as(java_numbers.int32),
    "as_int64": _as(java_numbers.int64),
    "as_double": _as(java_numbers.double),
    "as_truth": lambda text, truth: (text.lower() == "true") is truth,
    "same": operator.eq,
    "never": lambda left, right: False,
    "fail": _fail,
    "nothing": _nothing,
    "find": _find,
    "PAIR_END": b"\x02",
}
