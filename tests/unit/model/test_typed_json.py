"""Types that several threads decode to at once for the first time: msgspec alone crashes the process then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows(
    "mended: two threads that decode to a type for the first time at once crashed the process (found in a Spark worker)"
)

SOURCE = Path(__file__).resolve().parents[3] / "src"

FIRST_USES = """
import sys, threading
import msgspec
from rocketspark.model import typed_json

sys.setswitchinterval(1e-6)
fields = [(f"f{i}", msgspec.field(default=None)) for i in range(15)]
for n in range(150):
    each = [(f"f{i}", int | None, None) for i in range(15)]
    inner = msgspec.defstruct(f"Inner{n}", each)
    outer = msgspec.defstruct(f"Outer{n}", [*each, ("x", inner | None, None), ("y", dict[str, inner], {})])
    start, found = threading.Barrier(3), []

    def use():
        start.wait()
        text = b'{"f3":4,"f14":3,"x":{"f1":2},"y":{"a":{"f14":5}}}'
        value = typed_json.decode(text, outer)
        found.append((value.f14, value.x.f1, typed_json.convert({"y": {"a": {"f14": 5}}}, outer).y["a"].f14))

    threads = [threading.Thread(target=use) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found == [(3, 2, 5)] * 3, found
print("whole")
"""


def test_threads_that_use_a_type_first_get_whole_values() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_child_may_decode_whatever_another_thread_was_doing() -> None:
    code = """
import os, threading
from rocketspark.model import typed_json
held, go_on = threading.Event(), threading.Event()

def hold():
    with typed_json._lock:
        held.set()
        go_on.wait()

threading.Thread(target=hold).start()
held.wait()
threading.Timer(0.1, go_on.set).start()
pid = os.fork()
if pid == 0:
    os._exit(typed_json.decode(b"[7]", list[int])[0])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n", done.stderr


def test_nothing_is_decoded_to_a_type_in_another_way() -> None:
    other = re.compile(r"msgspec\.(json\.Decoder\(|convert\(|json\.decode\(.*\btype=)")
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if path.name != "typed_json.py"
        for line in path.read_text().splitlines()
        if other.search(line)
    ]
    assert found == []
