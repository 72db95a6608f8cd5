"""Filters made of the texts that requests bring: what takes long is compiled in a thread first."""

from __future__ import annotations

import asyncio

import pytest

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.message_filters import (
    COMPILED_HERE_MAX,
    TEXT_KEPT_MAX,
    FilterCompiler,
    ToCompile,
    parsed,
)
from rocketspark.errors import FilterIllegal
from rocketspark.filters import sql92

# Longer than what is compiled on the loop, each of its own: what was compiled once is kept.
LONG = "compiled_once > 0 AND " + " AND ".join(f"n <> {n}" for n in range(COMPILED_HERE_MAX // 8))
WRONG = LONG + " AND"


def test_a_long_expression_is_compiled_in_the_thread_and_then_there() -> None:
    async def main() -> None:
        beside = BackgroundThread("test")
        compiler = FilterCompiler(beside)
        with pytest.raises(ToCompile) as raised:
            compiler.compiled(LONG)
        assert await compiler.compile(str(raised.value)) == ""
        assert compiler.compiled(LONG).expression == LONG
        beside.close()

    asyncio.run(main())


def test_a_mistake_in_a_long_expression_is_told_by_both() -> None:
    async def main() -> None:
        beside = BackgroundThread("test")
        compiler = FilterCompiler(beside)
        mistake = await compiler.compile(WRONG)
        with pytest.raises(FilterIllegal) as raised:
            compiler.compiled(WRONG)
        assert mistake == str(raised.value) != ""
        beside.close()

    asyncio.run(main())


def test_one_that_nobody_may_give_is_refused_at_once() -> None:
    async def main() -> None:
        with pytest.raises(FilterIllegal, match="write it shorter"):
            FilterCompiler(BackgroundThread("test")).compiled("n" * (sql92.LENGTH_MAX + 1))

    asyncio.run(main())


def test_short_subscriptions_are_kept_parsed() -> None:
    long = " || ".join(["tag"] * TEXT_KEPT_MAX)
    assert parsed("t", "a || b") is parsed("t", "a || b")
    assert parsed("t", "a || b") is not parsed("u", "a || b")
    assert parsed("t", long) is not parsed("t", long)
    assert parsed("t", long) == parsed("t", long)
