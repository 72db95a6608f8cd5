"""Has Spark's Python processes import PySpark from its unpacked folder instead of the archive, so that its compiled
code is kept.

Spark puts its pyspark.zip first on PYTHONPATH. Python keeps no compiled code of what lies in an archive, so each
process that plans a query, and each that makes workers, compiled PySpark anew for some 0.4 s. src/rocketspark.pth calls
`at_start` where Python starts, before PySpark is imported. Rule: the code is the same; if anything here fails, Python
starts as it did before, in silence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableSequence, Sequence
from importlib.machinery import PathFinder

ARCHIVE = "pyspark.zip"
# What an import of this file imports of this package.
_OURS = {"rocketspark", "rocketspark.lazy", "rocketspark.spark", __name__}
# Where a Spark keeps it: PySpark from PyPI is such a folder in site-packages.
_IN_SPARK = ("python", "lib", ARCHIVE)


def at_start() -> None:
    """Change sys.path as `prefer` does. Then drop this package from the imported modules: Spark may ship another copy
    of it, which must be found first.
    """
    prefer(sys.path)
    imported = {name for name in sys.modules if name.partition(".")[0] == "rocketspark"}
    # More is there only if a program that is long under way has Python read its .pth files again.
    for name in imported if imported <= _OURS else ():
        del sys.modules[name]


def prefer(path: MutableSequence[str]) -> None:
    """Change `path`, a list such as sys.path, so that PySpark is imported from the folder where it lies unpacked beside
    its archive, if it does.

    Another PySpark than the archive's is never chosen, and nothing else on `path` changes its place.
    """
    for entry in [entry for entry in path if os.path.basename(entry) == ARCHIVE]:
        spark = _spark_of(entry)
        if spark is None:
            continue
        at = path.index(entry)
        unpacked = os.path.join(spark, "python")
        if _is_package(os.path.join(unpacked, "pyspark")):
            if unpacked not in path[:at]:
                path.insert(at, unpacked)
        elif _is_package(spark) and _is_found(path[at + 1 :], spark):
            # Site-packages stay behind Python's own modules; the archive goes behind them.
            path.append(path.pop(at))


def _spark_of(entry: str) -> str | None:
    """Return the folder of the Spark that an archive belongs to."""
    parts = entry.split(os.sep)
    return os.sep.join(parts[:-3]) if tuple(parts[-3:]) == _IN_SPARK else None


def _is_found(path: Sequence[str], spark: str) -> bool:
    """Tell whether an import of PySpark by `path` finds the folder `spark`."""
    found = PathFinder.find_spec("pyspark", path)
    return found is not None and os.path.realpath(os.path.dirname(found.origin or "")) == os.path.realpath(spark)


def _is_package(folder: str) -> bool:
    """Tell whether a folder is PySpark whole, not only the parts that PySpark from PyPI keeps in `python`."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in ("__init__.py", "version.py"))
