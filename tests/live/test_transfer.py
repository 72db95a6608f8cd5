"""The example of a transfer between two accounts, its processes and the server killed at random."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.transfer.run import expected, show

pytestmark = pytest.mark.shows("a transfer between two accounts under kills")


def test_money_is_neither_lost_nor_made_whoever_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    found = show(tmp_path, count=120, kills=5, seed=7, say=said.append)
    assert found == expected(120)
    assert found["states"] == {"credited": 108, "refused": 12}
    assert {line.split()[-3] for line in said} == {"pay", "credit", "refund", "server"}
    assert len(said) == 5
