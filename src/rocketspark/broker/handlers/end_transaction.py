"""END_TRANSACTION: the producer's commit or rollback of a half message."""

from __future__ import annotations

from rocketspark.broker.messages.transactions import Transactions
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.flush import FlushService
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import EndTransactionHeader, Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply


class TransactionHandler:
    """Serves the ends of transactions."""

    def __init__(self, settings: BrokerSettings, transactions: Transactions, flush_service: FlushService) -> None:
        self._transactions = transactions
        self._flush_service = flush_service
        self._sync_flush = settings.sync_flush

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.END_TRANSACTION, self.end)

    def end(self, peer: Peer, request: Request[EndTransactionHeader], body: bytes) -> bytes | None:
        """END_TRANSACTION (37), usually one-way; a repeated one is answered and changes nothing."""
        end = self._transactions.end(request.ext)
        if end is None or not self._sync_flush or request.flag & frames.ONEWAY_FLAG:
            return reply(request.opaque)
        self._flush_service.reply_when_flushed(peer, request, end, lambda code: reply(request.opaque, code))
        return None
