"""Errors that no retry mends: a broker refuses a consumer its filter, its right or its group, or members of one group
have different subscriptions.

Rule: the consumer tries again all the same, as an operator may mend it; but the application is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.hooks import call_and_log
from rocketspark.client.validators import RETRY_PREFIX
from rocketspark.errors import FilterIllegal, RocketSparkError, ServerError
from rocketspark.model import MessageQueue, Subscription
from rocketspark.protocol.codes import FILTER_REFUSED, ResponseCode

log = logging.getLogger("rocketspark.client")

# Gets an error; a plain function, called in a thread, or a coroutine function.
OnError = Callable[[RocketSparkError], object]
# The same error is told again after so long.
AGAIN_S = 30.0
TOLD_MAX = 1000
# Told with codes that brokers have for other things too: of a filter, and of a client with too many topics or groups.
_REMARKS = (FILTER_REFUSED, "the heartbeat names ")


def is_refusal(error: BaseException) -> bool:
    """Tell whether an error is one that no retry mends."""
    if isinstance(error, ServerError):
        is_filter = error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        return error.no_permission or is_filter or error.remark.startswith(_REMARKS)
    return isinstance(error, FilterIllegal)


def refusal_text(error: RocketSparkError) -> str:
    """Return a text that is equal for refusals of the same kind: without the queue, which an error's own text names."""
    return getattr(error, "remark", "") or str(error)


class Refusable(Protocol):
    """What a broker may refuse to read: a puller. `refusal`: the error, until it is read again."""

    refusal: RocketSparkError | None


class Refusals:
    """What brokers refuse one consumer at present. `pullers`: of its queues; `tell`: gets each refusal that no puller
    met. `own`: what the last rebalance was refused.
    """

    def __init__(
        self, pullers: Mapping[MessageQueue, Refusable], tell: Callable[[RocketSparkError], None] | None
    ) -> None:
        self._pullers = pullers
        self._tell = tell
        self.own: RocketSparkError | None = None

    def note(self, error: RocketSparkError) -> None:
        """Note what a rebalance met, if it is a refusal."""
        if is_refusal(error):
            self.own = error
            if self._tell is not None:
                self._tell(error)

    def now(self) -> RocketSparkError | None:
        """Return the error by which brokers refuse the consumer at present and which no retry mends; None if there is
        none.
        """
        refused = (puller.refusal for puller in self._pullers.values())
        return next((error for error in refused if error is not None), self.own)

    def take(self) -> RocketSparkError | None:
        """Return what `now` does, and forget it: it is returned again only when a broker refuses again."""
        error = self.now()
        if error is not None:
            text = refusal_text(error)
            for puller in self._pullers.values():
                if puller.refusal is not None and refusal_text(puller.refusal) == text:
                    puller.refusal = None
            if self.own is not None and refusal_text(self.own) == text:
                self.own = None
        return error


class OtherSubscriptions:
    """Warns if another member of the group registered other subscriptions at a broker than this member has."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._may_ask = True
        self._told: dict[str, str] = {}

    async def look(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Ask a broker for the subscriptions that the group registered last; log a warning if they are not these."""
        addresses = self._instance.routes.broker_addresses(slaves=False)
        if not addresses or not self._may_ask:
            return
        try:
            peer = await self._instance.broker(machine.choice(addresses))
            told = await client_api.group_subscriptions(peer, self._group)
            own = {t: s.expression for t, s in subscriptions.items() if not t.startswith(RETRY_PREFIX)}
            if not told or told in (own, self._told):
                return
            members = await client_api.consumer_list(peer, self._group)
        except RocketSparkError as e:
            unserved = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._may_ask = not (isinstance(e, ServerError) and (e.no_permission or e.code == unserved))
            return
        self._told = told
        others = ", ".join(sorted({*members} - {self._instance.client_id}))
        text = "group %s: this member subscribes to %s, another of %s to %s; a group has one subscription, so that its"
        log.warning(text + " members lose messages to each other: use a group for each", self._group, own, others, told)


class ErrorCalls:
    """Calls an application's function with the errors by which brokers refuse it, with the same error once in 30 s."""

    def __init__(self, function: OnError) -> None:
        self._function = function
        self._told_s: dict[str, float] = {}
        self._calls = Tasks()

    def tell(self, error: RocketSparkError) -> None:
        """Have the function called with `error`, unless it was called with the same error within the last 30 s."""
        now_s = machine.monotonic()
        text = refusal_text(error)
        if now_s - self._told_s.get(text, -AGAIN_S) < AGAIN_S:
            return
        if len(self._told_s) >= TOLD_MAX:
            self._told_s.clear()
        self._told_s[text] = now_s
        self._calls.begin(call_and_log(self._function, error, "on_error"))
