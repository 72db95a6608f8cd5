"""What a pull wants of its queue: by the subscription that it brings, or that its group told."""

from __future__ import annotations

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.consumers.filter_compiler import FilterCompiler, parsed
from rocketspark.broker.consumers.pull_filter import PullFilter
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import FilterIllegal, ServerError
from rocketspark.filters import sql92
from rocketspark.model import Subscription
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import sysflags


class PullSubscriptions:
    """Makes the filters of pulls. `beside`: the thread for what takes long; `compiler`: who compiles expressions."""

    def __init__(self, settings: BrokerSettings, clients: ConnectedClients, beside: BackgroundThread) -> None:
        self._settings = settings
        self._clients = clients
        self._beside = beside
        self.compiler = FilterCompiler(beside)

    def filter_of(self, h: PullHeader) -> tuple[frozenset[int] | None, PullFilter | None]:
        """Return (tag codes, test of a record) of a pull; None where everything passes.

        Raises ServerError, or ToCompile for an expression that the compiler has to compile first.
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
        """Return the filter of an expression. Raises ServerError: 1 if such filters are off, 23 for a wrong expression.

        Raises ToCompile for one that has to be compiled in a thread first.
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
