"""Stores in tests/vectors, unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

STORES = Path(__file__).parents[1] / "vectors" / "store"


def unpack(name: str, where: Path, wanted: Callable[[str], bool]) -> Path:
    """The files of NAME.tar.gz whose names are wanted, below `where`; returns the store's root."""
    with tarfile.open(STORES / f"{name}.tar.gz") as tar:
        # Python before 3.11.4 knows no argument for it.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(where, [member for member in tar.getmembers() if wanted(member.name)])
    return where / "store"
