"""Avro's logical types: numbers and bytes as they were written to what Arrow takes. Rule: fastavro gives what is in the
body, marked by the writer's logical type; what it means for the reader is decided here.

fastavro itself heeds the writer's types alone, gives defaults as their JSON, and takes minutes for a decimal of 1 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Convert = Callable[[Any], Any]

# Years 1 to 9999, which Spark's times can be shown in.
_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896
_US_MIN, _US_MAX = _DAYS_MIN * 86_400_000_000, (_DAYS_MAX + 1) * 86_400_000_000 - 1
# What 38 digits take, with room for zeros before them.
DECIMAL_BYTES_MAX = 64
_PREFIX = "rocketspark-"


class Marked:
    """A value as it was written, with what it is by the writer's schema."""

    kind: tuple[str, str]


class _Number(int, Marked):
    pass


class _Digits(bytes, Marked):
    scale: int


def _number(kind: str, logical: str) -> type[_Number]:
    return type("_Number", (_Number,), {"kind": (kind, logical)})


# Units of times in us, by logical type.
_INSTANTS = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_TIMES = {"time-millis": 1000, "time-micros": 1}
_NUMBERS = {
    ("int", "date"): _number("int", "date"),
    ("int", "time-millis"): _number("int", "time-millis"),
    ("long", "time-micros"): _number("long", "time-micros"),
    **{("long", logical): _number("long", logical) for logical in _INSTANTS},
}
_DECIMALS = (("bytes", "decimal"), ("fixed", "decimal"))


def _mark(made: type[_Number]) -> Callable[..., Any]:
    return lambda value, writer, reader: made(value)


def _digits(value: Any, writer: Any, reader: Any) -> _Digits:
    found = _Digits(value)
    found.kind, found.scale = (writer["type"], "decimal"), int(writer.get("scale", 0))
    return found


def _register() -> None:
    from fastavro.read import LOGICAL_READERS

    for (kind, logical), made in _NUMBERS.items():
        LOGICAL_READERS[f"{kind}-{_PREFIX}{logical}"] = _mark(made)
    for kind, logical in _DECIMALS:
        LOGICAL_READERS[f"{kind}-{_PREFIX}{logical}"] = _digits


def marking(schema: Any) -> Any:
    """Return a schema whose logical types only mark what fastavro reads."""
    _register()
    return _marked(schema)


def _marked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_marked(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    kind, logical = found.get("type"), found.pop("logicalType", None)
    if isinstance(kind, str) and ((kind, logical) in _NUMBERS or (kind, logical) in _DECIMALS):
        found["logicalType"] = _PREFIX + str(logical)
    for key in ("items", "values", "type"):
        if isinstance(found.get(key), dict | list):
            found[key] = _marked(found[key])
    if "fields" in found:
        found["fields"] = [{**field, "type": _marked(field["type"])} for field in found["fields"]]
    return found


def converter(schema: Mapping[str, Any]) -> Convert | None:
    """Return what makes of a value what Arrow takes for a type of the reader; None where any value is that."""
    kind, logical = schema["type"], schema.get("logicalType")
    if (kind, logical) in _DECIMALS:
        return _decimal(int(schema.get("scale", 0)))
    if kind in ("bytes", "fixed"):
        return _bytes
    if (kind, logical) not in _NUMBERS:
        return None
    if logical in _INSTANTS:
        return _instant(_INSTANTS[logical])
    return _date if logical == "date" else _time(_TIMES[str(logical)])


def _bytes(value: Any) -> Any:
    # A default is text whose characters are the bytes.
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> Decimal:
        digits = _bytes(value)
        # Decimals of many digits take a time that grows by the square.
        if len(digits) > DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {len(digits)} bytes, and Spark's have 38 digits at most")
        written = digits.scale if isinstance(digits, _Digits) else scale
        return Decimal(f"{int.from_bytes(digits, 'big', signed=True)}e{-written}")

    return convert


def _instant(unit_us: int) -> Convert:
    def convert(value: Any) -> int:
        written = _INSTANTS.get(value.kind[1], unit_us) if isinstance(value, Marked) else unit_us
        us = int(value) * written
        if not _US_MIN <= us <= _US_MAX:
            raise ValueError("a timestamp lies outside of the years 1 to 9999")
        return us

    return convert


def _date(value: Any) -> int:
    days = int(value)
    if not _DAYS_MIN <= days <= _DAYS_MAX:
        raise ValueError("a date lies outside of the years 1 to 9999")
    return days


def _time(unit_us: int) -> Convert:
    def convert(value: Any) -> int:
        written = _TIMES.get(value.kind[1], unit_us) if isinstance(value, Marked) else unit_us
        return int(value) if written == unit_us else int(value) * written // unit_us

    return convert
