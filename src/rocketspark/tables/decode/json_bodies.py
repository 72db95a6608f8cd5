"""JSON bodies to values. Rule: values have the types that Spark's from_json gives; a number where text is wanted is
its text.
"""

from __future__ import annotations

import datetime
import json
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Annotated, Any, Optional, TypedDict

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.text import shown
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.options import COLUMNS_MAX

# Fields that an inferred schema may have, those within others too.
FIELDS_MAX = 2000
DEPTH_MAX = 50


def ddl_of(text: str) -> str:
    """Return a schema in the form that Spark's SQL reads. `text`: DDL of columns, a type, or the JSON of a type. Raises
    ConfigError.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            parsed = json.loads(text)
            return quoted(t.of_json(parsed)) if parsed.get("type") == "struct" else _JsonSchema(parsed).ddl(parsed)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigError(
                'decodeSchema is no schema: DDL such as "id INT, name STRING" is needed, or the JSON of a Spark type'
            ) from None
        except Exception as e:
            raise ConfigError(f"decodeSchema is no schema: {shown(str(e))}") from None
    text = text.strip()
    if re.match(r"(?is)(array|map|struct)\s*<.*>$", text):
        of_ddl(text)
        return text
    of_ddl(f"struct<{text}>", is_wrapped=True)
    return f"struct<{text}>"


def quoted(kind: t.DataType) -> str:
    """Return a type in the form that Spark's SQL reads, with the names of its fields in backquotes."""
    if isinstance(kind, t.StructType):
        fields = ((field.name.replace("`", "``"), quoted(field.dataType)) for field in kind.fields)
        return f"struct<{','.join(f'`{name}`:{one}' for name, one in fields)}>"
    if isinstance(kind, t.ArrayType):
        return f"array<{quoted(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"map<{quoted(kind.keyType)},{quoted(kind.valueType)}>"
    # The setting spark.sql.timestampType gives the word timestamp another meaning.
    return "timestamp_ltz" if isinstance(kind, t.TimestampType) else kind.simpleString()


_TOKEN = re.compile(
    r"""\s*(?:(`(?:[^`]|``)*`|[\w]+)|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")|([<>(),:]))""", re.DOTALL
)


_PLAIN_WORDS: dict[str, t.DataType] = {
    **dict.fromkeys(("string", "char", "character", "varchar"), t.StringType()),
    **dict.fromkeys(("tinyint", "byte"), t.ByteType()),
    **dict.fromkeys(("smallint", "short"), t.ShortType()),
    **dict.fromkeys(("int", "integer"), t.IntegerType()),
    **dict.fromkeys(("bigint", "long"), t.LongType()),
    **dict.fromkeys(("float", "real"), t.FloatType()),
    **dict.fromkeys(("decimal", "dec", "numeric"), t.DecimalType()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), t.TimestampType()),
    **{word: t.OtherType(word) for word in ("interval", "time", "void", "variant", "geometry", "geography")},
    "boolean": t.BooleanType(),
    "double": t.DoubleType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
# What may stand behind a type: words alone, and words with one more.
_ALONE = frozenset("not null day hour minute second month year to with without local time zone".split())
_WITH_ONE = frozenset(("comment", "collate", "default"))


def of_ddl(text: str, *, is_wrapped: bool = False) -> t.DataType:
    """Return the type that a text in Spark's DDL, such as `array<int>`, describes.

    `is_wrapped`: the last bracket was added to the user's text, so errors leave it out. Raises ConfigError for what is
    no type, with its place: Spark's own error comes late, and shows all columns.
    """
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _no_schema(text[at : len(text) - is_wrapped])
        tokens.append(found[0].strip())
        at = found.end()
    try:
        kind, end = _type_of([*tokens, "", ""], 0)
        if end < len(tokens):
            raise _Wrong(end)
    except _Wrong as e:
        raise _no_schema(" ".join(tokens[e.args[0] : len(tokens) - is_wrapped])) from None
    except RecursionError:
        raise ConfigError("decodeSchema is no schema: it is nested too deeply") from None
    return kind


class _Wrong(Exception):
    """Raised with the index of a token that may not stand there."""


def _no_schema(text: str) -> ConfigError:
    where = f"from {shown(text.strip())[:60]!r} on" if text.strip() else "it ends too early"
    return ConfigError(f'decodeSchema is no schema, {where}: DDL such as "id INT, name STRING" is needed')


def _type_of(tokens: list[str], at: int) -> tuple[t.DataType, int]:
    """Return a type and where it ends: a word, with what is in brackets behind it."""
    name, at = tokens[at].lower(), at + 1
    if (plain := _PLAIN_WORDS.get(name)) is not None:
        if tokens[at] != "(":
            return plain, at
        first = at + 1
        while tokens[at] not in (")", ""):
            at += 1
        if isinstance(plain, t.DecimalType):
            plain = _decimal(tokens[first:at], first)
        return plain, _after(tokens, at, ")")
    if name not in ("array", "map", "struct"):
        raise _Wrong(at - 1)
    at = _after(tokens, at, "<")
    if name == "array":
        inner, at, nullable = _part_of(tokens, at)
        return t.ArrayType(inner, nullable), _after(tokens, at, ">")
    if name == "map":
        key, at, _ = _part_of(tokens, at)
        value, at, nullable = _part_of(tokens, _after(tokens, at, ","))
        return t.MapType(key, value, nullable), _after(tokens, at, ">")
    fields: dict[str, t.StructField] = {}
    while tokens[at] != ">" or fields:
        field = tokens[at].strip("`") if re.match(r"[\w`]", tokens[at]) else ""
        if not field or field in fields:
            raise _Wrong(at)
        kind, at, nullable = _part_of(tokens, at + 1 + (tokens[at + 1] == ":"))
        fields[field] = t.StructField(field.replace("``", "`"), kind, nullable)
        if tokens[at] == ">":
            break
        at = _after(tokens, at, ",")
    return t.StructType(list(fields.values())), at + 1


def _decimal(digits: list[str], at: int) -> t.DecimalType:
    """Return the decimal of what stands in brackets from a token on."""
    found = re.fullmatch(r"(\d{1,2})(?:,(\d{1,2}))?", "".join(digits))
    kind = t.DecimalType(int(found[1]), int(found[2] or 0)) if found else None
    if kind is None or not (1 <= kind.precision <= 38 and kind.scale <= kind.precision):
        raise _Wrong(at)
    return kind


def _part_of(tokens: list[str], at: int) -> tuple[t.DataType, int, bool]:
    """Return a type that stands within another, where it ends, with NOT NULL, COMMENT 'text' and the like behind it,
    and whether null may be there.
    """
    kind, at = _type_of(tokens, at)
    first = at
    while (word := tokens[at].lower()) in _ALONE or word in _WITH_ONE:
        at += 1 + (word in _WITH_ONE)
    behind = [token.lower() for token in tokens[first:at]]
    if isinstance(kind, t.TimestampType) and behind[:1] == ["without"]:
        kind = t.TimestampNTZType()
    return kind, at, "not" not in behind


def _after(tokens: list[str], at: int, wanted: str) -> int:
    if tokens[at] != wanted:
        raise _Wrong(at)
    return at + 1


_OF_JSON_SCHEMA = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}


class _JsonSchema:
    """Turns a JSON Schema, as a registry has it, into a type; what has no type of its own becomes text."""

    def __init__(self, schema: Any) -> None:
        self._whole, self._count = schema, 0

    def ddl(self, schema: Any, above: tuple[str, ...] = ()) -> str:
        """Return the DDL of a part of the schema. Raises ConfigError, and TypeError and the like for odd JSON."""
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise ConfigError(f"the registry's schema has more than {COLUMNS_MAX} columns: give decodeSchema as DDL")
        if isinstance(schema, bool):
            return "string"
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"], above)
        # As Java's serializers write what may be null.
        choices = schema.get("oneOf") or schema.get("anyOf") or []
        real = [one for one in choices if one != {"type": "null"}]
        if len(real) == 1:
            return self.ddl(real[0], above)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            kinds = next((kind for kind in kinds if kind != "null"), None)
        if kinds == "object":
            return self._object(schema, above)
        if kinds == "array" and isinstance(schema.get("items"), dict):
            return f"array<{self.ddl(schema['items'], above)}>"
        return _OF_JSON_SCHEMA.get(kinds or "", "string")

    def _object(self, schema: dict[str, Any], above: tuple[str, ...]) -> str:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            fields = ((name.replace("`", "``"), self.ddl(one, above)) for name, one in properties.items())
            return f"struct<{','.join(f'`{name}`:{kind}' for name, kind in fields)}>"
        more = schema.get("additionalProperties")
        return f"map<string,{self.ddl(more, above) if isinstance(more, dict) else 'string'}>"

    def _referred(self, reference: str, above: tuple[str, ...]) -> str:
        """Return the type of what lies in the same schema; text for other places, and for what lies within itself."""
        if not reference.startswith("#/") or reference in above:
            return "string"
        found = self._whole
        for part in reference[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return "string" if found is None else self.ddl(found, (*above, reference))


def of_json_schema(text: str) -> str:
    """Return the Spark type that the text of a JSON Schema describes. Raises ConfigError."""
    try:
        schema = json.loads(text)
        return _JsonSchema(schema).ddl(schema)
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        if isinstance(e, ConfigError):
            raise
        raise ConfigError("the registry's schema is no JSON Schema: give decodeSchema as DDL") from None


class _Written(Decimal):
    """A number with a fraction or an exponent, which keeps the text that it was written with."""

    text: str


def _written(text: str) -> _Written:
    made = _Written(text)
    made.text = text
    return made


# A time finer than Spark's, which msgspec would round: to the next year, at the end of one.
_FINE, _FINE_TIME = re.compile(rb"\.\d{7}"), re.compile(r"(\.\d{6})\d+")


class JsonDecoder:
    """Decodes JSON bodies to values of one type. Raises ConfigError for a type that JSON cannot have."""

    def __init__(self, kind: t.DataType) -> None:
        self._kind = kind
        self._has_times = "timestamp" in kind.simpleString()
        self._type = typed_json.OwnType(_python_type(kind, [0]))
        self._any = typed_json.plain_decoder(_written)

    def decode(self, body: bytes) -> Any:
        """Decode one body to a value that Arrow takes. Raises ValueError saying what is wrong with the body."""
        try:
            if not self._has_times or _FINE.search(body) is None:
                return self._type.decode(body)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise ValueError(_said(body, e)) from None
        try:
            return self._type.convert(_lenient(self._any.decode(body), self._kind))
        except ArithmeticError:
            raise ValueError("the JSON does not fit the schema: a number's exponent is too large") from None
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError, ValueError) as e:
            raise ValueError(_said(body, e)) from None


def _said(body: bytes, error: Exception) -> str:
    if not body.strip():
        return "the body is empty: it is no JSON"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    kind = "the JSON does not fit the schema" if isinstance(error, msgspec.ValidationError) else "the body is no JSON"
    return f"{kind}: {shown(str(error))}"[:300]


_WHOLE: dict[type[t.DataType], int] = {t.ByteType: 7, t.ShortType: 15, t.IntegerType: 31, t.LongType: 63}
_PLAIN: dict[type[t.DataType], Any] = {
    t.BooleanType: bool,
    t.FloatType: float,
    t.DoubleType: float,
    t.StringType: str,
    t.BinaryType: bytes,
    t.DateType: datetime.date,
    t.TimestampType: datetime.datetime,
    t.TimestampNTZType: datetime.datetime,
    t.DecimalType: Decimal,
}


def _python_type(kind: t.DataType, count: list[int]) -> Any:
    if isinstance(kind, t.StructType):
        count[0] += 1
        for field in kind.fields:
            # msgspec compares UTF-8, which a name that is not ASCII has only once it was encoded.
            msgspec.json.encode(field.name)
        fields = {field.name: Optional[_python_type(field.dataType, count)] for field in kind.fields}  # noqa: UP045
        return TypedDict(f"Object{count[0]}", fields, total=False)  # type: ignore[operator]
    if isinstance(kind, t.ArrayType):
        return list[Optional[_python_type(kind.elementType, count)]]  # type: ignore[misc]  # noqa: UP045
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return dict[str, Optional[_python_type(kind.valueType, count)]]  # type: ignore[misc]  # noqa: UP045
    if bits := _WHOLE.get(type(kind)):
        return Annotated[int, msgspec.Meta(ge=-(2**bits), le=2**bits - 1)]
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    raise ConfigError(f"decodeSchema: {kind.simpleString()} cannot be read from JSON by decode; read it as STRING")


def _lenient(value: Any, kind: t.DataType) -> Any:
    """Return a value with text where the schema wants text, and with times cut to microseconds."""
    if isinstance(kind, t.StructType) and isinstance(value, dict):
        return {f.name: _lenient(value[f.name], f.dataType) for f in kind.fields if f.name in value}
    if isinstance(kind, t.ArrayType) and isinstance(value, list):
        return [_lenient(one, kind.elementType) for one in value]
    if isinstance(kind, t.MapType) and isinstance(value, dict):
        return {name: _lenient(one, kind.valueType) for name, one in value.items()}
    if isinstance(kind, t.StringType) and value is not None and not isinstance(value, str):
        return msgspec.json.Encoder(enc_hook=_text_of).encode(value).decode()
    if isinstance(kind, t.FloatType | t.DoubleType):
        return float(value) if isinstance(value, Decimal) or value in ("NaN", "Infinity", "-Infinity") else value
    if isinstance(kind, t.TimestampType | t.TimestampNTZType) and isinstance(value, str):
        return _FINE_TIME.sub(r"\1", value)
    return Decimal(value) if isinstance(value, _Written) else value


def _text_of(number: _Written) -> msgspec.Raw:
    return msgspec.Raw(number.text.encode())


def rounded(value: Any, kind: t.DataType) -> Any:
    """Return a value with its decimals rounded to the scale of their column."""
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        return {f.name: rounded(value.get(f.name), f.dataType) for f in kind.fields}
    if isinstance(kind, t.ArrayType):
        return [rounded(one, kind.elementType) for one in value]
    if isinstance(kind, t.MapType):
        return [(name, rounded(one, kind.valueType)) for name, one in value.items()]
    if isinstance(kind, t.DecimalType):
        try:
            # Not by the process's own context, which has 28 digits.
            return value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, Context(prec=kind.precision))
        except ArithmeticError:
            raise ValueError(f"{shown(str(value))} does not fit {kind.simpleString()}") from None
    return value


def needs_rounding(kind: t.DataType) -> bool:
    """Tell whether `rounded` changes values of a type: decimals, and maps, which Arrow takes as pairs."""
    text = kind.simpleString()
    return "decimal" in text or "map<" in text


def infer(bodies: list[bytes]) -> str:
    """Return the DDL of the columns that JSON bodies have, in the order of their appearance. Raises ConfigError."""
    kind: Any = None
    for body in bodies:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            before, kind = kind, _merged(kind, _kind_of(value))
            if kind != before and _field_count(kind) > FIELDS_MAX:
                raise ConfigError(
                    f"option decodeSchema is missing, and the bodies of the sample have more than {FIELDS_MAX}"
                    " different fields: give it as DDL"
                )
    if not isinstance(kind, dict) or not kind:
        raise ConfigError(
            "option decodeSchema is missing, and no body of the sample is a JSON object with a field: give it as DDL"
        )
    return _text(kind)[len("struct<") : -1]


def _kind_of(value: Any, depth: int = 0) -> Any:
    """Return a type: its name, a dict of fields, or a list of one type; None for null. What lies deeper is text."""
    if depth > DEPTH_MAX:
        return "string"
    if isinstance(value, dict):
        return {name: _kind_of(one, depth + 1) for name, one in value.items() if name}  # SQL has no name of no letter.
    if isinstance(value, list):
        kind = None
        for one in value:
            kind = _merged(kind, _kind_of(one, depth + 1))
        return [kind]
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "decimal(38,0)"
    if isinstance(value, float):
        return "double"
    return None if value is None else "string"


def _field_count(kind: Any) -> int:
    """Return how many fields a type has at any depth."""
    if isinstance(kind, dict):
        return len(kind) + sum(map(_field_count, kind.values()))
    return _field_count(kind[0]) if isinstance(kind, list) else 0


# Numbers that differ from body to body are the wider.
_WIDER = ("bigint", "decimal(38,0)", "double")


def _merged(a: Any, b: Any) -> Any:
    if a is None or b is None or a == b:
        return b if a is None else a
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: _merged(a.get(name), b.get(name)) for name in (*a, *(n for n in b if n not in a))}
    if isinstance(a, list) and isinstance(b, list):
        return [_merged(a[0], b[0])]
    return max(a, b, key=_WIDER.index) if a in _WIDER and b in _WIDER else "string"


def _text(kind: Any) -> str:
    if isinstance(kind, dict):
        if not kind:
            return "map<string,string>"
        fields = ((name.replace("`", "``"), _text(one)) for name, one in kind.items())
        return f"struct<{', '.join(f'`{name}` {one}' for name, one in fields)}>"
    if isinstance(kind, list):
        return f"array<{_text(kind[0])}>"
    return kind or "string"
