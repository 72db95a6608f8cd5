"""Metrics of streaming queries for Prometheus: rows, durations and ends from Spark, lag from the brokers.

Rule: nothing here can delay a query or end it. Start with listening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.metrics.listening import Listening, listen

__all__ = ["Listening", "listen"]

__getattr__ = attributes(__name__, {"Listening": "listening", "listen": "listening"})
