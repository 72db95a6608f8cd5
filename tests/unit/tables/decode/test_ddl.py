"""Schemas of JSON bodies as DDL: what is none is told with its place, before Spark is asked."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.bodies import DEPTH_MAX, check_depth, resolve, value_type
from rocketspark.tables.decode.json_bodies import ddl_of, quoted
from rocketspark.tables.options import parse_decode_options

pytestmark = pytest.mark.shows(
    "mended: Avro: decimals over 38 digits were all bad rows, a uuid of 16 bytes came as the text of its "
    "bytes, names that are none of SQL's or columns over 60 deep failed in Spark",
    "mended: a `decodeSchema` that is no DDL was Spark's error over all columns",
)

LEAVES = [t.IntegerType(), t.StringType(), t.DecimalType(9, 2), t.TimestampNTZType(), t.DayTimeIntervalType()]


def struct(kinds: list[t.DataType]) -> t.DataType:
    return t.StructType([t.StructField(f"f`,<{i} \u00e4", kind) for i, kind in enumerate(kinds)])


types = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        inner.map(t.ArrayType) | inner.map(lambda one: t.MapType(t.StringType(), one)) | st.lists(inner).map(struct)
    ),
    max_leaves=12,
)


@given(types)
def test_every_type_is_a_schema_whatever_its_fields_are_called(kind: t.DataType) -> None:
    text = quoted(kind)
    assert ddl_of(f"a {text}, b:{text} NOT NULL COMMENT 'x''s >'").startswith("struct<a ")
    if isinstance(kind, t.StructType):
        assert ddl_of(text) == ddl_of(kind.json()) == text


@given(st.text(alphabet="ab `'\"<>(),:;\\intstruarymp1", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_schema_or_a_mistake(text: str) -> None:
    with contextlib.suppress(ConfigError):
        ddl_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "it ends too early"),
        ("a int,", "it ends too early"),
        ("a array<int", "it ends too early"),
        ("a int; drop", "from '; drop' on"),
        ("a int b int", "from 'b int' on"),
        ("a word", "from 'word' on"),
        ("a\n;\n", "from ';' on"),
        ("a int, `a` int", "from '`a` int' on"),
        ("a int comment 'x", 'from "\'x" on'),
        ("a struct<" * 3000, "nested too deeply"),
    ],
)
def test_what_is_none_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        ddl_of(text)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_columns_that_arrow_cannot_write_are_refused() -> None:
    kind: t.DataType = t.IntegerType()
    for _ in range(DEPTH_MAX - 1):
        kind = t.ArrayType(kind)
    check_depth(kind)
    with pytest.raises(ConfigError, match="more than 60 deep"):
        check_depth(t.ArrayType(kind))
    deep = '{"type": "array", "items": ' * 70 + '"int"' + "}" * 70
    with pytest.raises(ConfigError, match="more than 60 deep"):
        resolve(parse_decode_options({"decode": "avro", "decodeSchema": deep}))


def test_names_of_avro_that_are_none_of_sql_are_quoted() -> None:
    fields = [{"name": "a b,c", "type": "int"}, {"name": "gr\u00f6\u00dfe", "type": "int"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    resolved = resolve(parse_decode_options({"decode": "avro", "decodeSchema": schema}))
    assert quoted(value_type(resolved)) == "struct<`a b,c`:int,`gr\u00f6\u00dfe`:int>"
