"""Spark reads and writes topics: format("rocketmq").

Rule: importing the package imports no PySpark; a name's module is imported when the name is first used.

Start with source.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.decode.error_rows import bad_rows
    from rocketspark.spark.decode.frame import decode, infer_schema
    from rocketspark.spark.session_start import session
    from rocketspark.spark.source import RocketMQDataSource

__all__ = ["RocketMQDataSource", "bad_rows", "decode", "infer_schema", "session"]

_find = attributes(
    __name__,
    {
        "RocketMQDataSource": "source",
        "bad_rows": "decode.error_rows",
        "decode": "decode.frame",
        "infer_schema": "decode.frame",
        "session": "session_start",
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__ and find_spec("pyspark") is None:
        raise ModuleNotFoundError("rocketspark.spark needs PySpark: pip install 'rocketspark[spark]'", name="pyspark")
    return _find(name)
