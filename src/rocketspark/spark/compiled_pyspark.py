"""PySpark for Spark's Python processes as it lies unpacked. Rule: the same code, compiled once instead of each time.

Spark puts its pyspark.zip first on PYTHONPATH. Python keeps no compiled code of what lies in an archive, so each
process that plans a query, and each that makes workers, compiled PySpark anew for some 0.4 s. src/rocketspark.pth calls
`prefer` where Python starts, before PySpark is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableSequence, Sequence

ARCHIVE = "pyspark.zip"
# Where a Spark keeps it: PySpark from PyPI is such a folder in site-packages.
_IN_SPARK = ("python", "lib", ARCHIVE)


def prefer(path: MutableSequence[str] | None = None) -> None:
    """Have PySpark imported from where it lies unpacked beside the archive on `path` (sys.path), if it does.

    Another PySpark than the archive's is never taken, and nothing else changes its place.
    """
    path = sys.path if path is None else path
    for entry in [entry for entry in path if os.path.basename(entry) == ARCHIVE]:
        spark = _spark_of(entry)
        if spark is None:
            continue
        at = path.index(entry)
        if _is_package(os.path.join(spark, "python", "pyspark")):
            path.insert(at, os.path.join(spark, "python"))
        elif os.path.basename(spark) == "pyspark" and _is_package(spark) and _is_on(path[at:], os.path.dirname(spark)):
            # Site-packages stay behind Python's own modules; the archive goes behind them.
            path.append(path.pop(at))


def _spark_of(entry: str) -> str | None:
    """Return the folder of the Spark that an archive belongs to."""
    parts = entry.split(os.sep)
    return os.sep.join(parts[:-3]) if tuple(parts[-3:]) == _IN_SPARK else None


def _is_on(path: Sequence[str], folder: str) -> bool:
    return os.path.realpath(folder) in map(os.path.realpath, path)


def _is_package(folder: str) -> bool:
    """Tell whether a folder is PySpark whole, not only the parts that PySpark from PyPI keeps in `python`."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in ("__init__.py", "version.py"))
