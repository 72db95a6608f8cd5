"""Versions of RocketMQ by their numbers."""

from __future__ import annotations

import pytest

from rocketspark.protocol.versions import version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3"),
        (211, "V3"),
        (212, "V4_0_0_SNAPSHOT"),
        (213, "V4_0_0"),
        (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"),
        (512, "V5_5_0_SNAPSHOT"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_version_names(number: int, name: str) -> None:
    assert version_name(number) == name
