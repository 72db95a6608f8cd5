"""Access control 1.0 of one broker: each request is checked against the newest rules that could be read.

Rule: files that are broken change nothing, and one line says so. A change by request is in force when it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from rocketspark.access.access_control import NAMES_A_PLACE
from rocketspark.access.audit import Check, Decided, Decision
from rocketspark.access.policies import CLUSTER, GROUP, PUB
from rocketspark.access.request_contexts import Context, Ext, NotReadable
from rocketspark.broker.access.audit import CHANGES
from rocketspark.broker.access.plain_acl import changes, rules
from rocketspark.broker.access.plain_acl.addresses import plain_address
from rocketspark.broker.access.plain_acl.changes import AccountChange
from rocketspark.broker.access.plain_acl.documents import Document
from rocketspark.broker.access.plain_acl.requested import forgotten, resources
from rocketspark.broker.access.plain_acl.rule_files import LoadedRules, RuleFiles, read_document
from rocketspark.broker.access.plain_acl.rules import (
    ADMIN_CODES,
    MORE_ADMIN_CODES,
    PERMISSIONS,
    Asked,
    Verdict,
    decide,
    decide_besides,
    exception_text,
    resource_told,
    retry_resource,
)
from rocketspark.errors import ConfigError, ProtocolError, ServerError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.transport.processor_table import ReceivedRequest, Refusal, Sender

log = logging.getLogger("rocketspark.broker.access")

T = TypeVar("T")

_PARSE = "org.apache.rocketmq.acl.plain.PlainAccessResource.parse(PlainAccessResource.java:181)"
_AUTHENTICATION_RULES = ("no access key", "unknown access key", "signature", "unreadable")


class PlainAcl:
    """The check of access control 1.0 of one broker. The files are read at once; raises ConfigError.

    `complete`: requests that RocketMQ lets everybody make who can sign need a permission as well; `decided`: called for
    each refusal, and for each change that is let through; `allowed`: how many requests passed.
    """

    def __init__(self, files: RuleFiles, *, complete: bool = True, decided: Decided) -> None:
        self.files = files
        self._complete = complete
        self._decided = decided
        self.allowed = 0
        # What the stored messages need that requests name by their place; set once there is a store.
        self.stored: Callable[[int, Ext], Iterable[Context]] = lambda code, ext: ()
        self._admin_codes = ADMIN_CODES | (MORE_ADMIN_CODES if complete else frozenset())
        self._changing = asyncio.Lock()
        self._stamps = files.stamps()
        self._trouble = ""
        self.loaded = files.load()
        self._tell_warnings()

    # -- requests ------------------------------------------------------------------------------------------------

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the answer to a request that is refused; None if it passes."""
        verdict = self._verdict(request)
        if not verdict.remark:
            self.allowed += 1
            if request.code in CHANGES:
                self._tell(request, verdict)
            return None
        self._tell(request, verdict)
        return Refusal(ResponseCode.SYSTEM_ERROR, verdict.remark)

    def _tell(self, request: ReceivedRequest, verdict: Verdict) -> None:
        access_key = request.ext.get("AccessKey")
        self._decided(
            Decision(
                check=Check.AUTHENTICATION if verdict.rule in _AUTHENTICATION_RULES else Check.AUTHORIZATION,
                subject="" if access_key is None else f"User:{access_key}",
                source=request.peer.address,
                code=request.code,
                resource=_resource(verdict),
                actions=_ACTIONS.get(verdict.needed, ()),
                allowed=not verdict.remark,
                rule=verdict.rule,
                remark=verdict.remark,
            )
        )

    def _verdict(self, request: ReceivedRequest) -> Verdict:
        try:
            needed = resources(request.code, request.ext, request.body, complete=self._complete)
        except (ProtocolError, ServerError) as e:
            # Before anything else, as in RocketMQ: whatever is broken goes nowhere.
            return Verdict(exception_text(shown(e), _PARSE), "unreadable")
        asked = Asked(
            plain_address(request.peer.remote_host), request.code, request.version, request.ext, request.body, needed
        )
        verdict = decide(self.loaded.rules, asked, self._admin_codes)
        if not self._complete or verdict.rule != PERMISSIONS:
            return verdict
        try:
            stored = self.stored(request.code, request.ext) if request.code in NAMES_A_PLACE else ()
            more = forgotten(request.code, request.ext, request.body, tuple(stored))
        except (NotReadable, ProtocolError, ServerError) as e:
            return Verdict(exception_text(shown(e), _PARSE), "unreadable")
        return decide_besides(self.loaded.rules, asked, more.resources, admin=more.admin, told=verdict)

    # -- what the broker sends of itself -------------------------------------------------------------------------

    def trusts(self, sender: Sender) -> bool:
        """Return whether a sender may do everything, and therefore send requests on behalf of other users."""
        return rules.is_free(self.loaded.rules, plain_address(sender.host), sender.user)

    def may(self, sender: Sender, contexts: Iterable[Context]) -> bool:
        """Return whether a client has the rights in `contexts`, which it needs before the broker sends it something.

        A right on the whole cluster has only a sender that may do everything.
        """
        needed: dict[str, int] = {}
        for context in contexts:
            if context.kind == CLUSTER:
                if self._complete and not self.trusts(sender):
                    return False
                continue
            name = retry_resource(context.name) if context.kind == GROUP else context.name
            needed[name] = rules.PUB if PUB in context.actions else rules.SUB
        return not self._complete or rules.may(self.loaded.rules, plain_address(sender.host), sender.user, needed)

    def publishes(self, sender: Sender) -> bool:
        """Return whether a client may send to any topic at all."""
        return not self._complete or rules.publishes(self.loaded.rules, plain_address(sender.host), sender.user)

    # -- files ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read the rule files again if one was changed, added or removed since the last call."""
        if self._changing.locked():
            return
        async with self._changing:
            try:
                stamps = await _in_thread(self.files.stamps)
                if stamps == self._stamps:
                    return
                self._take(await _in_thread(self.files.load))
                # Now: what could not be read may be readable soon, without a change.
                self._stamps = stamps
                log.info("the rules of access control 1.0 have changed: %d accounts", len(self.loaded.rules.accounts))
            except (ConfigError, OSError) as e:
                self._tell_trouble(f"{e}")

    def _take(self, loaded: LoadedRules) -> None:
        self.loaded = loaded
        self._trouble = ""
        self._tell_warnings()

    def _tell_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            log.error("the rules of access control 1.0 stay as they were: %s", shown(text, characters_max=400))

    def _tell_warnings(self) -> None:
        for warning in self.loaded.warnings[:20]:
            log.warning("%s", warning)

    # -- changes by requests -------------------------------------------------------------------------------------

    async def update_account(self, change: AccountChange) -> None:
        """Add or change an account (request 50). Raises ConfigError with the text that RocketMQ answers."""
        change.check()
        assert change.access_key is not None
        path = self.loaded.owners.get(change.access_key, self.files.plain_path)
        await self._change(path, lambda document: changes.with_account(document, change))

    async def delete_account(self, access_key: str) -> bool:
        """Remove an account (request 51); return False if there is no such account."""
        path = self.loaded.owners.get(access_key)
        if path is None:
            return False
        await self._change(path, lambda document: changes.without_account(document, access_key))
        return True

    async def update_white(self, addresses: tuple[str, ...], path: str = "") -> bool:
        """Set the global white list of a rule file (request 53); return False if `path` is no rule file."""
        path = path or self.files.plain_path
        if path != self.files.plain_path and path not in self.loaded.documents:
            return False
        await self._change(path, lambda document: changes.with_white(document, addresses))
        return True

    async def _change(self, path: str, change: Callable[[Document], Document]) -> None:
        def act() -> tuple[LoadedRules, dict[str, tuple[int, int, int]]]:
            # What stands in the file now, not what was read last.
            self.files.write(path, change(read_document(path)))
            return self.files.load(), self.files.stamps()

        async with self._changing:
            loaded, stamps = await asyncio.shield(_in_thread(act))
            self._stamps = stamps
            self._take(loaded)


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


_ACTIONS = {rules.PUB: ("Pub",), rules.SUB: ("Sub",)}


def _resource(verdict: Verdict) -> str:
    if not verdict.resource:
        return ""
    kind, _, name = resource_told(verdict.resource).partition(":")
    return f"{kind.capitalize()}:{name}"
