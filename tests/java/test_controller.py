"""The official controller 5.5.0 answers the script as it is recorded: what ours is compared with in tests/live."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import controller_rows
from tests.java.apache import ApacheController

pytestmark = pytest.mark.xdist_group("jvm")


def test_apaches_controller_answers_as_recorded(tmp_path: Path) -> None:
    official = ApacheController(tmp_path)
    try:
        rows = controller_rows.comparable(controller_rows.play(official.controller))
    finally:
        official.kill()
    assert rows == controller_rows.recorded()
