"""What a broker is asked for: it must hold every row that passes."""

from __future__ import annotations

import pytest

from rocketspark.errors import ConfigError
from rocketspark.filters import sql92
from rocketspark.model import subscribe
from rocketspark.tables.options import ReadOptions, parse_read
from rocketspark.tables.read.read_filter import NumberRange, ReadFilter


def options(**given: str) -> ReadOptions:
    return parse_read({"namesrv": "127.0.0.1:1", "topic": "T", **given}, streaming=False)


def test_tags_are_asked_for_by_their_hash_codes() -> None:
    asked = ReadFilter.of(options(tags=" BB||Aa ")).asked()
    assert (asked.expression_type, asked.expression) == ("TAG", "Aa || BB")
    assert asked.codes == subscribe("", "Aa").codes  # Both have the same.
    assert ReadFilter.of(options()).asked().is_all
    assert ReadFilter.of(options(tags="*")).asked().is_all
    assert ReadFilter.of(options(key="k")).asked().is_all


@pytest.mark.parametrize("tag", [" A", "A ", "A || B", "*", "\ufffd", "A\t"])
def test_tags_that_no_subscription_can_name_are_left_to_the_executors(tag: str) -> None:
    rows = ReadFilter().narrowed(frozenset(["A", tag]), NumberRange())
    assert rows.asked().is_all
    assert rows.wanted().tags == {"A", tag}


def test_single_bars_stay_parts_of_their_tags() -> None:
    tags = {"|", "a|", "|b", "c"}
    asked = ReadFilter().narrowed(frozenset(tags), NumberRange()).asked()
    assert subscribe("", asked.expression).tags == tags


def test_many_tags_are_left_to_the_executors() -> None:
    assert ReadFilter(tags=frozenset(map(str, range(257)))).asked().is_all
    assert not ReadFilter(tags=frozenset(map(str, range(256)))).asked().is_all


def test_options_and_pushed_filters_hold_together() -> None:
    rows = ReadFilter.of(options(tags="A||B")).narrowed(frozenset("BC"), NumberRange(5, 9))
    assert rows.tags == {"B"}
    assert rows.wanted().stored_us == (5, 9)
    assert rows.narrowed(frozenset("A"), NumberRange()).tags == frozenset()


def test_an_expression_takes_the_tags_with_it() -> None:
    asked = ReadFilter.of(options(sql="a > 1 OR b IS NULL", tags="O'Neil||B")).asked()
    assert asked.expression_type == "SQL92"
    assert asked.expression == "(a > 1 OR b IS NULL) AND TAGS IN ('B', 'O''Neil')"
    accepts = sql92.compile(asked.expression).accepts
    assert [accepts({"a": "2", "TAGS": tag}) for tag in ("B", "O'Neil", "C")] == [True, True, False]
    assert not accepts({"a": "1", "b": "", "TAGS": "B"})


@pytest.mark.parametrize("sql", ["a > 1 -- so many", "(" * 98 + "a > 1" + ")" * 98, "a = '" + "x" * 16370 + "'"])
def test_an_expression_that_cannot_be_enclosed_goes_alone(sql: str) -> None:
    asked = ReadFilter.of(options(sql=sql, tags="A")).asked()
    assert (asked.expression_type, asked.expression) == ("SQL92", sql)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sql": "a == 1"}, "option sql: filter expression, column 4: unexpected '='; write one ="),
        ({"sql": "a ="}, "option sql: filter expression, column 4"),
        ({"sql": "name LIKE 'x%'"}, "there is no LIKE here"),
        ({"sql": "a = 'x"}, "no closing quote"),
        ({"key": "a b"}, "option key is 'a b': keys hold no blank"),
        ({"pushDownPredicate": "yes"}, "option pushDownPredicate is 'yes': true or false"),
        ({"clockSetBackMs": "-1"}, "option clockSetBackMs"),
        ({"pushDownPredicat": "true"}, "did you mean 'pushDownPredicate'"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_mistakes_are_named_before_anything_runs(given: dict[str, str], text: str, streaming: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_read({"namesrv": "127.0.0.1:1", "topic": "T", **given}, streaming=streaming)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
