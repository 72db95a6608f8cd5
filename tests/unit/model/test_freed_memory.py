"""A process that keeps freed memory uses it again without faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.shows(
    "batch writes: room prepared ahead, one write of the log file, rows read while others are sent",
)

# Buffers of some 5 MiB at once, again and again; printed: page faults after the first rounds.
_PROGRAM = """
import resource, sys
from rocketspark.model import freed_memory
if sys.argv[1] == "keep":
    freed_memory.keep()
def use():
    held = [bytes([n]) * (n << 18) for n in range(1, 6)]
    held.reverse()
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", _PROGRAM, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_what_is_freed_is_used_again() -> None:
    # 960 pages a round.
    assert faults("keep") < 500 < faults("not")
