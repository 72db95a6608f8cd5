"""What a sender may say of a message, property by property and way by way, as the official broker stores it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.owned_properties import rows

pytestmark = pytest.mark.shows(
    "properties that only the broker sets, row by row as Java 5.5.0 (58 names by 9 ways)",
)

# Ours drops the handle of an earlier pop on these ways too, by which the message could not be acknowledged, and does
# not store again what it takes for a checksum of the record.
OURS = {("batch_item", "POP_CK"), ("reply", "POP_CK"), ("sent_back", "POP_CK")}
OURS |= {("committed", "__CRC32#"), ("sent_back", "__CRC32#")}


def test_each_property_is_stored_as_by_the_official_broker(apache: Any, ours: Any) -> None:
    theirs, found = rows(apache.broker), rows(ours.broker)
    assert {row for row in theirs if found[row] != theirs[row]} == OURS
    for way, name in OURS:
        stored = theirs[way, name]
        assert isinstance(stored, dict)
        assert found[way, name] == {key: value for key, value in stored.items() if key != name}
