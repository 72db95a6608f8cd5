"""The pipeline that restores an archive, or replays a topic"s past, into a topic.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.restore.pipeline import (
        MovedQueue,
        RestoreResult,
        RestoreState,
        replay,
        restore,
        topics_of,
    )

__all__ = ["MovedQueue", "RestoreResult", "RestoreState", "replay", "restore", "topics_of"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
