"""docs/run/alarms.md: each alert of examples/grafana has a row that says what to do, and its annotation leads there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.shows("a runbook: for each alert what it means, where to look, what to do")

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "run" / "alarms.md").read_text("utf-8")
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "examples/grafana/alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]


def test_each_alert_has_a_row_with_an_anchor() -> None:
    rows = re.findall(r'^\| <a id="(\w+)"></a>(\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$', PAGE, re.M)
    assert sorted(name for _, name, *_ in rows) == sorted(rule["alert"] for rule in RULES)
    assert all(anchor == name.lower() and all(map(str.strip, texts)) for anchor, name, *texts in rows)


def test_each_alert_leads_to_its_row() -> None:
    wanted = {rule["alert"]: f"docs/run/alarms.md#{rule['alert'].lower()}" for rule in RULES}
    assert {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES} == wanted
    assert set(re.findall(r"^\| \[(\w+)\]", PAGE, re.M)) | {"SlaveOutOfSync", "NoMaster"} <= wanted.keys()
