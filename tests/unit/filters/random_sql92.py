"""Random SQL92 filters as text, for Java to judge. Rule: `choose` is the only source of chance, so a seed repeats all.

Expressions are mostly legal ones; some mix kinds in ways the dialect refuses, which is to be seen too.
"""

from __future__ import annotations

from random import Random

NAMES = ("a", "b", "c", "$d_1")
VALUES = (
    "1", "2", "5", "-3", "+5", "05", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "1.5", "5.0", "-0.0", " 5 ", "5f", "1e2", "NaN", "Infinity", "-Infinity", "0x1p3", "1_000",
    "x", "xy", "it's", "true", "TRUE", "false", "inf", "\u0665", "é", "\U0001d7d3",
)  # fmt: skip
NUMBERS = ("0", "1", "2", "5", "5L", "2147483647", "2147483648", "9223372036854775807", "1.5", "5.0", "5.", ".5", "1e2")
TEXTS = ("'x'", "'xy'", "'5'", "''", "'it''s'", "'true'", "'é'", "'1.5'")


def properties(choose: Random) -> dict[str, str]:
    return {name: choose.choice(VALUES) for name in NAMES if choose.random() < 0.7}


def condition(choose: Random, depth: int) -> str:
    """A condition up to `depth` levels deep."""
    if depth > 0 and choose.random() < 0.6:
        kind = choose.randrange(6)
        first = condition(choose, depth - 1)
        if kind == 0:
            return f"NOT ({first})"
        if kind == 1:
            return f"({first})"
        if kind == 2:
            return f"({first}) IS {choose.choice(('', 'NOT '))}NULL"
        if kind == 3:
            return f"({first}) {choose.choice(('=', '<>'))} ({condition(choose, depth - 1)})"
        return f"{first} {choose.choice(('AND', 'OR'))} {condition(choose, depth - 1)}"
    return _leaf(choose, depth)


def _leaf(choose: Random, depth: int) -> str:
    left = _operand(choose, depth)
    negation = choose.choice(("", "NOT "))
    match choose.randrange(9):
        case 0 | 1:
            return f"{left} {choose.choice(('=', '<>'))} {_operand(choose, depth)}"
        case 2 | 3:
            return f"{left} {choose.choice(('<', '<=', '>', '>='))} {_number(choose)}"
        case 4:
            return f"{_number(choose)} {choose.choice(('<', '<=', '>', '>='))} {choose.choice(NAMES)}"
        case 5:
            return f"{choose.choice(NAMES)} {negation}BETWEEN {_number(choose)} AND {_number(choose)}"
        case 6:
            texts = ", ".join(choose.choices(TEXTS, k=choose.randrange(1, 7)))
            return f"{choose.choice(NAMES)} {negation}IN ({texts})"
        case 7:
            word = choose.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
            return f"{left} {negation}{word} {choose.choice(TEXTS)}"
        case _:
            return f"{left} IS {negation}NULL"


def _operand(choose: Random, depth: int) -> str:
    match choose.randrange(20):
        case 0 | 1:
            return choose.choice(("TRUE", "FALSE"))
        case 2 | 3 | 4:
            return choose.choice(TEXTS)
        case 5 | 6 | 7 | 8:
            return _number(choose)
        case 9 if depth > 0:
            return f"{choose.choice('+-')}({condition(choose, depth - 1)})"
        case 10:
            return f"NOT {choose.choice(NAMES)}"
        case _:
            return choose.choice(NAMES)


def _number(choose: Random) -> str:
    if choose.random() < 0.15:
        return choose.choice(("-", "")) + choose.choice(NAMES)
    return choose.choice(("", "", "-", "+", "- -")) + choose.choice(NUMBERS)


_TOKENS = (
    *NAMES, *NUMBERS, *TEXTS, "AND", "or", "Not", "NOT", "IS", "NULL", "IN", "(", ")", ",", "BETWEEN", "contains",
    "TRUE", "STARTSWITH", "=", "<>", "<", ">=", "+", "-", "--", "/*", "*/", "/**/", "\n", "0.0", "007", "1e", "a1", "'",
    ";", "LIKE", "0L", "1e400", "and1", ".",
)  # fmt: skip


def soup(choose: Random) -> str:
    """Words of the dialect in an order that is mostly wrong."""
    words = [choose.choice(NAMES), choose.choice(_TOKENS), choose.choice(_TOKENS)]
    words += choose.choices(_TOKENS, k=choose.randrange(0, 7))
    return choose.choice((" ", " ", "")).join(words[choose.randrange(0, 2) :])
