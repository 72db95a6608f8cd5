"""The requests about lite topics, which this broker does not have. Rule: each is answered, and says so."""

from __future__ import annotations

from typing import Any

from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes

CODES = tuple(code for code in RequestCode if RequestCode.POP_LITE_MESSAGE <= code <= RequestCode.TRIGGER_LITE_DISPATCH)


class LiteHandler:
    """Refuses what lite topics need."""

    def routes(self, routes: Routes) -> None:
        """Add what this handler refuses."""
        for code in CODES:
            routes.add(code, self.refuse)

    def refuse(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """POP_LITE_MESSAGE (200070) to TRIGGER_LITE_DISPATCH (200079)."""
        raise ServerError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported: this broker has no lite topics",
        )
