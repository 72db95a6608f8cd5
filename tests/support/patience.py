"""How long tests wait for what must come: machines are busy, and only what hangs takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LIMIT_S = 120.0
LIMIT_MS = 120_000

# Settings of brokers, ours and official ones: on a busy machine they would refuse a send that waited 200 ms or comes
# after a put that took a second, and a pull that waited 5 s. Ends of transactions are left out: Spark's exactly once
# counts on an official broker that drops those that waited 3 s.
PATIENT = {
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "waitTimeMillsInLitePullQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}


def in_time(
    act: Callable[[Path], None], folder: Path, tries: int = 5, spoiled: type[AssertionError] = AssertionError
) -> None:
    """Do what a machine that halts for a second spoils: it must come right once, each time in a folder of its own.

    For what a short time decides, such as which of two messages is due first, or how late one may come.

    Args:
        spoiled: the failure after which it is done again; any other counts at once.
    """
    for number in range(1, tries + 1):
        own = folder / f"try-{number}"
        own.mkdir()
        try:
            act(own)
        except spoiled:
            if number == tries:
                raise
        else:
            break
