"""The pipeline that sends rows of a database table to a topic.

Rule: executors import its modules without the driver's half.

Start with pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.outbox.pipeline import (
        Batches,
        Columns,
        OutboxResult,
        TableReader,
        TableSource,
        check,
        message_of,
        run,
        text_of,
    )

__all__ = ["Batches", "Columns", "OutboxResult", "TableReader", "TableSource", "check", "message_of", "run", "text_of"]

__getattr__ = attributes(__name__, dict.fromkeys(__all__, "pipeline"))
