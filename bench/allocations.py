"""How many bytes a client asks the allocator for a message: counted by glibc's libmemusage in runs that no clock times.

Rule: a process tells its total only when it ends, so a case runs twice, with few messages and with many; the difference
is the messages' own. Python takes every object from malloc for that (PYTHONMALLOC); its free lists ask for nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

VARIABLES = {"LD_PRELOAD": "libmemusage.so", "PYTHONMALLOC": "malloc"}
RUN_S_MAX = 150.0
TOTAL = re.compile(rb"heap total: *(\d+)")


class NotCounted(Exception):
    """A run whose allocations were to be counted failed."""


@functools.cache
def is_countable() -> bool:
    """Whether the machine has glibc's counter of allocations."""
    environment = os.environ | VARIABLES
    done = subprocess.run([sys.executable, "-S", "-c", ""], capture_output=True, env=environment, timeout=RUN_S_MAX)
    return TOTAL.search(done.stderr) is not None


def bytes_each(command: list[str], log_path: Path, few: float, many: float) -> float | None:
    """Bytes that a client of bench.perf or bench.kafka_perf asks for a message; None where they cannot be counted.

    `few`, `many`: the amounts of the rounds of the two runs. Raises NotCounted if a run fails.
    """
    if not is_countable():
        return None
    totals = [_run(command, log_path, [few]), _run(command, log_path, [few, many])]
    return each_of(totals[0], totals[1])


def each_of(small: tuple[int, int], large: tuple[int, int]) -> float | None:
    """Bytes for each of the messages that the larger run had more, of (messages, bytes) of both."""
    more = large[0] - small[0]
    return (large[1] - small[1]) / more if more > 0 else None


def total_of(output: bytes) -> int:
    """The bytes that the summary of a run tells; of several programs started in turn, the last one's."""
    return int(TOTAL.findall(output)[-1])


def _run(command: list[str], log_path: Path, amounts: list[float]) -> tuple[int, int]:
    """Messages of a run with rounds of these amounts, and the bytes that it asked for."""
    lines = "".join(f"{amount:f}\n" for amount in amounts).encode()
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, env=os.environ | VARIABLES, timeout=RUN_S_MAX, check=True
        )
    except subprocess.SubprocessError as e:
        text = getattr(e, "stderr", None) or b""
        told = text[-2000:].decode(errors="replace")
        raise NotCounted(f"{' '.join(command[-4:])}: {e}\n{told}") from e
    log_path.write_bytes(done.stderr)
    count = sum(int(json.loads(line)["count"]) for line in done.stdout.splitlines())
    return count, total_of(done.stderr)
