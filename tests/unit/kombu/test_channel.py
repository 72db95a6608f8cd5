"""What a channel does with fields that others wrote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.kombu import channel


@pytest.mark.parametrize(
    ("expiration", "is_expired"),
    [
        ("1", True),
        (1, True),
        ("٣", True),
        ("9" * 20, False),
        ("²", False),
        ("-1", False),
        ("soon", False),
        (None, False),
    ],
)
def test_an_expiration_that_is_no_number_is_none(expiration: Any, is_expired: bool) -> None:
    message: Any = SimpleNamespace(born_time_ms=0)
    assert channel._is_expired(message, {"properties": {"expiration": expiration}}) is is_expired
