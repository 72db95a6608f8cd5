"""The guard of calls: who signed one, then what he may do, before it is served.

Rule: the proxy's own requests to brokers may do everything, so nothing passes here that was not checked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rocketspark.access.access_control import AccessControl as RemotingAccess
from rocketspark.access.authentication import Authentication
from rocketspark.access.authorization import FAILED, Authorization
from rocketspark.access.decisions import Check, Decided, Decision, nobody_told
from rocketspark.access.request_contexts import Context, topic_context
from rocketspark.access.resources import SUB
from rocketspark.access.users import User, subject_of
from rocketspark.errors import ProtocolError, RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.messages import ViewMessageHeader
from rocketspark.protocol.message import record
from rocketspark.protocol.receipt_handle import ReceiptHandle
from rocketspark.proxy.access.contexts import contexts_of
from rocketspark.proxy.access.credentials import NotReadable, credentials_of
from rocketspark.proxy.access.fetched_tables import FetchedTables
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.call import Call
from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire.codes import Code

audit = LimitedLog("rocketspark.proxy.audit")

KEPT_MAX = 10_000
# The call that says by its handle where in the log a message lies.
NAMES_A_PLACE = "ForwardMessageToDeadLetterQueue"


class AccessControl:
    """The checks of one proxy; either half may be off. `refused`: how many calls were; `told`: hears of each."""

    def __init__(
        self, settings: ProxySettings, brokers: Brokers, clients: Clients, *, authenticates: bool, authorizes: bool
    ) -> None:
        self.told: Decided = nobody_told
        self._authenticates, self._authorizes = authenticates, authorizes
        self._brokers = brokers
        self.tables = FetchedTables(brokers, settings.access_refresh_ms / 1000)
        self._authorization = Authorization(self.tables, self.tables, kept_max=KEPT_MAX)
        self.tables.changed = self._authorization.forget
        self.refused = 0
        clients.may_be_sent = self.may_be_sent

    async def may_be_sent(self, client: ProxyClient, topic: str, action: str) -> bool:
        """Return whether a client may be sent a message of a topic that brokers ask him about."""
        if not self._authorizes:
            return True
        await self.tables.fresh(client.user)
        host = client.address.rpartition(":")[0].strip("[]")
        return self._authorization.verdict(client.user or None, topic_context(topic, action), host).remark is None

    def of_remoting(self) -> RemotingAccess:
        """Return the same checks for requests of remoting."""
        authentication = Authentication(self.tables, remember_s=0, now_s=time.monotonic)
        return RemotingAccess(
            authentication if self._authenticates else None,
            self._authorization if self._authorizes else None,
            cluster_name="",
            decided=self._decided,
        )

    def _decided(self, decision: Decision) -> None:
        if not decision.allowed:
            self.refused += 1
            self.told(decision)
            audit.warning(
                "refused: %s from %s, %s of %s: %s",
                shown(decision.subject) or "nobody",
                decision.source,
                decision.call or f"request {decision.code}",
                shown(decision.resource) or "a call",
                shown(decision.remark),
            )

    async def guard(self, call: Call, request: Any) -> None:
        """Let a call pass. Raises Refused."""
        try:
            credentials = credentials_of(call.metadata)
        except NotReadable as e:
            raise self._refusal(call, None, str(e)) from None
        username = credentials.username
        await self.tables.fresh(username)
        if self._authenticates:
            if not username:
                raise self._refusal(call, username, "username cannot be null.")
            user: User | None = self.tables.users.get(username)
            if user is None:
                raise self._refusal(call, username, f"User:{username} is not found.")
            if not user.is_enabled:
                raise self._refusal(call, username, f"User:{username} is disabled.")
            if not credentials.are_signed_with(user.password.encode()):
                raise self._refusal(call, username, "check signature failed.")
        if self._authorizes:
            self._authorize(call, request, username)
            if call.rpc == NAMES_A_PLACE:
                await self._authorize_place(call, request, username)
        call.user = username or ""

    def _authorize(self, call: Call, request: Any, username: str | None) -> None:
        contexts = contexts_of(call.rpc, request)
        if username is None:
            raise self._refusal(call, username, FAILED, contexts, "unsigned")
        for context in contexts:
            verdict = self._authorization.verdict(username, context, call.remote_host)
            if verdict.remark is not None:
                raise self._refusal(call, username, verdict.remark, [context], verdict.rule)

    async def _authorize_place(self, call: Call, request: Any, username: str | None) -> None:
        """See that the message is one that he may read which a handle, that he may have made up, names by its place."""
        try:
            handle = ReceiptHandle.decode(request.receipt_handle)
        except ProtocolError:
            return  # It is refused as it is.
        if handle.physical_offset < 0:
            return
        header = ViewMessageHeader(physical_offset=handle.physical_offset)
        found = await self._brokers.ask(handle.broker_name, RequestCode.VIEW_MESSAGE_BY_ID, header)
        try:
            topic = record.decode(found.body, check_crc=False).topic.decode("utf-8", "replace") if found.body else ""
        except RecordError:
            topic = ""
        context = topic_context(topic, SUB)
        verdict = self._authorization.verdict(username, context, call.remote_host)
        if not topic or verdict.remark is not None:
            remark = verdict.remark or "no message is at that place"
            raise self._refusal(call, username, remark, [context], verdict.rule)

    def _refusal(
        self, call: Call, username: str | None, remark: str, asked: Sequence[Context] = (), rule: str = "signature"
    ) -> Refused:
        self._decided(
            Decision(
                Check.AUTHORIZATION if asked or rule != "signature" else Check.AUTHENTICATION,
                subject=subject_of(username) if username else "",
                source=call.remote_address,
                code=0,
                resource=", ".join(context.key for context in asked),
                actions=tuple(dict.fromkeys(action for context in asked for action in context.actions)),
                allowed=False,
                rule=rule,
                remark=remark,
                call=call.rpc,
            )
        )
        return Refused(Code.UNAUTHORIZED, remark)
