"""The pipeline that copies a topic with each key once within some time.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.dedupe.pipeline import DedupeResult, check, duration, key_of, run

__all__ = ["DedupeResult", "check", "duration", "key_of", "run"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
