"""Names in a namespace."""

from __future__ import annotations

import pytest

from rocketspark.model.namespace import unwrap, wrap

NAMES = {
    "orders": "ns%orders",
    "%RETRY%billing": "%RETRY%ns%billing",
    "%DLQ%billing": "%DLQ%ns%billing",
    "ns%orders": "ns%orders",
    "%RETRY%ns%billing": "%RETRY%ns%billing",
    "CID_RMQ_SYS_x": "CID_RMQ_SYS_x",
    "rmq_sys_x": "rmq_sys_x",
    "": "",
}


@pytest.mark.parametrize(("bare", "full"), NAMES.items())
def test_there_and_back(bare: str, full: str) -> None:
    assert wrap("ns", bare) == full
    assert wrap("", bare) == bare
    assert unwrap("ns", full) == bare.replace("ns%", "")
    assert unwrap("", full) == full
