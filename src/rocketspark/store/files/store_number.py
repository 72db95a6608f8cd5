"""The number that tells a store from others that a broker of its name had before, config/storeNumber.json.

Rule: a store that holds nothing, or is a copy of a backup, gets a new number, and no store is told apart by a number
that is not on its disk. A copy also notes the ends of its queues as it begins: up to there they are those of the store
that it is a copy of. A store that took another broker's log, or that an older program made, has no number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocketspark import machine
from rocketspark.errors import StoreError
from rocketspark.protocol import light_queues
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, remove_file

VERSION = 1
# In the mark of an open store, whose process was killed: it is a backup's.
OF_A_BACKUP = "backup"
# So many stores before a copy are known.
BEFORE_MAX = 8
Ends = Mapping[str, Mapping[str, int]]
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


def is_copy(mark: str) -> bool:
    """Tell whether the mark of an open store says that it is a copy of a backup, which was never closed since."""
    with suppress(OSError):
        return Path(mark).read_text("utf-8", "replace") == OF_A_BACKUP
    return False


def renew(
    root: str, files: OsFiles, queues: Mapping[str, Collection[int]], range_of: Callable[[str, int], tuple[int, int]]
) -> None:
    """Give a copy a number of its own. `queues`: its queues by topic, with the ends that `range_of` tells; light ones
    are left out. One that has no number gets none.
    """
    if (number := number_of(root, files, is_empty=False)) is None:
        return
    names = [topic for topic in queues if not topic.startswith(light_queues.NAME_PREFIX)]
    ends = {topic: {str(queue): range_of(topic, queue)[1] for queue in queues[topic]} for topic in names}
    before = [(of, _least(then, ends)) for of, then in shared(root)] + [(number, ends)]
    found = [{"number": of, "ends": then} for of, then in before[-BEFORE_MAX:]]
    with suppress(StoreError):
        text = config_files.sealed({"version": VERSION, "number": machine.randbits(_BITS), "before": found})
        config_files.write(_path(root), text, files, keep_before=False)


def _least(one: Ends, other: Ends) -> Ends:
    return {
        topic: {queue: min(end, other[topic].get(queue, 0)) for queue, end in queues.items()}
        for topic, queues in one.items()
        if topic in other
    }


def shared(root: str) -> list[tuple[int, Ends]]:
    """Return the numbers of the stores that a copy continues, the oldest first, each with the ends of the queues up to
    which they are the same.
    """
    try:
        found: Any = config_files.unsealed(config_files.read_whole(_path(root)) or "{}").get("before", [])
        return [(int(one["number"]), dict(one["ends"])) for one in found]
    except (StoreError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
