"""The packages that executors need, packed into an archive for `spark.archives`. Rule: it is made from what is
installed here, without the network.

It holds this package and what it needs at run time, at the versions installed, but not PySpark: a cluster has its own.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pyspark_rocketmq
import rocketspark
from rocketspark.errors import ConfigError

# The name under which Spark unpacks it on each executor.
FOLDER = "rocketspark-env"
_OF_THE_CLUSTER = {"pyspark", "py4j"}


def pack(target: Path, extras: tuple[str, ...] = ("spark",), note: Callable[[str], None] = lambda name: None) -> int:
    """Write a .tar.gz of this package and the packages it needs; return the number of distributions in it.

    Args:
        extras: this package's extras whose requirements go in too.
        note: called with the name and version of each distribution.

    Raises ConfigError if something that is needed is not installed here, or there is no such extra.
    """
    known = distribution("rocketspark").metadata.get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in known:
            raise ConfigError(f"there is no extra {extra!r}: {', '.join(known)}")
    found = list(_needed("rocketspark", extras))
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for package in (rocketspark, pyspark_rocketmq):
            _add_package(archive, Path(str(package.__file__)).parent)
        for one in found:
            note(f"{one.metadata['Name']} {one.version}")
            for file in one.files or ():
                # Files beside site-packages (scripts, manuals) are of no use on an executor.
                if ".." not in file.parts and file.suffix != ".pyc":
                    _add(archive, Path(str(one.locate_file(file))), str(file))
    return len(found) + 1


def settings(archive: Path) -> dict[str, str]:
    """Return the settings of a Spark session by which its executors use the packages of an archive."""
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.executorEnv.PYTHONPATH": f"./{FOLDER}"}


def _needed(name: str, extras: tuple[str, ...]) -> Iterator[Distribution]:
    """Return the distributions that `name` needs here, itself left out."""
    seen: set[tuple[str, str]] = set()
    given: set[str] = {canonicalize_name(name), *_OF_THE_CLUSTER}
    asked = [(name, extra) for extra in ("", *extras)]
    while asked:
        at = asked.pop()
        if at in seen:
            continue
        seen.add(at)
        owner, extra = at
        try:
            found = distribution(owner)
        except PackageNotFoundError:
            raise ConfigError(f"{owner} is not installed here: pip install 'rocketspark[spark]'") from None
        if (key := canonicalize_name(owner)) not in given:
            given.add(key)
            yield found
        for text in found.requires or ():
            needed = Requirement(text)
            if needed.name in _OF_THE_CLUSTER or (needed.marker and not needed.marker.evaluate({"extra": extra})):
                continue
            asked += [(needed.name, part) for part in ("", *needed.extras)]


def _add_package(archive: tarfile.TarFile, folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            _add(archive, file, str(file.relative_to(folder.parent)))


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    """Add a file without its owner and its times, so that nothing of this machine stands in the archive."""
    if not file.is_file():
        return
    data = file.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o755 if file.stat().st_mode & 0o100 else 0o644, 315_532_800
    archive.addfile(entry, io.BytesIO(data))
