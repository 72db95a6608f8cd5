"""The filter that a pop's request brings. Rule: one that takes long to compile is compiled in a thread first.

Rule (PopMessageProcessor, 5.5.0): nothing or an empty expression means all; SQL92 needs no setting.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.pull_filter import COMPILED_HERE_MAX, FilterTurn, PullFilter
from rocketspark.errors import FilterIllegal, ServerError
from rocketspark.filters import sql92
from rocketspark.model import Subscription, subscribe
from rocketspark.protocol.codes import ResponseCode

# Subscriptions are kept parsed, unless their text is longer.
TEXT_KEPT_MAX = 1024


class PopFilter(NamedTuple):
    """What of a queue a pop takes: messages with these tags codes, those a filter accepts, or (both None) all."""

    codes: frozenset[int] | None = None
    accepts: PullFilter | None = None


ALL = PopFilter()


class ToCompile(Exception):
    """Raised for an expression that takes long to compile, or needs the grammar loaded first; its text."""


def _parse_failed() -> ServerError:
    return ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")


@lru_cache(maxsize=1024)
def _kept(topic: str, text: str, kind: str) -> Subscription:
    return subscribe(topic, text, kind=kind)


class PopFilters:
    """Makes filters. `beside`: the thread for what takes long."""

    def __init__(self, beside: BackgroundThread) -> None:
        self._beside = beside
        self._turn = FilterTurn()

    def of(self, topic: str, kind: str | None, expression: str | None) -> PopFilter:
        """Return the filter of an expression. Raises ServerError 23 for a wrong one, ToCompile for `compile` first."""
        if not expression or (expression == "*" and kind in (None, "TAG")):
            return ALL
        if kind in (None, "TAG"):
            try:
                short = len(expression) < TEXT_KEPT_MAX
                wanted = _kept(topic, expression, "TAG") if short else subscribe(topic, expression)
            except FilterIllegal as e:
                raise _parse_failed() from e
            return ALL if wanted.is_all else PopFilter(codes=wanted.codes)
        if kind != "SQL92" or len(expression) > sql92.LENGTH_MAX:
            raise _parse_failed()
        here_max = 0 if self._turn.is_over() else COMPILED_HERE_MAX
        if not sql92.is_quick(expression, here_max):
            raise ToCompile(expression)
        try:
            return PopFilter(accepts=PullFilter(sql92.compile(expression), self._beside))
        except FilterIllegal as e:
            raise _parse_failed() from e

    async def compile(self, expression: str) -> None:
        """Compile an expression in the thread. Raises ServerError 23 for a wrong one."""

        def wrong() -> bool:
            try:
                sql92.compile(expression)
            except FilterIllegal:
                return True
            return False

        if await self._beside.run(wrong):
            raise _parse_failed()
