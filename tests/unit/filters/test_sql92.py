"""SQL92 filters: beside the official filter's outcomes, beside a naive evaluator, and what is refused where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketspark.errors import FilterIllegal, UsageError
from rocketspark.filters import sql92, sql92_code
from rocketspark.protocol.message import properties as stored_properties

pytestmark = pytest.mark.shows("SQL92, judged by the official classes")

VECTORS = json.loads((Path(__file__).resolve().parents[2] / "vectors" / "sql92.json").read_text())


def stored(properties: Mapping[str, str]) -> bytes:
    return stored_properties.encode(properties).encode()


@pytest.fixture(params=[None, 2], ids=["", "many-terms"])
def terms_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As filters are compiled, and with 3 terms in a row as a filter of hundreds is."""
    if request.param is not None:
        monkeypatch.setattr(sql92_code, "_TERMS_MAX", request.param)
        monkeypatch.setattr(sql92, "_kept", {})


@pytest.mark.usefixtures("terms_max")
def test_official_outcomes() -> None:
    """Every row of the vectors. Text after the end, which RocketMQ drops, is refused; up to there all is equal."""
    seen: Counter[str] = Counter()
    wrong = []
    for expression, properties, outcome in VECTORS:
        try:
            compiled = sql92.compile(expression)
        except FilterIllegal as error:
            seen["refused"] += 1
            if outcome == "REFUSED":
                continue
            if error.position == len(expression) and "--" in expression:
                seen["open comment"] += 1  # RocketMQ reads -- as two minus signs if no line end follows.
                continue
            compiled = sql92.compile(expression[: error.position])
            seen["longer"] += 1
        else:
            if outcome == "REFUSED":
                wrong.append((expression, properties, outcome))
        seen[outcome] += 1
        passed = compiled.accepts(properties)
        if passed is not (outcome == "TRUE"):
            wrong.append((expression, properties, outcome))
        if "" not in properties.values():
            assert compiled.accepts_record(stored(properties)) is passed, (expression, properties)
    assert wrong == []
    assert seen["open comment"] <= 1
    assert all(seen[outcome] > 500 for outcome in ("TRUE", "FALSE", "UNKNOWN", "ERROR", "refused")), seen


REFUSED = [
    ("", 0, "the expression ends here; expected a property, a number, a 'string', TRUE, FALSE, NULL, NOT or ("),
    ("a = ", 3, "column 4: the expression ends here; expected a property"),
    ("(a = 1", 6, "expected )"),
    ("a = 1)", 5, "column 6: unexpected ')'; expected the end"),
    ("a == 1", 3, "write one ="),
    ("a != 1", 2, "write <> for unequal"),
    ("a => 1", 3, "unexpected '>'"),
    ('a = "x"', 4, "single quotes"),
    ("a = 'x", 4, "no closing quote"),
    ("a = 1 /* b", 6, "comment has no end"),
    ("a = 1;", 5, "unexpected ';'"),
    ("a LIKE 'x'", 2, "use CONTAINS, STARTSWITH or ENDSWITH"),
    ("a IN ('x' 'y')", 10, "expected ) or a comma"),
    ("a IN (1)", 6, "expected a 'string' in single quotes"),
    ("NOT a IN ('x')", 0, "write a NOT IN (...)"),
    ("NOT a > 5", 0, "NOT binds closer"),
    ("a IS 5", 5, "expected NULL or NOT"),
    ("a IS NOT 5", 9, "expected NULL"),
    ("a NOT 5", 6, "expected IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH"),
    ("a BETWEEN 1 OR 2", 12, "expected AND"),
    ("a BETWEEN 5 AND 1", 10, "lower value first"),
    ("a = 1 AND\n b > 'x'", 15, "line 2, column 6: only numbers and properties can be compared by >"),
    ("a = NULL", 4, "use IS NULL"),
    ("TRUE = 5", 7, "cannot be compared"),
    ("a = 1 OR 'x'", 9, "expected a condition"),
    ("a > 0.0", 4, "RocketMQ takes no 0.0"),
    ("a > 1e400", 4, "too large for a double"),
    ("a = 9223372036854775808", 4, "integers go up to 9223372036854775807"),
    ("a = 007", 5, "unexpected '0'"),
    ("é = 1", 0, "unexpected 'é'"),
    ("(" * 100 + "a = 1" + ")" * 100, 1, "nested deeper than 100 levels"),
    ("NOT " * 100 + "a", 4, "nested deeper than 100 levels"),
    ("a = 1" + " = TRUE" * 100, 0, "nested deeper than 100 levels"),
    ("a" * 16385, 16384, "16385 characters; at most 16384"),
]


@pytest.mark.parametrize(("expression", "position", "text"), REFUSED, ids=lambda value: str(value)[:20])
def test_mistakes_are_named_with_their_place(expression: str, position: int, text: str) -> None:
    for _ in range(2):  # The second time from the cache.
        with pytest.raises(FilterIllegal) as caught:
            sql92.compile(expression)
        assert caught.value.position == position
        assert text in str(caught.value)
        assert isinstance(caught.value, UsageError)


def test_large_filters_work() -> None:
    """Within the bounds nothing overflows: long chains, many values, deep nesting in every kind of operator."""
    chain = sql92.compile(" OR ".join(f"a{at} = {at}" for at in range(1000)))
    assert chain.accepts({"a999": "999"})
    assert not chain.accepts({"a999": "998"})
    exact = sql92.compile("NOT (" + " AND ".join(f"a{at} <> {at}" for at in range(900)) + ")")
    assert exact.accepts({f"a{at}": "899" for at in range(900)})
    assert sql92.compile("a NOT IN (" + ", ".join(f"'{at}'" for at in range(1500)) + ")").accepts({"a": "1500"})
    for nested, outcome in [
        ("(" * 97 + "a = 1" + ")" * 97, True),
        ("NOT " * 97 + "a", True),
        ("NOT (" * 48 + "a = 1" + ")" * 48, True),
        ("- " * 98 + "1 = a", True),
        ("a = 1" + " = TRUE" * 97, True),
        ("(b = 2 OR " * 45 + "a = 1" + ")" * 45, True),
        ("NOT (b = 'x' OR c IS NULL AND " * 24 + "a = 1" + ")" * 24, False),
        ("NOT (b CONTAINS 'x' OR c IS NULL AND " * 24 + "a = 1" + ")" * 24, True),
        ("-(" * 32 + "a BETWEEN 1 AND 2" + ") BETWEEN 1 AND 2" * 32, False),
    ]:
        compiled = sql92.compile(nested)
        assert compiled.accepts({"a": "1"}) is outcome, nested[:40]
        assert compiled.accepts_record(b"a\x011\x02") is outcome


def test_names_and_cache() -> None:
    expression = "$a > 1 AND (b_2 IN ('c') OR -d IS NULL) AND TRUE <> e"
    compiled = sql92.compile(expression)
    assert compiled.names == {"$a", "b_2", "d", "e"}
    assert compiled.expression == expression
    assert sql92.compile(expression) is compiled


def test_stored_properties_are_read_as_a_map() -> None:
    """A name counts only at the start of a pair, the last of several counts, an empty value is none."""
    is_x = sql92.compile("a = 'x'").accepts_record
    assert is_x(b"a\x01x\x02")
    assert is_x(b"b\x01y\x02a\x01x")
    assert is_x(b"a\x01y\x02a\x01x\x02")
    assert is_x(b"a\x01x\x02a\x01\x02")
    assert not is_x(b"a\x01x\x02a\x01y\x02")
    assert not is_x(b"ba\x01x\x02")
    assert not is_x(b"b\x01a\x01x\x02")
    assert not is_x(b"")
    assert sql92.compile("a = 'é'").accepts_record("a\x01é\x02".encode())
    assert sql92.compile("a IS NULL").accepts_record(b"")
    assert sql92.compile("a CONTAINS '\ufffd'").accepts_record(b"a\x01\xff\x02")


def test_lark_is_loaded_by_the_first_filter_only() -> None:
    code = (
        "import sys; import rocketspark.filters.sql92 as s; before = 'lark' in sys.modules;"
        "s.compile('a = 1'); print(before, 'lark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


WORDS = st.sampled_from(
    """a b NOT AND OR IN IS NULL BETWEEN CONTAINS STARTSWITH TRUE ( ) , = <> < >= + - -- /* */ 'x' '' ' 1 0 1.5 007 1e9
    . ; é""".split()
)


@given(
    st.one_of(st.text(), st.lists(WORDS, max_size=12).map(" ".join)), st.dictionaries(st.sampled_from("ab"), st.text())
)
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_filter_or_refused(expression: str, properties: dict[str, str]) -> None:
    try:
        passed = sql92.compile(expression).accepts(properties)
    except FilterIllegal as refused:
        error = refused
    else:
        assert passed in (True, False)
        return
    assert 0 <= error.position <= len(expression)
    assert "column" in str(error)


class Failed(Exception):
    """The evaluation ended in an error."""


NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(-3, 3)
STRINGS = st.sampled_from(["x", "xy", "y", "1", "it's"])
LEAVES = st.one_of(
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NAMES, SMALL),
    st.tuples(st.sampled_from(["=", "<>"]), NAMES, STRINGS),
    st.tuples(st.sampled_from(["IN", "NOT IN"]), NAMES, st.lists(STRINGS, min_size=1, max_size=6)),
    st.tuples(st.sampled_from(["CONTAINS", "NOT CONTAINS", "STARTSWITH", "NOT ENDSWITH"]), NAMES, STRINGS),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), NAMES, st.none()),
)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
        st.tuples(st.just("NOT"), inner),
    ),
    max_leaves=12,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Any) -> str:
    match tree:
        case ("AND" | "OR") as word, terms:
            return "(" + f" {word} ".join(map(written, terms)) + ")"
        case "NOT", inner:
            return f"NOT ({written(inner)})"
        case word, name, None:
            return f"{name} {word}"
        case word, name, list(texts):
            return f"{name} {word} ({', '.join(map(quoted, texts))})"
        case word, name, value:
            return f"{name} {word} {quoted(value) if isinstance(value, str) else value}"
    raise AssertionError(tree)


def judged(tree: Any, properties: Mapping[str, str]) -> bool | None:
    """The tree's value, one rule after the other; Failed where a text should be a number and is none."""
    match tree:
        case "AND" | "OR", terms:
            decisive = tree[0] == "OR"
            found: list[bool | None] = []
            for term in terms:
                found.append(judged(term, properties))
                if found[-1] is decisive:
                    return decisive
            return None if None in found else not decisive
        case "NOT", inner:
            truth = judged(inner, properties)
            return None if truth is None else not truth
    word, name, wanted = tree
    text = properties.get(name)
    if word.startswith("IS"):
        return (text is None) is (word == "IS NULL")
    if "CONTAINS" in word or "WITH" in word:
        if text is None:
            return False
        how = {"CONTAINS": wanted in text, "STARTSWITH": text.startswith(wanted), "ENDSWITH": text.endswith(wanted)}
        return how[word.split()[-1]] is not word.startswith("NOT")
    if text is None:
        return None
    if "IN" in word:
        return (text in wanted) is (word == "IN")
    value: Any = text
    if isinstance(wanted, int):
        if not text.lstrip("-").isdigit():
            raise Failed
        value = int(text)
    if word in ("=", "<>"):
        return (value == wanted) is (word == "=")
    order = (value > wanted) - (value < wanted)
    truths: dict[str, bool] = {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}
    return truths[word]


@given(TREES, st.dictionaries(NAMES, st.sampled_from(["-2", "0", "1", "3", "x", "xy", "it's"])))
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.usefixtures("terms_max")
def test_random_trees_beside_a_naive_evaluator(tree: Any, properties: dict[str, str]) -> None:
    try:
        expected = judged(tree, properties) is True
    except Failed:
        expected = False
    compiled = sql92.compile(written(tree))
    assert compiled.accepts(properties) is expected
    assert compiled.accepts_record(stored(properties)) is expected


@pytest.mark.shows("mended: SQL literals over 4,300 digits")
def test_a_literal_of_any_number_of_digits_is_refused_by_name() -> None:
    for digits in (20, 4300, 5000, 16_000):
        with pytest.raises(FilterIllegal, match="integers go up to"):
            sql92.compile("a = " + "9" * digits)


@pytest.mark.shows("mended: SQL of empty strings, costly SQL filters")
@given(st.lists(st.sampled_from([b"a\x01\x02", b"a\x01x\x02", b"b\x01y\x02", b"ba\x01z\x02", b"a\x01", b"\x02", b"v"])))
def test_the_last_value_that_is_not_empty_counts(pieces: list[bytes]) -> None:
    stored = b"\x02" + b"".join(pieces)
    values = [p.partition(b"\x01")[2] for p in stored.split(b"\x02") if p.partition(b"\x01")[0] == b"a"]
    expected = [v for v in values if v]
    assert sql92_code._find(stored, b"\x02a\x01") == (expected[-1].decode() if expected else None)
