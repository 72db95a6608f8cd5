from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rocketspark.broker.operations.metrics import _as_far_as_known


def test_rows_that_cannot_be_had_leave_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def rows() -> Any:
        yield 1
        raise OSError("a file is broken")

    assert _as_far_as_known("lag", rows()) == [1]
    assert "metrics of lag are not whole" in caplog.text


@pytest.mark.shows("reference of metrics: every one that the code names stands on the page")
def test_every_metric_in_the_source_stands_on_the_page() -> None:
    root = Path(__file__).resolve().parents[4]
    page = "".join((root / "docs" / "run" / name).read_text("utf-8") for name in ("statistics.md", "tiered_storage.md"))
    named: set[str] = set()
    for path in ("broker/operations/metrics.py", "proxy/metrics.py"):
        source = (root / "src" / "rocketspark" / path).read_text("utf-8")
        named |= set(re.findall(r'"(rocket(?:mq|spark)_[a-z_]+[a-z])"', source))
    # What the names of a second tier's metrics begin with.
    named.remove("rocketmq_tiered_store")
    assert len(named) > 60
    assert [name for name in sorted(named) if not re.search(rf"\b{name}(_total)?\b", page)] == []
