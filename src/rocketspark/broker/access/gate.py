"""The gate of a broker: every check that its settings ask for, in RocketMQ's order: access control 1.0, then 2.0.

Beside the gate are what its checks look up: the topic of a stored message that a request names by its physical offset
(StoredMessages), and which clients may be sent the requests that the broker makes by itself (Recipients).

Rule: a request passes if all checks let it pass. Each refusal is told to one observer, the function `decided`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from rocketspark import machine
from rocketspark.access.access_control import AccessControl, Standing
from rocketspark.access.audit import Check, Decided, Decision, nobody_told
from rocketspark.access.authentication import Authentication
from rocketspark.access.authorization import Authorization
from rocketspark.access.policies import GET, GROUP, PUB, SUB, UPDATE, bare_group
from rocketspark.access.request_contexts import Context, Ext, NotReadable, of_others, topic_context
from rocketspark.access.tables import FILE_NAME, AccessTables, User
from rocketspark.broker import topic_names
from rocketspark.broker.access.plain_acl.changes import migrated
from rocketspark.broker.access.plain_acl.check import PlainAcl
from rocketspark.broker.access.plain_acl.rule_files import RuleFiles
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RecordError, UsageError
from rocketspark.model.text import shown
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.headers import ConsumeDirectlyHeader, EndTransactionHeader, SendBackHeader, ViewMessageHeader
from rocketspark.protocol.headers.admin import ResumeCheckHeader
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.protocol.request_signing import ACCESS_KEY, FOR_HOST, FOR_USER
from rocketspark.store.store import Store
from rocketspark.transport.processor_table import Gate, ReceivedRequest, Refusal, Sender

_ACTIONS: dict[int, str] = {
    Code.CONSUMER_SEND_MSG_BACK: SUB,
    Code.CONSUME_MESSAGE_DIRECTLY: SUB,
    Code.VIEW_MESSAGE_BY_ID: GET,
    Code.END_TRANSACTION: PUB,
    Code.RESUME_CHECK_HALF_MESSAGE: UPDATE,
}
# They are about half messages, whose topic stands among their properties.
_OF_HALVES = (Code.END_TRANSACTION, Code.RESUME_CHECK_HALF_MESSAGE)
_HALF_TOPICS = (topic_names.HALF_TOPIC, topic_names.CHECK_MAX_TOPIC)


class StoredMessages:
    """Finds out which rights a request needs on the stored message that it names, by reading the message in the log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def contexts(self, code: int, ext: Ext) -> Iterator[Context]:
        """Yield the rights that a request needs on the message at the physical offset that it names.

        Nothing is yielded if the request names no message, or if no record is at that offset. Raises NotReadable if the
        record there cannot be read or is in no queue, and FrameError for a header that the handler would not take
        either.
        """
        position = _position(code, ext)
        found = None if position is None else self._store.record_at(position)
        if found is None:
            return
        try:
            stored = record.decode(found, check_crc=False)
        except RecordError:
            raise NotReadable("no record") from None
        topic = stored.topic.decode("utf-8", "replace")
        if not self._is_queued(topic, stored):
            raise NotReadable("no record of a queue")
        if code in _OF_HALVES and topic in _HALF_TOPICS:
            real = properties.find(stored.properties, properties.REAL_TOPIC.encode())
            topic = (real or b"").decode("utf-8", "replace")
        needed = topic_context(topic, _ACTIONS[code])
        yield needed
        yield from of_others(needed)

    def _is_queued(self, topic: str, stored: record.Record) -> bool:
        low, high = self._store.stored_range(topic, stored.queue_id)
        if not low <= stored.queue_offset < high:
            return False
        units = self._store.queue_units(topic, stored.queue_id, stored.queue_offset, 1)
        return any(position == stored.position for position, _, _ in units)


def _position(code: int, ext: Ext) -> int | None:
    """Return the place that the handler will look at, read as it reads it."""
    fields = dict(ext)
    if code == Code.CONSUMER_SEND_MSG_BACK:
        return headers.from_ext(SendBackHeader, fields).physical_offset
    if code == Code.END_TRANSACTION:
        return headers.from_ext(EndTransactionHeader, fields).physical_offset
    if code == Code.VIEW_MESSAGE_BY_ID:
        return headers.from_ext(ViewMessageHeader, fields).physical_offset
    try:
        if code == Code.RESUME_CHECK_HALF_MESSAGE:
            return parse_offset_message_id(headers.from_ext(ResumeCheckHeader, fields).message_id)[2]
        return parse_offset_message_id(headers.from_ext(ConsumeDirectlyHeader, fields).message_id or "")[2]
    except UsageError:
        return None


log = logging.getLogger("rocketspark.broker")

# After them the broker sends something of itself; a proxy subscribes on a connection that may say no heartbeat.
_TELL_WHO_ASKED = frozenset((RequestCode.HEART_BEAT, RequestCode.LITE_SUBSCRIPTION_CTL))


class BrokerCheck(Gate, Protocol):
    """One check of a broker's gate: of requests that come in, and of requests that the broker sends to clients."""

    def trusts(self, sender: Sender) -> bool:
        """Return whether a sender may do everything, and therefore send requests on behalf of other users."""

    def may(self, sender: Sender, contexts: Iterable[Context]) -> bool:
        """Return whether a client has the rights in `contexts`, which it needs before the broker sends it something."""

    def publishes(self, sender: Sender) -> bool:
        """Return whether a client may send to any topic at all."""


class BrokerGate:
    """The gate of one broker: it asks all checks, in their order."""

    def __init__(self) -> None:
        self.checks: list[BrokerCheck] = []
        # Set by the audit.
        self.decided: Decided = nobody_told

    def tell(self, decision: Decision) -> None:
        """Tell the observer of a decision; the checks call this for each of theirs that is to be told."""
        self.decided(decision)

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the refusal of the first check that does not let a request pass; None if all let it pass."""
        for check in self.checks:
            refusal = check.refuses(request)
            if refusal is not None:
                return refusal
        if request.code in _TELL_WHO_ASKED:
            request.peer.sender = self._sender(request)
        return None

    def _sender(self, request: ReceivedRequest) -> Sender:
        """Return who says a heartbeat, or subscribes: for clients of a proxy, whom the proxy signs it for."""
        ext = request.ext
        signer = Sender(ext.get(ACCESS_KEY, ""), request.peer.remote_host)
        if FOR_USER in ext and all(check.trusts(signer) for check in self.checks):
            return Sender(ext[FOR_USER], ext.get(FOR_HOST, ""))
        return signer


class Access:
    """Access control of one broker, made before the broker listens. Until `load` was called, everybody is refused.

    `gate`: None if the settings ask for no check; `users`, `acls`: the tables, each None if its provider is not
    configured; `control`: the check of access control 2.0; `plain`: the check of 1.0, which is asked first.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        s, access = settings, settings.access
        tables = AccessTables(Path(s.store_root) / "config" / FILE_NAME)
        self._settings = settings
        self.tables = tables
        self.users = tables if access.authentication_metadata_provider else None
        self.acls = tables if access.authorization_metadata_provider else None
        self.control: AccessControl | None = None
        self.gate: BrokerGate | None = None
        if s.acl or s.authentication or s.authorization:
            self.gate = BrokerGate()
        self.plain = self._plain(self.gate) if s.acl and self.gate is not None else None
        self._looking: asyncio.Future[None] | None = None
        if self.gate is not None and (s.authentication or s.authorization):
            self.control = self._control(self.gate)
            self.gate.checks.append(self.control)

    @property
    def standing_of(self) -> Callable[[ReceivedRequest], Standing | None] | None:
        """The function that tells what a connection's requests must show if they are like one that passed.

        None if access control 2.0 is off, or if 1.0 checks requests as well: then each request is checked as a whole.
        """
        return None if self.control is None or self.plain is not None else self.control.standing

    def _plain(self, gate: BrokerGate) -> PlainAcl:
        plain = PlainAcl(
            self._rule_files(),
            complete=self._settings.access.authorization_complete_enable,
            decided=gate.tell,
        )
        gate.checks.append(plain)
        return plain

    def _rule_files(self) -> RuleFiles:
        return RuleFiles(self._settings.acl_home_folder(), self._settings.acl_file)

    def look(self) -> None:
        """Read the files of access control 1.0 again if they changed; called every second."""
        if self.plain is not None:
            self._looking = asyncio.ensure_future(self.plain.look())

    def _control(self, gate: BrokerGate) -> AccessControl:
        s, access = self._settings, self._settings.access
        remember_s = float(access.stateful_authentication_cache_expired_second) if access.is_stateful else 0.0
        authorization = Authorization(
            self.users, self.acls, kept_max=max(access.stateful_authorization_cache_max_num, 1)
        )
        self.tables.changed = authorization.forget
        authentication = Authentication(
            self.users,
            remember_s=remember_s,
            now_s=machine.monotonic,
            age_max_ms=access.signature_age_minutes_max * 60_000,
        )
        return AccessControl(
            authentication if s.authentication else None,
            authorization if s.authorization else None,
            cluster_name=s.cluster_name,
            complete=access.authorization_complete_enable,
            whitelists=access.whitelists(),
            decided=gate.tell,
        )

    def observe(self, decided: Decided, told: Collection[int]) -> None:
        """Call `decided` for each refused request, and for each request that passes if its code is among `told`."""
        if self.gate is not None:
            self.gate.decided = decided
        if self.control is not None:
            self.control.told = told

    def passed(self) -> dict[Check, int]:
        """Return how many requests each check let through."""
        passed = dict.fromkeys(Check, 0)
        if self.plain is not None:
            passed[Check.AUTHORIZATION] += self.plain.allowed
        if self.control is not None:
            passed[Check.AUTHENTICATION] += self.control.authenticated
            passed[Check.AUTHORIZATION] += self.control.authorized
        return {check: count for check, count in passed.items() if count}

    def load(self) -> None:
        """Read the tables of users and rules, and create those users of the settings that do not exist yet.

        Raises ConfigError, StoreFull or StoreUnwritable.
        """
        s = self._settings
        among_others = s.broker_role != "ASYNC_MASTER" or s.replicas_total > 1 or s.controller_mode
        if (s.authentication or (s.acl and among_others)) and s.access.inner_credentials() is None:
            log.warning(
                "innerClientAuthenticationCredentials is not set: this broker's own requests to others are not"
                " signed, and they refuse them, nor does any slave or master let it in; set it, the same for all"
            )
        if self.users is None and self.acls is None:
            if self.control is not None:
                log.warning(
                    "access control is on, and authenticationMetadataProvider is not set: every request is refused"
                )
            return
        self.tables.load()
        if self.users is not None:
            for user in self._settings.access.first_users():
                if user.username not in self.tables.users:
                    self.tables.put_user(user)
            self._compare_own_password(self.tables.users)
            if self._settings.access.migrate_auth_from_v1_enabled:
                self._migrate()
        if self._settings.authorization and not self._settings.authentication:
            log.warning(
                "authorizationEnabled without authenticationEnabled: whoever names an access key is taken for its owner"
            )

    def _compare_own_password(self, users: dict[str, User]) -> None:
        credentials = self._settings.access.inner_credentials()
        if credentials is not None and users[credentials[0]].password != credentials[1]:
            log.warning(
                "user %s has another password than innerClientAuthenticationCredentials say: the brokers' own requests"
                " are refused; give the user that password, or bring the old credentials back",
                shown(credentials[0]),
            )

    def look_into(self, store: Store) -> None:
        """Give the checks this store, to find the topic of a message that a request names by its physical offset."""
        stored = StoredMessages(store).contexts
        if self.control is not None:
            self.control.stored = stored
        if self.plain is not None:
            self.plain.stored = stored

    def _migrate(self) -> None:
        """Make users and rules of the accounts of access control 1.0, where the users are missing."""
        loaded = self.plain.loaded if self.plain is not None else self._rule_files().load()
        entries = loaded.entries()
        users, acls, added = migrated(entries, self.tables.users, self.tables.acls)
        self.tables.replace(users, acls if self.acls is not None else self.tables.acls)
        if added:
            log.info("%d accounts of access control 1.0 have become users", len(added))
        if loaded.rules.white or any(entry.white_address for entry in entries):
            log.warning("the white lists of access control 1.0 are not carried over: access control 2.0 has none")


def _publishes(topic: str, group: str) -> list[Context]:
    needed = topic_context(topic, PUB)
    return [needed, *of_others(needed)]


def _is_member(topic: str, group: str) -> list[Context]:
    return [Context(GROUP, bare_group(group), (SUB,))]


def _reads(topic: str, group: str) -> list[Context]:
    needed = topic_context(topic, SUB)
    return [*_is_member(topic, group), needed, *of_others(needed)]


# What each needs, by the topic that it is about and the group whose member is told.
NEEDED: dict[int, Callable[[str, str], list[Context]]] = {
    # The whole half message, for its own topic.
    Code.CHECK_TRANSACTION_STATE: _publishes,
    Code.NOTIFY_CONSUMER_IDS_CHANGED: _is_member,
    Code.GET_CONSUMER_RUNNING_INFO: _is_member,
    Code.NOTIFY_UNSUBSCRIBE_LITE: _is_member,
    # Places in the queues of a topic.
    Code.RESET_CONSUMER_CLIENT_OFFSET: _reads,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _reads,
    # A whole message.
    Code.CONSUME_MESSAGE_DIRECTLY: _reads,
}


class Recipients:
    """Tells which clients the broker may send requests to, by asking the checks of its gate."""

    def __init__(self, gate: BrokerGate | None) -> None:
        self._checks = gate.checks if gate is not None else []

    def may_be_sent(self, code: int, sender: Sender | None, topic: str, group: str) -> bool:
        """Return whether the broker may send a client the request `code` about a topic and a group.

        `sender`: the user and host whose heartbeat registered the client; where there is none, nothing may be sent.
        """
        if not self._checks:
            return True
        if sender is None:
            return False
        if code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT:
            # Whose request a reply is for nobody knows; who may send none can have sent no request.
            return all(check.publishes(sender) for check in self._checks)
        needed = NEEDED[code](topic, group)
        return all(check.may(sender, needed) for check in self._checks)
