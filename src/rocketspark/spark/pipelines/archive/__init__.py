"""The pipeline that archives topics as Parquet files.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.archive.micro_batches import ArchiveResult, may_pass
    from rocketspark.spark.pipelines.archive.pipeline import Hour, hours, merge_hours, read, run, run_tasks

__all__ = ["ArchiveResult", "Hour", "hours", "may_pass", "merge_hours", "read", "run", "run_tasks"]

__getattr__ = attributes(
    __name__,
    dict.fromkeys(__all__, "pipeline") | dict.fromkeys(("ArchiveResult", "may_pass"), "micro_batches"),
)
