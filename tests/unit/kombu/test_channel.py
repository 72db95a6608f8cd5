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
        ("٣", False),
        ("9" * 20, False),
        # Python makes no number of so many digits.
        ("9" * 5000, False),
        ("²", False),
        ("-1", False),
        ("soon", False),
        (None, False),
    ],
)
def test_an_expiration_that_is_no_number_is_none(expiration: Any, is_expired: bool) -> None:
    message: Any = SimpleNamespace(born_time_ms=0)
    assert channel._is_expired(message, {"properties": {"expiration": expiration}}) is is_expired


@pytest.mark.parametrize("name", ["order-7", "0c2f", "a.b/c"])
def test_a_task_is_found_by_its_id(name: str) -> None:
    assert channel._may_be_key(name)


@pytest.mark.parametrize("name", ["", "two words", "a\x01b", "\ud800", "x" * 256])
def test_what_cannot_be_a_key_is_none(name: str) -> None:
    assert not channel._may_be_key(name)
