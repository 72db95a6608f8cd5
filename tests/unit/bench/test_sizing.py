"""docs/run/sizing.md: what its two plans reckon is what its own tables give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "run" / "sizing.md").read_text("utf-8")
LOG_BYTES = int(re.findall(r"^\| 1,000 bytes \| [\d,]+ bytes \| ([\d,]+) bytes", PAGE, re.M)[0].replace(",", ""))
SENT_US, PULLED_US = map(int, re.findall(r"^\| 1,000 bytes \| (\d+) µs \| \d+ µs \| (\d+) µs", PAGE, re.M)[0])
DAY_S, PEAK, GROUPS, DAYS, IN_USE = 86_400, 10, 3, 4, 0.75


@pytest.mark.shows("sizing by messages a day: the arithmetic of docs/run/sizing.md")
@pytest.mark.parametrize(("title", "messages"), [("A million", 10**6), ("A hundred million", 10**8)])
def test_the_arithmetic_of_a_plan(title: str, messages: int) -> None:
    part = PAGE.split(f"\n## {title} messages a day\n")[1].split("\n## ")[0]
    stored = LOG_BYTES + 40
    peak = messages / DAY_S * PEAK
    assert f"({LOG_BYTES:,} + 40)" in part
    found = {name: float(n.replace(",", "")) for name, n in re.findall(r"^\| ([^|]+) \|[^|]+\| ([\d.,]+)", part, re.M)}
    assert found["bytes a day"] == pytest.approx(messages * stored / 1e9, rel=0.02)
    assert found["disk"] == pytest.approx(messages * stored * DAYS / IN_USE / 1e9, rel=0.03)
    percent = peak * (SENT_US + GROUPS * PULLED_US) / 1e6 * 100
    assert found["processor at the peak"] == pytest.approx(percent, rel=0.2)
    assert f"{peak:,.0f} messages a second" in part
