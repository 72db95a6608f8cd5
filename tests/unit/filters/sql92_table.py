"""Filters and properties chosen by hand, a group per rule. What comes of each is in tests/vectors/sql92.json."""

# ruff: noqa: E501
from __future__ import annotations

_NONE: dict[str, str] = {}


def _a(*values: str) -> list[dict[str, str]]:
    return [{"a": value} for value in values]


# (expressions, properties): every expression is judged with every set of properties.
TABLE: list[tuple[list[str], list[dict[str, str]]]] = [
    # Integers: the literal's size says how wide the text may be.
    (
        ["a = 5", "a <> 5", "a > 5", "a >= 5", "a < 5", "a <= 5", "5 = a", "5 <> a", "5 < a", "a = 5L", "a = 5l"],
        [_NONE, *_a("4", "5", "6", "-5", "+5", "05", "5.0", " 5", "x", "3000000000", "1_0", "\u0665", "\U0001d7d3", "-", "")],
    ),
    (
        ["a > 3000000000", "a = -3000000000", "a > 2147483647", "a < 9223372036854775807", "a > -2147483648"],
        _a("5", "3000000001", "-3000000000", "9223372036854775808", "-9223372036854775808", "2147483648"),
    ),
    # Doubles.
    (
        ["a = 1.5", "a <> 1.5", "a > 1.5", "a >= 1.5", "a < 1.5", "a <= 1.5", "1.5 > a", "1.5 <= a", "a > -1.5e2"],
        [
            _NONE,
            *_a("1.5", "1", "2", "-200", " 1.5\t", "1.5f", "1.5D", "15e-1", "0x1.8p0", "NaN", "nan", "Infinity", "inf"),
            *_a("-Infinity", "1e999", "0x1p99999", "1_5", "1.5 x", "\u0665", ".", "1.", ".5", "+1.5", "", "1e", "\xa01.5"),
        ],
    ),
    (["a = 1.", "a = .5", "a = 1E1", "a = 1e+1", "a = 1.e1", "a = 00.5", "a = 007e0"], _a("1", "0.5", "10", "7")),
    # Two properties: as doubles for order, as texts for equality.
    (
        ["a > b", "a >= b", "a = b", "a <> b", "a BETWEEN b AND c", "b <= a"],
        [
            _NONE, {"a": "1"}, {"b": "1"}, {"a": "2", "b": "10"}, {"a": "1", "b": "1.0"}, {"a": "0", "b": "-0.0"},
            {"a": "NaN", "b": "NaN"}, {"a": "NaN", "b": "Infinity"}, {"a": "x", "b": "1"}, {"a": "x", "b": "x"},
            {"a": "2", "b": "1", "c": "3"}, {"a": "0", "b": "1"}, {"a": "5", "b": "1", "c": "x"},
        ],
    ),
    # Texts.
    (
        ["a = 'x'", "a <> 'x'", "'x' = a", "'x' <> a", "a = 'it''s'", "a = ''", "a = '5'", "a = 'é'", "a = '''' OR a = 'x'"],
        [_NONE, *_a("x", "X", "it's", "5", "é", "'", "")],
    ),
    (
        ["a IN ('x')", "a NOT IN ('x')", "a IN ('x', 'y', 'z', 'x', 'v', 'u')", "a NOT in ('x','y','z','v','u','it''s')",
         "(a) IN ('x')", "+a IN ('x')", "NOT (a IN ('x'))", "-a IN ('x')", "NOT a IN ('x')", "'x' IN ('x')", "a IN ()",
         "a IN (5)", "a IN ('x',)", "a IN 'x'"],
        [_NONE, *_a("x", "y", "it's")],
    ),
    (
        ["a CONTAINS 'x'", "a NOT CONTAINS 'x'", "a STARTSWITH 'x'", "a NOT STARTSWITH 'x'", "a ENDSWITH 'x'",
         "a NOT ENDSWITH 'x'", "a CONTAINS ''", "a NOT CONTAINS ''", "NOT (a CONTAINS 'x')", "NOT (a NOT CONTAINS 'x')",
         "NOT a CONTAINS 'x'", "a CONTAINS 'x' CONTAINS 'x'", "'axb' CONTAINS 'x'", "5 CONTAINS '5'", "TRUE CONTAINS 'T'",
         "NULL NOT CONTAINS 'x'", "-a NOT CONTAINS 'x'", "a contains'x'", "a CONTAINS b", "a CONTAINS 5",
         "(a = 5) CONTAINS 'x'", "(a = 5) CONTAINS ''", "(a = 5) NOT CONTAINS 'x' OR TRUE"],
        [_NONE, *_a("x", "axb", "ax", "xb", "ab", "5", "X")],
    ),
    # Booleans and conditions as values.
    (
        ["a = TRUE", "a = FALSE", "a <> TRUE", "TRUE = a", "FALSE <> a", "a", "NOT a", "a AND TRUE", "NOT a OR TRUE", "+a",
         "-a", "TRUE", "FALSE", "NULL", "NOT NULL", "NOT TRUE", "TRUE = FALSE", "TRUE = TRUE", "TRUE = 5", "TRUE = -5",
         "TRUE = 'x'", "5 = TRUE", "'true' = TRUE", "a = NULL", "NULL = a", "a <> NULL", "a > NULL", "a > TRUE", "a > 'x'",
         "a = -TRUE", "a > -'x'", "a > +b", "a = -b", "(a = 'x') = (b = 'y')", "(a = 'x') = b", "a = (b = 'x')",
         "a = 'x' = TRUE", "a = 1 = 1", "a > 1 > 1", "TRUE > FALSE", "NOT 5", "NOT 'x'", "5", "'x'", "5 OR a = 5", "a OR 5",
         "'x' AND TRUE", "-5 = 5", "- -5 = 5", "5 = 5.0", "9007199254740993 = 9007199254740992.0", "5 < 5.5", "5 > 6",
         "'5' = 5", "5 = '5'", "5 = 'x' OR TRUE", "TRUE OR 5 = 'x'", "'a' = 'a'", "-(a = 5) IS NULL", "-(a = 5) = TRUE"],
        [_NONE, *_a("true", "TRUE", "false", "x", "5"), {"b": "x"}, {"a": "x", "b": "true"}, {"a": "true", "b": "x"}],
    ),
    # NULL tests; NOT binds closer than comparisons.
    (
        ["a IS NULL", "a IS NOT NULL", "NOT a IS NULL", "NOT (a IS NULL)", "NOT a = 5", "NOT (a = 5)", "NOT a <> 5",
         "NOT a > 5", "NOT (a > 5)", "5 IS NULL", "'x' IS NOT NULL", "NULL IS NULL", "-a IS NULL", "TRUE IS NULL",
         "(a = 5) IS NULL", "a > 5 IS NULL", "a IS NULL IS NULL", "a IS NULL = TRUE", "a = b IS NULL", "a IS TRUE", "a IS",
         "NOT NOT a = 5", "NOT NOT (a = 5)"],
        [_NONE, *_a("5", "6", "x")],
    ),
    # BETWEEN.
    (
        ["a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5", "a BETWEEN 5 AND 1", "a NOT BETWEEN 5 AND 1", "a BETWEEN -1 AND -5",
         "a BETWEEN 1.5 AND 5", "a BETWEEN 1 AND 5 AND b = 'x'", "a BETWEEN 'x' AND 'y'", "a BETWEEN 1 AND 'y'",
         "a BETWEEN NULL AND 5", "a BETWEEN 1 AND NULL", "a BETWEEN 5 AND 5", "3 BETWEEN 1 AND a", "a BETWEEN (1) AND (5)",
         "a BETWEEN 2.5 AND 2", "a BETWEEN 2147483648 AND 5", "NOT (a BETWEEN 1 AND 5)", "NOT a BETWEEN 1 AND 5",
         "-(a BETWEEN 1 AND 2) BETWEEN 1 AND 2", "-(a BETWEEN 1 AND 2) NOT BETWEEN 1 AND 2 OR TRUE", "a BETWEEN -b AND 5",
         "a BETWEEN TRUE AND FALSE", "3 BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 'x'", "a BETWEEN 1, 2", "a BETWEEN 1 AND"],
        [_NONE, *_a("0", "1", "3", "5", "6", "1.5", "x", "-3"), {"a": "3", "b": "x"}],
    ),
    # AND, OR: what is evaluated, and errors that end it.
    (
        ["a = 5 AND b = 'x'", "a = 5 OR b = 'x'", "b = 'x' OR a = 5", "b = 'x' AND a = 5", "NOT (a = 5 AND b = 'x')",
         "NOT (b = 'x' AND a = 5)", "NOT (a = 5 OR b = 'x')", "(c = 'z' AND a = 5) OR b = 'x'", "a = 5 AND b = 'x' OR TRUE",
         "(a = 5 OR b = 'x') IS NULL", "(a = 5 AND b = 'x') IS NULL", "a <> 5 OR b = 'x'", "TRUE OR a = 5", "FALSE AND a = 5",
         "NULL AND a = 5 OR TRUE", "NULL OR a = 5", "a = 5 OR b = 'y' AND b = 'x'", "(b = 'x' OR a = 5) AND c IS NULL",
         "NOT (c = 'z' AND (a = 5 OR b = 'x'))", "(a = 5 AND NULL AND b = 'x') IS NULL", "(NULL OR b = 'x' OR a = 5) = TRUE"],
        [_NONE, {"a": "5"}, {"b": "x"}, {"a": "5", "b": "x"}, {"a": "bad", "b": "x"}, {"a": "bad"}, {"a": "6", "b": "y"},
         {"a": "bad", "b": "x", "c": "z"}, {"a": "bad", "b": "x", "c": "w"}],
    ),
    # Words, numbers, blanks and comments.
    (
        ["a=1", " a\t=\n1\f", "A = 1", "a and TRUE or a = 1", "a = 1and b = 1", "a = 1AND TRUE", "a /* x */ = 1", "a = /***/ 1",
         "a = 1 -- note", "a -- note\n= 1", "a -- note\r= 1", "a = 1 /* open", "a = 1 --", "/* /* */ a = 1", "a = 0x1", "$a_1 = 1",
         "_ = 1", "é = 1", "a.b = 1", "a-b = 1", "a = 'x", "a = 1e", "a = 0.0", "a > 0e5", "a > 1e400", "a = 1e-400", "a = 5e-324",
         "a = 007", "a = 0L", "a = 0", "a = 9223372036854775808", "a = -9223372036854775808", "a == 1", "a != 1", "a = \"1\"",
         "", " ", "(", ")", "()", "(a = 1", "a = 1)", "a =", "= 1", "AND", "a AND", "a NOT 1", "a b", "a LIKE 'x'", "a = 1 = ",
         "a = 1;", "IN = 1", "contains = 1", "Null IS NULL", "now = 1", "a = +1", "a = + +1", "a = - - 1", "a\xa0= 1", "a = 1 2"],
        [_NONE, *_a("1", "0", "x"), {"A": "1"}, {"$a_1": "1"}, {"_": "1"}],
    ),
]  # fmt: skip


def rows() -> list[tuple[str, dict[str, str]]]:
    return [(text, properties) for texts, sets in TABLE for text in texts for properties in sets]
