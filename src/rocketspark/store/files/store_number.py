"""The number that tells a store from others that a broker of its name had before, config/storeNumber.json.

Rule: a store that holds nothing gets a new number, and no store is told apart by a number that is not on its disk. One
that took another broker's log, or that an older program made, has none.
"""

from __future__ import annotations

from contextlib import suppress

from rocketspark import machine
from rocketspark.errors import StoreError
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, remove_file

VERSION = 1
# JSON numbers that any reader takes.
_BITS = 53


def _path(root: str) -> str:
    return f"{root}/config/storeNumber.json"


def number_of(root: str, files: OsFiles, *, is_empty: bool) -> int | None:
    """Return the number of the store in a folder; one that is empty gets a new one. None if it has none, its file is
    damaged, or a number cannot be written.
    """
    try:
        if is_empty:
            number = machine.randbits(_BITS)
            text = config_files.sealed({"version": VERSION, "number": number})
            config_files.write(_path(root), text, files, keep_before=False)
            return number
        text = config_files.read_whole(_path(root)) or "{}"
        found = config_files.unsealed(text).get("number")
        return found if type(found) is int and found >= 0 else None
    except (StoreError, ValueError, AttributeError, RecursionError):
        return None


def forget_number(root: str) -> None:
    """Remove the number of a store that takes another broker's log: by that it is another store."""
    with suppress(StoreError):
        remove_file(_path(root))
