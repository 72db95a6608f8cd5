"""Stores in tests/vectors, unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

STORES = Path(__file__).parents[1] / "vectors" / "store"


def unpack_all(archive: Path, where: Path) -> None:
    """All files of an archive, below `where`."""
    with tarfile.open(archive) as tar:
        _make_safe(tar)
        tar.extractall(where)


def unpack(name: str, where: Path, wanted: Callable[[str], bool]) -> Path:
    """The files of NAME.tar.gz whose names are wanted, below `where`; returns the store's root."""
    with tarfile.open(STORES / f"{name}.tar.gz") as tar:
        _make_safe(tar)
        tar.extractall(where, [member for member in tar.getmembers() if wanted(member.name)])
    return where / "store"


def _make_safe(tar: tarfile.TarFile) -> None:
    # Python before 3.11.4 knows no argument for it.
    if hasattr(tarfile, "data_filter"):
        tar.extraction_filter = tarfile.data_filter
