"""The filters that pulls and pops bring: subscriptions with tags or with an SQL expression.

Rules: a filter never blocks the other requests, so what takes long to compile is compiled in a thread first, and the
request is looked at once more; records are filtered in turns of some milliseconds.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import NamedTuple

from rocketspark import machine
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import FilterIllegal, ServerError
from rocketspark.filters import sql92
from rocketspark.model import Subscription, subscribe
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import record_layout, sysflags

# The time that one pull's filter may work in one turn of the loop.
TURN_S = 0.005
# That of all pulls that come in one turn: a crowd of them is looked at over many turns.
ALL_TURN_S = 0.02
# Bytes of properties times characters of the expression: up to so many an evaluation ends within some 10 ms.
COST_MAX = 4_000_000
# Up to so many characters an expression is compiled within some 10 ms.
COMPILED_HERE_MAX = 1024


class FilterTurn:
    """The time that SQL92 filters of all new pulls together may take in one turn of the loop."""

    def __init__(self) -> None:
        self._until = 0.0
        self._began = False

    def is_over(self) -> bool:
        """Tell whether this turn's time is used up. The first call in a turn starts the time, and returns False."""
        if not self._began:
            self._began = True
            self._until = machine.perf_counter() + ALL_TURN_S
            asyncio.get_running_loop().call_soon(self._end)
            return False
        return machine.perf_counter() >= self._until

    def _end(self) -> None:
        self._began = False


class PullFilter:
    """The SQL92 filter of one pull, as `MessageReader.read` calls it for each record.

    It returns None where the read must end and go on in a later turn of the loop. `cut`: it has returned None since
    `begin`; `awaited`: work in a thread that must end before the read goes on.
    """

    def __init__(self, compiled: sql92.Filter, beside: BackgroundThread) -> None:
        self._accepts = compiled.accepts_record
        self._characters = len(compiled.expression)
        self._beside = beside
        self._until = 0.0
        self._worked = False
        self._asked = b""
        self.awaited: asyncio.Future[bool] | None = None
        self.cut = False

    def begin(self, *, in_own_turn: bool = True) -> None:
        """Begin a turn of the loop, in which at least one record is looked at.

        `in_own_turn`: False if the turn's time is used up by other pulls.
        """
        self.cut, self._worked = False, not in_own_turn
        self._until = machine.perf_counter() + TURN_S if in_own_turn else 0.0

    def __call__(self, stored: memoryview) -> bool | None:
        """Tell whether a record passes; None to end the read here."""
        if self._worked and machine.perf_counter() >= self._until:
            self.cut = True
            return None
        self._worked = True
        properties = record_layout.properties_of(stored)
        if len(properties) * self._characters <= COST_MAX:
            return self._accepts(properties)
        if self.awaited is None or properties != self._asked:
            self._asked = properties
            self.awaited = self._beside.run(lambda: self._accepts(properties))
        if not self.awaited.done():
            self.cut = True
            return None
        passes, self.awaited = self.awaited.result(), None
        return passes


# Subscriptions that requests bring are kept parsed, unless their text is longer.
TEXT_KEPT_MAX = 1024


class ToCompile(Exception):
    """Raised with an expression that must be compiled in a thread first, because that would hold the loop up."""


class FilterCompiler:
    """Compiles SQL92 expressions: short ones on the loop, others in a thread.

    `turn`: the time left for filters in this turn of the loop; `beside`: the thread.
    """

    def __init__(self, beside: BackgroundThread) -> None:
        self.turn = FilterTurn()
        self._beside = beside

    def compiled(self, expression: str) -> sql92.Filter:
        """Return the filter of an expression. Raises FilterIllegal, or ToCompile if `compile` must be called first."""
        here_max = 0 if self.turn.is_over() else COMPILED_HERE_MAX
        if len(expression) <= sql92.LENGTH_MAX and not sql92.is_quick(expression, here_max):
            raise ToCompile(expression)
        return sql92.compile(expression)

    async def compile(self, expression: str) -> str:
        """Compile an expression in the thread; return the error message, "" if the expression is valid."""
        return await self._beside.run(lambda: _mistake_in(expression))


def _mistake_in(expression: str) -> str:
    try:
        sql92.compile(expression)
    except FilterIllegal as e:
        return str(e)
    return ""


def parsed(topic: str, text: str, kind: str = "TAG") -> Subscription:
    """Return the subscription that a filter text means; `kind`: TAG or SQL92. Raises FilterIllegal."""
    return _kept(topic, text, kind) if len(text) < TEXT_KEPT_MAX else subscribe(topic, text, kind=kind)


@lru_cache(maxsize=1024)
def _kept(topic: str, text: str, kind: str) -> Subscription:
    return subscribe(topic, text, kind=kind)


class PullSubscriptions:
    """Makes the filters of pulls. `beside`: the thread for what takes long; `compiler`: compiles SQL92 expressions."""

    def __init__(self, settings: BrokerSettings, clients: ConnectedClients, beside: BackgroundThread) -> None:
        self._settings = settings
        self._clients = clients
        self._beside = beside
        self.compiler = FilterCompiler(beside)

    def filter_of(self, h: PullHeader) -> tuple[frozenset[int] | None, PullFilter | None]:
        """Return (hashes of tags, SQL92 filter) of a pull; each is None if it excludes nothing.

        Raises ServerError for an invalid filter, ToCompile for an expression that the compiler has to compile first.
        """
        if h.sys_flag & sysflags.PULL_SUBSCRIPTION and h.subscription == "*" and h.expression_type in ("TAG", None):
            return None, None
        subscription = self._subscription(h)
        if subscription.is_all:
            return None, None
        if subscription.expression_type == "TAG":
            return subscription.codes, None
        compiled = self.property_filter(subscription.expression, subscription.expression_type)
        return None, PullFilter(compiled, self._beside)

    def _subscription(self, h: PullHeader) -> Subscription:
        if h.sys_flag & sysflags.PULL_SUBSCRIPTION:
            try:
                return parsed(h.topic, h.subscription or "", h.expression_type or "TAG")
            except FilterIllegal as e:
                raise ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(e)) from e
        group = self._clients.consumers.get(h.group)
        if group is None:
            raise ServerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        known = group.subscriptions.get(h.topic)
        if known is None:
            raise ServerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist: {h.topic}")
        if known.version < h.subscription_version:
            raise ServerError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest: a heartbeat is due"
            )
        return known

    def property_filter(self, expression: str, kind: str) -> sql92.Filter:
        """Return the filter of an SQL92 expression.

        Raises ServerError: 1 if such filters are off, 23 for a wrong expression; ToCompile for an expression that has
        to be compiled in a thread first.
        """
        if kind != "SQL92" or not self._settings.property_filter:
            raise ServerError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}"
                + (" (enablePropertyFilter=true allows it)" if kind == "SQL92" else ""),
            )
        try:
            return self.compiler.compiled(expression)
        except FilterIllegal as e:
            raise ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(e)) from e


class PopFilter(NamedTuple):
    """Which messages of a queue a pop takes: those with these hashes of tags, those a filter accepts, or all."""

    codes: frozenset[int] | None = None
    accepts: PullFilter | None = None


ALL = PopFilter()


def _parse_failed() -> ServerError:
    return ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")


class PopFilters:
    """Makes the filters of pops. `beside`: the thread in which long expressions are compiled."""

    def __init__(self, beside: BackgroundThread) -> None:
        self._beside = beside
        self._compiler = FilterCompiler(beside)

    def of(self, topic: str, kind: str | None, expression: str | None) -> PopFilter:
        """Return the filter of a pop. Raises ServerError 23 for a wrong expression, ToCompile for `compile` first."""
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
