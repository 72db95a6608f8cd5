"""Defects of replication that were mended, planted again: each in a copy of src, where its test has to fail.

Rule: whoever changes a line that is named here names the line that stands in its place now.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.shows("nemesis, planted defects")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rocketspark"
ROLES = "tests/unit/broker/replication"
CONTROLLER_MODE = "tests/live/test_controller_mode.py"
LINKS = "tests/unit/broker/replication/link/test_links.py"
MODEL = f"{ROLES}/test_in_sync_model.py"


class Planted(NamedTuple):
    """`text` of `file` (below src/rocketspark) becomes `defect`; then `test` fails."""

    name: str
    file: str
    text: str
    defect: str
    test: str


TABLE = [
    Planted(
        "who is elected while it waits for the log of the master before holds its own loop",
        "broker/replication/slave_synchronize.py",
        "        if not self._is_master(api):\n            return  # What would wait",
        "        if False:\n            return  # What would wait",
        "tests/live/test_slave_synchronize_hostile.py",
    ),
    Planted(
        "who took over forgets, while it reads the queue of timers, what the master before had delivered",
        "broker/messages/timers/timer_messages.py",
        "max(self._offset, self._taken_to),",
        "self._offset,",
        "tests/unit/broker/messages/timers/test_timer_messages.py",
    ),
    Planted(
        "a master that hung delivers again what its slave moved on",
        "broker/replication/acting/way_back.py",
        "        if self.is_away:\n            raise MessageStays(AWAY)",
        "        if False:\n            raise MessageStays(AWAY)",
        "tests/unit/broker/replication/acting/test_way_back.py",
    ),
    Planted(
        "the master acknowledges alone what the controller may elect another for",
        "broker/replication/in_sync_set.py",
        "return len(self.all_members)",
        "return max(len(self.members), len(self.wanted or ()))",
        MODEL,
    ),
    Planted(
        "what was asked for without an answer is forgotten when nothing more is wanted",
        "broker/replication/in_sync_set.py",
        "while self._is_on and found.is_open:",
        "while self._is_on and found.wanted is not None:",
        MODEL,
    ),
    Planted(
        "what was asked for no longer counts once the controller refused",
        "broker/replication/in_sync_set.py",
        "self.target &= self.members\n",
        "self.target &= self.members\n        self._unanswered = frozenset()\n",
        MODEL,
    ),
    Planted(
        "what is wanted when an answer comes does not count before it is asked for",
        "broker/replication/in_sync_set.py",
        "self._unanswered = self.target if self.target != members else frozenset()",
        "self._unanswered = frozenset()",
        MODEL,
    ),
    Planted(
        "a master elected again keeps the confirmed position of a log that was cut",
        "broker/replication/in_sync_set.py",
        "self.confirmed = min(store.confirmed_position, self._began_at)",
        "self.confirmed = max(store.confirmed_position, self.confirmed)",
        MODEL,
    ),
    Planted(
        "a slave without its master's offsets is in sync",
        "broker/replication/role_changes.py",
        "learner=self.synchronize is None or not self.synchronize.is_taken,",
        "learner=False,",
        f"{CONTROLLER_MODE}::test_a_slave_joins_the_set_only_once_it_has_its_master_s_tables",
    ),
    Planted(
        "who is elected does not take the tables once more",
        "broker/replication/role_changes.py",
        "await asyncio.gather(self.client.drained(LAST_PIECES_S), *looks)",
        "await self.client.drained(LAST_PIECES_S)",
        f"{CONTROLLER_MODE}::test_who_is_elected_takes_the_tables_of_a_master_that_lives",
    ),
    Planted(
        "offsets of a master that steps down are taken before the log they count",
        "broker/replication/master_api.py",
        "end = status.master_commit_log_max_offset or (copies.max_offset if copies is not None else 0)",
        "end = status.master_commit_log_max_offset",
        "tests/live/test_slave_synchronize.py",
    ),
    Planted(
        "a slave takes a connection that the system of a frozen master made for its master's log",
        "broker/replication/link/links.py",
        "state = LinkState.HANDSHAKE",
        "state = LinkState.TRANSFER",
        LINKS,
    ),
    Planted(
        "a log that is not its master's is continued where a record of the master's begins",
        "broker/replication/master_check.py",
        "            if theirs == own:\n",
        "            if theirs:\n",
        "tests/live/test_replication_links.py::test_a_slave_that_does_not_fit_is_one_line_and_disturbs_nobody",
    ),
    Planted(
        "a slave is in sync with what is damaged in its log",
        "broker/replication/role_changes.py",
        "await mend_log(self._store, self._connections, master)",
        "pass",
        f"{CONTROLLER_MODE}::test_what_is_damaged_in_a_slave_s_log_is_mended_with_its_master_s",
    ),
    Planted(
        "a consumer that closes tells a slave its last offsets, though the master is back",
        "client/consumer/offsets.py",
        "await self._find_masters(pullers)",
        "pass",
        "tests/unit/client/consumer/test_offset_commits.py",
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize("planted", TABLE, ids=lambda planted: planted.name)
def test_a_planted_defect_is_noticed(tmp_path: Path, planted: Planted) -> None:
    shutil.copytree(PACKAGE, tmp_path / "rocketspark", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "rocketspark" / planted.file
    source = file.read_text("utf-8")
    assert source.count(planted.text) == 1, "the line is another now: name it here"
    file.write_text(source.replace(planted.text, planted.defect), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", planted.test]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # 1: tests failed; anything else says that they could not run.
    assert ran.returncode == 1, ran.stdout[-4000:]
    assert "SyntaxError" not in ran.stdout
