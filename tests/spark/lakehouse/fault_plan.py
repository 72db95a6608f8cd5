"""Plans of what an object store does to requests: it fails now and then, and tells when a driver is to be killed."""

from __future__ import annotations

import threading

from tests.spark.lakehouse.s3 import CUT, PASS, REFUSE, Fault, Seen, status

# One request in so many fails; which ones is the same in each run.
FAULT_EACH = 23
FAULTS = (CUT, REFUSE, status(503), status(500))


def sometimes(seen: Seen) -> Fault:
    """One request in so many is refused, cut or ends with an error of the store."""
    return FAULTS[seen.number // FAULT_EACH % len(FAULTS)] if seen.number % FAULT_EACH == FAULT_EACH - 1 else PASS


class KillPlan:
    """`sometimes`, and a kill that falls on a request that writes: `hit` is set then, `where` says which it was."""

    def __init__(self) -> None:
        self.hit = threading.Event()
        self.where = ""
        self._after = -1
        self._below: tuple[str, ...] = ("/",)

    def kill_after(self, count: int, *below: str) -> None:
        """Have the kill fall on the request that writes after that many others; `below`: paths that count."""
        self.hit.clear()
        self._below = below or ("/",)
        self._after = count

    def __call__(self, seen: Seen) -> Fault:
        if self._after >= 0 and seen.method in ("PUT", "POST", "DELETE") and seen.path.startswith(self._below):
            self._after -= 1
            if self._after < 0:
                self.where = f"{seen.method} {seen.path.partition('?')[0]}"
                self.hit.set()
                # The store may or may not have carried out the request in which its client dies.
                return REFUSE if seen.number % 2 else PASS
        return sometimes(seen)
