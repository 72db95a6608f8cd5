"""What a broker says of its second tier before it knows what that has."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.tiering import Tiering

pytestmark = pytest.mark.shows("second tier: who reads old messages before the tier is open is not moved past them")


@pytest.mark.parametrize("is_master", [True, False])
def test_until_it_is_open_a_masters_tier_may_have_any_message(is_master: bool) -> None:
    tiering = Tiering(BrokerSettings(), cast(Any, None), cast(Any, None), lambda: is_master)
    assert tiering.has("T", 0, 5) is is_master
