"""The filter that a pop's request brings. Rule: one that takes long to compile is compiled in a thread first.

Rule (PopMessageProcessor, 5.5.0): nothing or an empty expression means all; SQL92 needs no setting.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.filter_compiler import FilterCompiler, parsed
from rocketspark.broker.consumers.pull_filter import PullFilter
from rocketspark.errors import FilterIllegal, ServerError
from rocketspark.protocol.codes import ResponseCode


class PopFilter(NamedTuple):
    """What of a queue a pop takes: messages with these tags codes, those a filter accepts, or (both None) all."""

    codes: frozenset[int] | None = None
    accepts: PullFilter | None = None


ALL = PopFilter()


def _parse_failed() -> ServerError:
    return ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")


class PopFilters:
    """Makes filters. `beside`: the thread for what takes long."""

    def __init__(self, beside: BackgroundThread) -> None:
        self._beside = beside
        self._compiler = FilterCompiler(beside)

    def of(self, topic: str, kind: str | None, expression: str | None) -> PopFilter:
        """Return the filter of an expression. Raises ServerError 23 for a wrong one, ToCompile for `compile` first."""
        if not expression or (expression == "*" and kind in (None, "TAG")):
            return ALL
        if kind in (None, "TAG"):
            try:
                wanted = parsed(topic, expression)
            except FilterIllegal as e:
                raise _parse_failed() from e
            return ALL if wanted.is_all else PopFilter(codes=wanted.codes)
        if kind != "SQL92":
            raise _parse_failed()
        try:
            return PopFilter(accepts=PullFilter(self._compiler.compiled(expression), self._beside))
        except FilterIllegal as e:
            raise _parse_failed() from e

    async def compile(self, expression: str) -> None:
        """Compile an expression in the thread. Raises ServerError 23 for a wrong one."""
        if await self._compiler.compile(expression):
            raise _parse_failed()
