"""A clock set by hand, and the pops of a broker with four messages to pop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.pop.rig import Clock, Rig, clock_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_of(monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, clock: Clock) -> Rig:
    made = Rig(tmp_path, clock)
    for number in range(4):
        made.send(f"K{number}")
    return made
