"""The quarantine, for operators: list, retry and drop its messages. The request codes are our own."""

from __future__ import annotations

from typing import Any

from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.admin import QuarantinedHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import QuarantineTable
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply


class QuarantineHandler:
    """Serves the requests about the quarantine."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.LIST_QUARANTINE, self.show)
        routes.add(RequestCode.RETRY_QUARANTINED, self.retry, QuarantinedHeader)
        routes.add(RequestCode.DROP_QUARANTINED, self.drop, QuarantinedHeader)

    def show(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """LIST_QUARANTINE (7310001): all that is set aside, oldest first."""
        return reply(request.opaque, body=bodies.encode(QuarantineTable(entries=self._quarantine.entries())))

    def retry(self, peer: Peer, request: Request[QuarantinedHeader], body: bytes) -> bytes:
        """RETRY_QUARANTINED (7310002): one is handled once more. Code 22: there is no such; 1: it failed again."""
        try:
            self._quarantine.retry(request.ext.name)
        except ServerError:
            raise
        except RocketSparkError as e:
            raise ServerError(ResponseCode.SYSTEM_ERROR, str(e)) from e
        except Exception as e:
            raise ServerError(ResponseCode.SYSTEM_ERROR, shown(f"{type(e).__name__}: {e}")) from e
        return reply(request.opaque)

    def drop(self, peer: Peer, request: Request[QuarantinedHeader], body: bytes) -> bytes:
        """DROP_QUARANTINED (7310003): one is forgotten; its message stays in the log. Code 22: there is no such."""
        self._quarantine.drop(request.ext.name)
        return reply(request.opaque)
