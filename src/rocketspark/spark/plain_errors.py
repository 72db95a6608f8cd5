"""Users' errors, shown by Spark as one line. Rule: only RocketSparkErrors are; a bug keeps its traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rocketspark.errors import RocketSparkError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Have PySpark leave the traceback out of a RocketSparkError that leaves this block."""
    try:
        yield
    except RocketSparkError:
        # PySpark ends its worker process after an exception, so the setting lasts just for this one.
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
