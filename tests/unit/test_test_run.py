"""How the tests are run: which drive official software, and what each kind cost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.official import SMOKE
from tests.support.processor_time import Kin, kind_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_quick_test_of_official_software_is_there() -> None:
    for name in SMOKE:
        file, _, test = name.partition("::")
        function = re.sub(r"\[.*", "", test)
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), name


def test_time_of_processes_that_live_and_that_have_ended_is_counted_once() -> None:
    kin = Kin()
    kin.seconds()
    # It is busy until it has used so much, however long that takes, and then waits to be told to end.
    text = "import time\nwhile time.process_time() < 0.3: pass\nprint('used', flush=True)\ninput()"
    before = kin.seconds()
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"used\n"
        living = kin.seconds()
        child.communicate(b"\n")
    ended = kin.seconds()
    assert living - before >= 0.25
    assert living <= ended < living + 0.25


def test_kinds_are_folders() -> None:
    assert kind_of("tests/unit/store/test_log.py::test_a[1]") == "unit"
    assert kind_of("tests/spark/test_read.py::test_a") == "spark"
    assert kind_of("tests/spark/pipelines/test_sql.py::test_a") == "spark/pipelines"
