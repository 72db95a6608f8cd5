"""Filters made of the texts that requests bring. Rule: what takes long to compile is compiled in a thread first, and
the request is looked at once more.
"""

from __future__ import annotations

from functools import lru_cache

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.pull_filter import COMPILED_HERE_MAX, FilterTurn
from rocketspark.errors import FilterIllegal
from rocketspark.filters import sql92
from rocketspark.model import Subscription, subscribe

# Subscriptions that requests bring are kept parsed, unless their text is longer.
TEXT_KEPT_MAX = 1024


class ToCompile(Exception):
    """Raised for an expression that takes long to compile, or needs the grammar loaded first; its text."""


class FilterCompiler:
    """Compiles SQL92. `turn`: the time that is left for it in a turn of the loop; `beside`: the thread for the rest."""

    def __init__(self, beside: BackgroundThread) -> None:
        self.turn = FilterTurn()
        self._beside = beside

    def compiled(self, expression: str) -> sql92.Filter:
        """Return the filter of an expression. Raises FilterIllegal, or ToCompile for `compile` first."""
        here_max = 0 if self.turn.is_over() else COMPILED_HERE_MAX
        if len(expression) <= sql92.LENGTH_MAX and not sql92.is_quick(expression, here_max):
            raise ToCompile(expression)
        return sql92.compile(expression)

    async def compile(self, expression: str) -> str:
        """Compile an expression in the thread; return what is wrong with it, "" if nothing is."""
        return await self._beside.run(lambda: _mistake_in(expression))


def _mistake_in(expression: str) -> str:
    try:
        sql92.compile(expression)
    except FilterIllegal as e:
        return str(e)
    return ""


def parsed(topic: str, text: str, kind: str = "TAG") -> Subscription:
    """Return the subscription of a text. Raises FilterIllegal."""
    return _kept(topic, text, kind) if len(text) < TEXT_KEPT_MAX else subscribe(topic, text, kind=kind)


@lru_cache(maxsize=1024)
def _kept(topic: str, text: str, kind: str) -> Subscription:
    return subscribe(topic, text, kind=kind)
