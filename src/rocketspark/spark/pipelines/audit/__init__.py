"""The pipeline that compares what was produced with what was consumed.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.audit.pipeline import AuditScope, GroupStanding, ask, run, summary

__all__ = ["AuditScope", "GroupStanding", "ask", "run", "summary"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
