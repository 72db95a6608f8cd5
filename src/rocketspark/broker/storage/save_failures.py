"""Files of the broker that cannot be written: logged once when it begins and once when it is over, and counted.

Rule: each writer of such a file reports every attempt here, and tries again until one works; requests that are
answered once a file is written get the error instead.
"""

from __future__ import annotations

from rocketspark.model.limited_log import LimitedLog

log = LimitedLog("rocketspark.broker")


class SaveFailures:
    """The attempts of one broker, by name of the file. Any thread may report one."""

    def __init__(self) -> None:
        # Failures since the start by file; and the error of each file that still fails.
        self.failures: dict[str, int] = {}
        self.failing: dict[str, str] = {}
        self._last: BaseException | None = None

    def failed(self, name: str, error: BaseException) -> None:
        """Report that a file could not be written; the error says where and why."""
        self.failures[name] = self.failures.get(name, 0) + 1
        if name not in self.failing:
            log.error("%s is not saved: %s; it is tried again until it works", name, error)
        self.failing[name] = str(error)
        self._last = error

    def worked(self, name: str) -> None:
        """Report that a file was written."""
        if self.failing and self.failing.pop(name, None) is not None:
            log.warning("%s is saved again", name)

    def told(self, error: BaseException) -> bool:
        """Tell whether an error was reported here."""
        return error is self._last
