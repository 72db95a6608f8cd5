"""A Ctrl-C or a SIGTERM that comes where Python can raise nothing ends a command all the same, without a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What ends an object can raise nothing: Python prints it and goes on.
SCRIPT = """
import signal, sys, time
from rocketspark.cli import main

class Ends:
    def __del__(self):
        signal.raise_signal(getattr(signal, sys.argv[1]))
        time.sleep(0)

def run(arguments):
    del globals()["ends"]
    print("goes on", flush=True)
    time.sleep(600)

ends = Ends()
main._run = run
main.main([])
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", -15)])
def test_it_comes_again(name: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "goes on\n", "")
