"""The limit of connections of all servers in this process. Rule: the files of the store come first.

A process has a limit of file descriptors. Connections may take half of it, whoever opens them; a less important server
takes a part of that half. A refused connection is closed at once.
"""

from __future__ import annotations

import asyncio
import math
import resource
import threading
from weakref import WeakKeyDictionary


def descriptors_max() -> float:
    """Return how many files and sockets this process may have open; infinity without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def connections_max(share: float = 0.5) -> float:
    """Return how many connections may take `share` of the descriptors; 16 at least."""
    limit = descriptors_max()
    return limit if math.isinf(limit) else max(16, int(limit * share))


class Descriptors:
    """A count of connections against a limit, of any loop. `refused`: how many were not let in.

    Connections of a closed loop count no more: nothing reports their end.
    """

    def __init__(self, count_max: float | None = None) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self.refused = 0

    @property
    def count_max(self) -> float:
        """The limit: the one given, else half of the process's descriptors as they are limited now."""
        return connections_max() if self._count_max is None else self._count_max

    @property
    def taken(self) -> int:
        """The number of open connections."""
        return sum(count for loop, count in list(self._of_loops.items()) if not loop.is_closed())

    def take(self) -> bool:
        """Let one connection of the running loop in; False if the limit is reached."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.taken < self.count_max:
                self._of_loops[loop] = self._of_loops.get(loop, 0) + 1
                return True
            self.refused += 1
            return False

    def give_back(self) -> None:
        """Note the end of a connection of the running loop that was let in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._of_loops[loop] -= 1


OF_PROCESS = Descriptors()
