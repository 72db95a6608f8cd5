"""Messages in flight where the master is killed and its slave takes over: one of ours and an official one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.java.pop_failover import popped_messages_survive

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows("failover with messages in flight, PP, JP and PJ"),
]


@pytest.mark.parametrize("kinds", ["JP", pytest.param("PJ", marks=pytest.mark.soak)])
def test_what_was_popped_comes_again_from_the_new_master(tmp_path: Path, kinds: str) -> None:
    popped_messages_survive(tmp_path, kinds)
