"""One folder for what killed processes of tests leave in the system's temporary folder; it goes as the run ends.

Rule: a disk that is as full as brokers bear ends the run before its first test, in one line.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

# Above it brokers, RocketMQ's too, take no messages, whatever their settings.
FULL_PERCENT = 90


def jvm_option() -> str:
    """Of JVMs that unpack libraries: they do not look at TMPDIR."""
    return f"-Djava.io.tmpdir={tempfile.gettempdir()}"


class TemporaryFolder:
    """Made by the process that the run began with; workers and what they start find it in TMPDIR."""

    def __init__(self) -> None:
        # Not before conftest.py notes each log that is made.
        from rocketspark.broker.storage.retention import disk_used_percent

        # pytest's own folders stay where they are looked for after a failure.
        usual = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        used = disk_used_percent(usual)
        if used > FULL_PERCENT:
            pytest.exit(
                f"{used} % of the disk of {usual} is in use: above {FULL_PERCENT} % brokers take no messages; "
                "free some space, or set TMPDIR to a folder on another disk",
                pytest.ExitCode.USAGE_ERROR,
            )
        self._path = tempfile.mkdtemp(prefix="rocketspark-tests-")
        os.environ["TMPDIR"] = tempfile.tempdir = self._path

    def pytest_unconfigure(self) -> None:
        """Remove what was left there."""
        shutil.rmtree(self._path, ignore_errors=True)
