"""What docs/use/pipelines/outbox.md shows works as it stands there."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recipes.conftest import Tables

from rocketspark import Producer
from rocketspark.cli import main
from rocketspark.recipes import Outbox, OutboxStore, SeenStore
from rocketspark.testing import run_cluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "use" / "pipelines" / "outbox.md").read_text("utf-8")


@pytest.mark.xdist_group("postgres")
def test_the_program_prints_what_is_shown(server: str) -> None:
    (found,) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    code, output = found
    Tables(server).run("CREATE SCHEMA page")
    code = code.replace("postgresql://shop@localhost/shop", f"{server}&options=-csearch_path%3Dpage")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


def test_the_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    store = OutboxStore("sqlite:///shop.db")
    store.create_tables()
    commands = re.findall(r"^\$ rocketspark (.+)$", PAGE, re.MULTILINE)
    with run_cluster() as cluster:
        with Producer(cluster.namesrv) as producer, store.database.transaction() as connection:
            Outbox(producer, store).add(connection, "orders", b"42 apples", key="order-1")
        codes = [main.run(c.replace("127.0.0.1:9876", cluster.namesrv).split()) for c in commands]
    assert codes == [0] * 6
    assert "sent 1, failed attempts 0, parked 0" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [OutboxStore, SeenStore])
def test_the_tables_have_the_columns_that_are_listed(kind: type[OutboxStore | SeenStore], tmp_path: Path) -> None:
    store = kind(f"sqlite:///{tmp_path / 'x.db'}")
    store.create_tables()
    (table,) = re.findall(rf"\| `(rocketspark_{'seen' if kind is SeenStore else 'outbox'})` \| holds", PAGE)
    rows = PAGE.split(f"| `{table}` | holds |\n")[1].split("\n\n")[0]
    listed = {name for row in rows.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    there = {row[1] for row in sqlite3.connect(tmp_path / "x.db").execute(f"PRAGMA table_info({table})")}
    assert listed == there
