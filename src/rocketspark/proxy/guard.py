"""The guard of calls: who signed one, then what he may do, before it is served.

Rule: the proxy's own requests to brokers may do everything, so nothing passes here that was not checked. What a call
shows and what it needs: DefaultAuthenticationContextBuilder and DefaultAuthenticationHandler, 5.5.0; the signature is
HMAC-SHA1 of the date's text, in hex of either case; a call without the field is from nobody. Users and rules are
fetched whole from the brokers, so that unknown names cost these nothing; what no broker confirmed for `life_s` counts
no more, and everybody is refused.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rocketspark import machine
from rocketspark.access import wire_forms
from rocketspark.access.access_control import AccessControl as RemotingAccess
from rocketspark.access.audit import Check, Decided, Decision, nobody_told
from rocketspark.access.authentication import Authentication
from rocketspark.access.authorization import FAILED, Authorization, Verdict
from rocketspark.access.policies import CLUSTER, GROUP, PUB, SUB, TOPIC, UPDATE, Acl, bare_group, is_retry_topic
from rocketspark.access.request_contexts import THIS_CLUSTER, Context, of_others, topic_context
from rocketspark.access.tables import User, subject_of
from rocketspark.client.connection import admin_api
from rocketspark.errors import ProtocolError, RecordError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.messages import ViewMessageHeader
from rocketspark.protocol.message import record
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import Call
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire.enumerations import ClientType, Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.server_bounds import host_of

log = LimitedLog("rocketspark.proxy")


Contexts = Callable[[Any], Iterator[Context]]
_CONSUMERS = frozenset(
    (
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    )
)


def _group(name: str) -> Context:
    return Context(GROUP, bare_group(name), (SUB,))


def _sent(topic: str) -> Context:
    """Return what sending to a topic needs; who puts into a group's retries is one of the group."""
    return _group(topic) if is_retry_topic(topic) else Context(TOPIC, topic, (PUB,))


def _send(request: Any) -> Iterator[Context]:
    # Messages of several topics are refused before any is sent (Sends).
    for message in request.messages[:1]:
        yield _sent(message.topic.name)


def _topic_sent(request: Any) -> Iterator[Context]:
    yield _sent(request.topic.name)


def _consumed(request: Any) -> Iterator[Context]:
    yield _group(request.group.name)
    yield topic_context(request.topic.name, SUB)


def _received(request: Any) -> Iterator[Context]:
    yield _group(request.group.name)
    yield topic_context(request.message_queue.topic.name, SUB)


def _route(request: Any) -> Iterator[Context]:
    yield topic_context(request.topic.name, PUB, SUB)


def _heartbeat(request: Any) -> Iterator[Context]:
    if request.client_type in _CONSUMERS or request.group.name:
        yield _group(request.group.name)


def _ended(request: Any) -> Iterator[Context]:
    if request.group.name:
        yield _group(request.group.name)


def _told(command: Any) -> Iterator[Context]:
    if command.WhichOneof("command") != "settings":
        return
    for topic in command.settings.publishing.topics:
        yield _sent(topic.name)
    if command.settings.HasField("subscription"):
        yield _group(command.settings.subscription.group.name)
        for entry in command.settings.subscription.subscriptions:
            yield topic_context(entry.topic.name, SUB)


_OF: dict[str, Contexts] = {
    "QueryRoute": _route,
    "QueryAssignment": _consumed,
    "SendMessage": _send,
    "RecallMessage": _topic_sent,
    "EndTransaction": _topic_sent,
    "ReceiveMessage": _received,
    "AckMessage": _consumed,
    "ChangeInvisibleDuration": _consumed,
    "ForwardMessageToDeadLetterQueue": _consumed,
    "Heartbeat": _heartbeat,
    "NotifyClientTermination": _ended,
    "SyncLiteSubscription": _consumed,
    "Telemetry": _told,
}
RPCS = frozenset(_OF)


def contexts_of(rpc: str, request: Any) -> list[Context]:
    """Return what a call's user must be allowed: each resource with its actions."""
    find = _OF.get(rpc)
    if find is None:
        return [Context(CLUSTER, THIS_CLUSTER, (UPDATE,))]
    found = list(find(request))
    return [*found, *(context for each in found for context in of_others(each))]


AUTHORIZATION, DATE = "authorization", "x-mq-date-time"
UNREADABLE = "create authentication context error."


class Credentials(NamedTuple):
    """What a call's metadata says of its user. `username`: None for nobody; `signature`: of the bytes `signed`."""

    username: str | None
    signed: bytes = b""
    signature: bytes = b""

    def are_signed_with(self, secret: bytes) -> bool:
        """Tell whether the signature was made with a secret."""
        return hmac.compare_digest(hmac.digest(secret, self.signed, "sha1"), self.signature)


class NotReadable(Exception):
    """Raised when a call's authorization metadata cannot be read; the message is what the client is told."""


def credentials_of(metadata: Mapping[str, Any]) -> Credentials:
    """Return the user and the signature that a call's metadata has. Raises NotReadable."""
    text = metadata.get(AUTHORIZATION) or ""
    if not text:
        return Credentials(None)
    date = metadata.get(DATE) or ""
    if not isinstance(text, str) or not isinstance(date, str):
        raise NotReadable(UNREADABLE)
    if not date.strip():
        raise NotReadable("datetime is null.")
    _, space, items = text.partition(" ")
    if not space:
        raise NotReadable("authentication header is incorrect.")
    username: str | None = None
    signature = b""
    for item in items.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals:
            raise NotReadable("authentication keyValues length is incorrect, actual length=1.")
        if name == "Credential":
            username = value.partition("/")[0]
        elif name == "Signature":
            try:
                # Java's decoder knows no spaces between.
                signature = bytes.fromhex(value) if " " not in value else b""
            except ValueError:
                raise NotReadable(UNREADABLE) from None
    return Credentials(username, date.encode("utf-8", "replace"), signature)


# A user who is not known may have been made just now.
LOOK_AGAIN_S = 1.0
# So long a call of a user who is known waits for newer tables, as a broker that is asked for them may be silent.
WAIT_S = 0.5


class FetchedTables:
    """The users and access rules of the cluster, fetched from its brokers. `users`, `acls`: by user name.

    `changed`: called after each change; `named`: called with the cluster's name, which rules may name; `refresh_s`: how
    often they are fetched; `life_s`: for how long they count without a broker's confirmation (userCacheExpiredSecond);
    `with_rules`: rules are fetched too, which a broker that asks for keys alone may not have.
    """

    def __init__(self, brokers: Brokers, refresh_s: float, life_s: float = 300.0, *, with_rules: bool = True) -> None:
        self._brokers, self._refresh_s, self._life_s = brokers, refresh_s, life_s
        self._with_rules = with_rules
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.changed: Callable[[], None] = lambda: None
        self.named: Callable[[str], None] = lambda name: None
        # When the tables were confirmed, and when that was tried last.
        self._fetched_s = self._tried_s = -float("inf")
        self._answered = ""
        self._task: asyncio.Task[None] | None = None

    async def fresh(self, username: str | None = None) -> None:
        """Wait until the tables are no older than `refresh_s`; for a user who is not in them they are fetched sooner.
        If they count still, a silent broker is not waited for long.
        """
        now_s = machine.monotonic()
        is_known = username is None or username in self.users
        limit_s = self._refresh_s if is_known else min(self._refresh_s, LOOK_AGAIN_S)
        # Past its life a copy lets nobody in while a broker is asked: it may be of before a proxy was idle for hours.
        counts = bool(self.users) and not self._is_past_life()
        tried_since_s = now_s - self._tried_s
        if tried_since_s < limit_s:
            if self._task is not None and not counts:
                await asyncio.shield(self._task)
            elif self._task is not None and now_s - self._fetched_s >= limit_s and tried_since_s < WAIT_S:
                # The copy is as old for whoever comes while the first one waits.
                await asyncio.wait((self._task,), timeout=WAIT_S - tried_since_s)
            return
        if self._task is None or self._task.done():
            self._tried_s = now_s
            self._task = asyncio.ensure_future(self._fetch())
        elif counts and is_known:
            # Others waited for it when it began: the last copy holds until it has ended.
            return
        await asyncio.wait((self._task,), timeout=WAIT_S if counts else None)

    async def _fetch(self) -> None:
        why: object = "no broker is known"
        try:
            # First the one that answered last, as the others may be silent.
            for address in sorted(await self._brokers.masters(), key=lambda one: one != self._answered):
                try:
                    broker = await self._brokers.peer_at(address)
                    users = wire_forms.users_from(await admin_api.list_users(broker))
                    acls = wire_forms.acls_from(await admin_api.list_acls(broker)) if self._with_rules else {}
                except RocketSparkError as e:
                    why = e
                    continue
                if self._brokers.cluster_name:
                    self.named(self._brokers.cluster_name)
                self._answered, self._fetched_s = address, machine.monotonic()
                self._take(users, acls)
                return
        except RocketSparkError as e:
            why = e
        except Exception as e:
            log.exception("users and rules could not be fetched")
            why = e
        log.warning("users and rules could not be fetched: %s", why)
        if self._is_past_life():
            self._take({}, {})

    def _is_past_life(self) -> bool:
        return machine.monotonic() - self._fetched_s > self._life_s

    def _take(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        if users != self.users or acls != self.acls:
            self.users, self.acls = users, acls
            self.changed()

    def close(self) -> None:
        """Fetch users and rules no more."""
        if self._task is not None:
            self._task.cancel()


audit = LimitedLog("rocketspark.proxy.audit")

KEPT_MAX = 10_000
# Of topics with their prefixes, and of groups; what is longer names nothing, and would stand in answer, log and audit.
NAME_CHARACTERS_MAX = 512
# The call that says by its handle where in the log a message lies.
NAMES_A_PLACE = "ForwardMessageToDeadLetterQueue"


class AccessControl:
    """Checks who calls and what the caller may do, for one proxy; either of the two checks may be off. `refused`: how
    many calls were refused; `told`: called for each of these.
    """

    def __init__(
        self, settings: ProxySettings, brokers: Brokers, clients: Clients, *, authenticates: bool, authorizes: bool
    ) -> None:
        self.told: Decided = nobody_told
        self._authenticates, self._authorizes = authenticates, authorizes
        self._brokers = brokers
        self.tables = FetchedTables(brokers, settings.access_refresh_ms / 1000, with_rules=authorizes)
        self._authorization = Authorization(self.tables, self.tables, kept_max=KEPT_MAX)
        self.tables.changed = self._authorization.forget
        self.tables.named = self._named_so
        self._cluster_name = THIS_CLUSTER
        self._remoting: RemotingAccess | None = None
        self.refused = 0
        clients.may_be_sent = self.may_be_sent

    async def may_be_sent(self, client: ProxyClient, topic: str, action: str) -> bool:
        """Return whether a client may be sent something that it did not ask for: a message of a topic, or, with an
        empty `topic`, a question about its group. A consumer needs to be allowed its group for both.
        """
        await self.tables.fresh(client.user)
        user = self.tables.users.get(client.user)
        if self._authenticates and (user is None or not user.is_enabled):
            return False
        if not self._authorizes:
            return True
        host = host_of(client.address)
        needed: list[Context] = []
        if topic:
            needed = [topic_context(topic, action)]
            needed += of_others(needed[0])
        if action == SUB:
            needed.append(_group(client.group))
        return all(self._verdict(client.user or None, one, host).remark is None for one in needed)

    def of_remoting(self) -> RemotingAccess:
        """Return the same checks for requests of the remoting protocol."""
        authentication = Authentication(self.tables, remember_s=0, now_s=machine.monotonic)
        self._remoting = RemotingAccess(
            authentication if self._authenticates else None,
            self._authorization if self._authorizes else None,
            cluster_name=self._cluster_name,
            decided=self._decided,
        )
        return self._remoting

    def _named_so(self, name: str) -> None:
        self._cluster_name = name
        if self._remoting is not None:
            self._remoting.cluster_name = name

    def _verdict(self, username: str | None, context: Context, host: str) -> Verdict:
        """Decide by the rules, which may call the cluster by its name."""
        if context.kind == CLUSTER:
            context = context._replace(name=self._cluster_name)
        return self._authorization.verdict(username, context, host)

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
        """Check a call before it is served. Raises Refused if its user is not known, or not allowed what it needs."""
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
        if (longest := max((len(context.name) for context in contexts), default=0)) > NAME_CHARACTERS_MAX:
            text = f"a name has {longest} characters: no topic or group has more than {NAME_CHARACTERS_MAX}"
            raise self._refusal(call, username, text)
        if username is None:
            raise self._refusal(call, username, FAILED, contexts, "unsigned")
        for context in contexts:
            verdict = self._verdict(username, context, call.remote_host)
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
        needed = topic_context(topic, SUB)
        for context in (needed, *of_others(needed)):
            verdict = self._verdict(username, context, call.remote_host)
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
