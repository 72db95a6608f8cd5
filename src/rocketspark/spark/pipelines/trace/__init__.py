"""The pipeline that evaluates message traces.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.trace.pipeline import run, summary

__all__ = ["run", "summary"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
