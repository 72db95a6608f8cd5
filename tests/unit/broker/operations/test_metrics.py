from __future__ import annotations

from typing import Any

import pytest

from rocketspark.broker.operations.metrics import _as_far_as_known


def test_rows_that_cannot_be_had_leave_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def rows() -> Any:
        yield 1
        raise OSError("a file is broken")

    assert _as_far_as_known("lag", rows()) == [1]
    assert "metrics of lag are not whole" in caplog.text
