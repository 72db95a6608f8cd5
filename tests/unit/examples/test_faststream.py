"""The tests that examples/faststream ships pass."""

from __future__ import annotations

from examples.faststream.test_service import (
    test_a_price_is_the_reply,
    test_an_order_becomes_a_bill,
    test_other_tags_are_not_billed,
)

__all__ = ["test_a_price_is_the_reply", "test_an_order_becomes_a_bill", "test_other_tags_are_not_billed"]
