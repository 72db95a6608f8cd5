"""Spark reads and writes topics: format("rocketmq").

Rule: importing the package imports no PySpark; a name's module is imported when the name is first used.

Start with source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.session_start import session
    from rocketspark.spark.source import RocketMQDataSource

__all__ = ["RocketMQDataSource", "session"]

__getattr__ = attributes(__name__, {"RocketMQDataSource": "source", "session": "session_start"})
