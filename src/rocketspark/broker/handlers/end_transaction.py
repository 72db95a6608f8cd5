"""END_TRANSACTION: the producer's commit or rollback of a half message."""

from __future__ import annotations

from rocketspark.broker.messages.transactions import Transactions
from rocketspark.broker.replication.waits import Durability
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import EndTransactionHeader, Request
from rocketspark.protocol.message import sysflags
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker")


class TransactionHandler:
    """Serves the ends of transactions."""

    def __init__(self, transactions: Transactions, durability: Durability) -> None:
        self._transactions = transactions
        self._durability = durability

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.END_TRANSACTION, self.end)

    def end(self, peer: Peer, request: Request[EndTransactionHeader], body: bytes) -> bytes | None:
        """END_TRANSACTION (37), usually one-way; a repeated one is answered and changes nothing."""
        outcome = request.ext.outcome & sysflags.TRANSACTION_MASK
        if not outcome:
            text = "the state of transaction %s of group %s is unknown to %s, which will be asked: %s"
            log.info(
                text, request.ext.message_id, request.ext.producer_group, peer.address, request.remark or "no reason"
            )
        if outcome == sysflags.TRANSACTION_COMMIT:
            # The half message stays open, and is asked for again, while too few could hold the commit.
            self._durability.check()
        end = self._transactions.end(request.ext)
        if end is None or not self._durability.needed or request.flag & frames.ONEWAY_FLAG:
            return reply(request.opaque)
        self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code))
        return None
