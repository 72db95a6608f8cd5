"""The pipeline that runs a file of sources, SQL steps and sinks.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.sql.pipeline import (
        DryRun,
        SinkResult,
        SqlResult,
        ViewPlan,
        dry_run,
        options_with,
        run,
        sink_frame,
        source_frame,
    )

__all__ = [
    "DryRun",
    "SinkResult",
    "SqlResult",
    "ViewPlan",
    "dry_run",
    "options_with",
    "run",
    "sink_frame",
    "source_frame",
]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
