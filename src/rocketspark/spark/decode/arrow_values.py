"""Python values to an Arrow column. Rule: a value that does not fit becomes null with a reason; the others stay."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyspark.sql.types as t

from rocketspark.errors import ConfigError

# Arrow writes no deeper columns; the value itself is within one.
DEPTH_MAX = 60


def check_depth(kind: t.DataType) -> None:
    """Raise ConfigError for a type whose columns lie too deep."""

    def depth(one: t.DataType) -> int:
        if isinstance(one, t.StructType):
            return 1 + max((depth(field.dataType) for field in one.fields), default=0)
        if isinstance(one, t.ArrayType):
            return 1 + depth(one.elementType)
        # A map is a list of pairs.
        return 2 + depth(one.valueType) if isinstance(one, t.MapType) else 1

    if depth(kind) > DEPTH_MAX:
        raise ConfigError(
            f"decode: the schema's columns lie more than {DEPTH_MAX} deep, which Arrow does not take: give a flatter"
            " schema, or a lower recursiveFieldMaxDepth"
        )


def to_arrow(values: list[Any], kind: pa.DataType, reasons: list[str | None]) -> pa.Array:
    """Return the column. A value that does not fit is replaced by None in `values`, its reason goes into `reasons`."""
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        if isinstance(e, MemoryError):
            raise
    _find(values, kind, reasons, 0, len(values))
    return pa.array(values, type=kind)


def _find(values: list[Any], kind: pa.DataType, reasons: list[str | None], first: int, end: int) -> None:
    try:
        pa.array(values[first:end], type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        if end - first == 1:
            values[first] = None
            reasons[first] = f"a value does not fit its column: {' '.join(str(e).split())}"[:300]
            return
        half = (first + end) // 2
        _find(values, kind, reasons, first, half)
        _find(values, kind, reasons, half, end)
