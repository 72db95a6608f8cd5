"""Settings of Spark's Python workers, made once in each. Rule: only what costs tasks time; nothing a task could see."""

from __future__ import annotations

import gc
import os

from rocketspark.model import freed_memory

_settled = False


def settle() -> None:
    """Set up this process, if it is a worker that Spark uses again: cheap to call, after all imports."""
    global _settled
    if _settled or not os.environ.get("SPARK_REUSE_WORKER"):
        return
    _settled = True
    freed_memory.keep()
    # PySpark's daemon collects all garbage after each task. What is here for good need not be gone through: that took
    # 15 ms of every task, a third of a worker's processor time in tasks of 250,000 rows.
    gc.collect()
    gc.freeze()
