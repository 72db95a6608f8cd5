"""The pipeline that shows dead letters and sends them again.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.dlq.pipeline import (
        DeadLetterGroup,
        DeadLetterSource,
        DlqReport,
        choose,
        find,
        letters,
        run,
        summary,
    )

__all__ = ["DeadLetterGroup", "DeadLetterSource", "DlqReport", "choose", "find", "letters", "run", "summary"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
