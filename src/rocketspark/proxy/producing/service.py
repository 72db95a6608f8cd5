"""All that producers ask of the proxy, put together. Wiring only."""

from __future__ import annotations

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import CheckTransactionHeader
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.service import Service
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.producing.orphans import Orphans
from rocketspark.proxy.producing.producer_groups import ProducerGroups
from rocketspark.proxy.producing.recall import Recalls
from rocketspark.proxy.producing.send import Sends
from rocketspark.proxy.producing.transaction_data import TransactionData, monotonic_ms
from rocketspark.proxy.producing.transactions import Transactions
from rocketspark.proxy.producing.validation import SendLimits
from rocketspark.proxy.settings import ProxySettings


class Producing:
    """Serves SendMessage, EndTransaction, RecallMessage and what brokers ask about transactions."""

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients, service: Service) -> None:
        limits = SendLimits(
            body_bytes_max=settings.body_bytes_max,
            empty_bodies=not settings.body_must_not_be_empty,
            user_properties_max=settings.user_properties_max,
            user_properties_bytes_max=settings.user_properties_bytes_max,
            message_group_bytes_max=settings.message_group_bytes_max,
            delay_ms_max=settings.delay_ms_max,
            recovery_s_max=settings.transaction_recovery_s_max,
            use_delay_level=settings.use_delay_level,
        )
        self._data = TransactionData(settings.transaction_data_ms, settings.transaction_data_max)
        check = settings.check_topic_type
        self.sends = Sends(brokers, self._data, limits, check_types=check)
        self._groups = ProducerGroups(brokers, clients, settings.heartbeat_interval_ms / 1000)
        self._orphans = Orphans(brokers, clients, self._data)
        service.serve("SendMessage", self.sends.send_message)
        service.serve("EndTransaction", Transactions(brokers, self._data).end_transaction)
        service.serve("RecallMessage", Recalls(brokers, check_types=check).recall_message)
        brokers.requests.add(RequestCode.CHECK_TRANSACTION_STATE, self._orphans.asked, CheckTransactionHeader)
        clients.when_told(self._groups.changed)
        clients.when_gone(self._groups.gone)

    def begin(self) -> None:
        """Begin what goes on in the background."""
        self._groups.begin()

    def sweep(self) -> None:
        """Drop what is too old."""
        self._data.sweep(monotonic_ms())

    async def close(self) -> None:
        """End what goes on in the background."""
        await self._groups.close()
