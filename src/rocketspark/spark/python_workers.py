"""The Python processes of Spark: which Python they are, how they are set up, and how they show a user's errors.

Rule: settings are made once in each process, only where tasks lose time, and no task could see them. Only a
RocketSparkError is shown without its traceback: a bug keeps its own.

Spark's JVM looks for data sources in PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else the first python3 of its PATH. It
reads these when it starts and never again. What it finds also names the Python of the source's tasks, on every
executor, even if it comes from PYSPARK_DRIVER_PYTHON. A name works on every machine of a cluster, a path of the driver
does not: so PATH is changed, as activating an environment does.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketspark.errors import RocketSparkError
from rocketspark.model import freed_memory

_settled = False


def settle() -> None:
    """Set up this process if it is a worker that Spark uses for several tasks. May be called often; to be called after
    all imports.
    """
    global _settled
    if _settled or not os.environ.get("SPARK_REUSE_WORKER"):
        return
    _settled = True
    freed_memory.keep()
    # PySpark's daemon collects all garbage after each task. What is here for good need not be gone through: that took
    # 15 ms of every task, a third of a worker's processor time in tasks of 250,000 rows.
    gc.collect()
    gc.freeze()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Have PySpark show a RocketSparkError that the block raises without its traceback."""
    try:
        yield
    except RocketSparkError:
        # PySpark ends its worker process after an exception, so the setting lasts just for this one.
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


NAME = "python3"


def prefer_this_python() -> None:
    """Put the folder of this Python first on PATH, for this process and for what it starts from now on.

    A PYSPARK_DRIVER_PYTHON that is no Python (jupyter, ipython) is removed: it names what starts a shell, and Spark's
    JVM cannot ask it. Otherwise that variable and PYSPARK_PYTHON stay as they are.
    """
    here = Path(sys.executable)
    beside = here.with_name(NAME)
    # Such as /usr/bin/python3.12, where python3 is another version.
    name = NAME if beside.exists() and beside.samefile(here) else here.name
    path = os.environ.get("PATH", os.defpath)
    if not is_here(name, path):
        os.environ["PATH"] = f"{here.parent}{os.pathsep}{path}"
    if not is_python(os.environ.get("PYSPARK_DRIVER_PYTHON", NAME)):
        del os.environ["PYSPARK_DRIVER_PYTHON"]
    if name != NAME and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", name)


def is_here(program: str, path: str) -> bool:
    """Return whether `program`, looked for on `path`, lies in the folder of this Python."""
    found = shutil.which(program, path=path)
    return found is not None and Path(found).parent == Path(sys.executable).parent


def is_python(program: str) -> bool:
    """Return whether the name or path of a program is a Python's."""
    return re.fullmatch(r"python[\d.]*", Path(program).name) is not None
