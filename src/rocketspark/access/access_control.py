"""Access control 2.0: who signed, then what he may do, before any handler (rule: the pipelines of BrokerController)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from rocketspark.access.audit import Check, Decided, Decision
from rocketspark.access.authentication import Authentication
from rocketspark.access.authorization import FAILED, Authorization
from rocketspark.access.policies import CLUSTER, PUB, TOPIC
from rocketspark.access.request_contexts import NAMED_BY, Context, Ext, NotReadable, contexts_of
from rocketspark.access.tables import User, subject_of
from rocketspark.errors import ProtocolError, ServerError
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.request_signing import ACCESS_KEY, FOR_HOST, FOR_USER
from rocketspark.transport.processor_table import ReceivedRequest, Refusal, Sender

# Requests that name a stored message by its place in the log.
NAMES_A_PLACE = frozenset(
    (
        Code.CONSUMER_SEND_MSG_BACK,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.VIEW_MESSAGE_BY_ID,
        Code.END_TRANSACTION,
        Code.RESUME_CHECK_HALF_MESSAGE,
    )
)
UNREADABLE = "parse authorization context error."


class Standing:
    """What later requests of a connection have to show, if they name the same user and resources as one that was let
    through; it counts until `holds` returns False.

    `looks_at_each`: each request needs a good signature; else one good signature of the connection counts for a time,
    as in RocketMQ's stateful strategy.
    """

    __slots__ = ("_authentication", "_authorization", "_control", "_key", "_request", "_user", "looks_at_each")

    def __init__(
        self,
        control: AccessControl,
        authentication: Authentication,
        authorization: Authorization | None,
        request: ReceivedRequest,
        user: User,
        key: tuple[str | int | None, ...] | None,
    ) -> None:
        self._control = control
        self._authentication = authentication
        # None where rules are not asked; else what decides about the request stands among what was allowed.
        self._authorization = authorization
        self._key = key
        self._request = request
        self._user = user
        self.looks_at_each = authentication.looks_at_each

    def holds(self) -> bool:
        """Tell whether the user is still the same, and still may do what the first request asked for."""
        may = self._authorization is None or self._key in self._authorization.allowed
        return may and self._authentication.counts(self._request, self._user)

    def is_good(self, content: bytes, body: bytes | memoryview, signature: bytes, signed_ms: int | None) -> bool:
        """Tell whether a request's signature is good. `signed_ms`: when the request was signed; None if it does not
        tell.
        """
        return self._authentication.is_good(self._user, content, body, signature, signed_ms)

    def passed(self, count: int) -> None:
        """Add to the counts of requests that were let through."""
        self._control.authenticated += count
        if self._authorization is not None:
            self._control.authorized += count


class AccessControl:
    """The check of each request at one broker: authentication and authorization, each of which may be off.

    `complete`: requests that RocketMQ does not check are checked too. `whitelists`: the codes that pass authentication,
    and authorization, unchecked. `decided`: called with each refusal, and with each request of the codes `told` that
    passes. `authenticated`, `authorized`: how many requests were let through; `cluster_name`: by which rules name the
    cluster.
    """

    def __init__(
        self,
        authentication: Authentication | None,
        authorization: Authorization | None,
        *,
        cluster_name: str,
        complete: bool = True,
        whitelists: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset()),
        decided: Decided,
    ) -> None:
        self._authentication = authentication
        self._authorization = authorization
        self.cluster_name = cluster_name
        self._complete = complete
        self._unauthenticated, self._unauthorized = whitelists
        self._decided = decided
        self.told: Collection[int] = ()
        # What the stored messages need that requests name by their place; set once there is a store.
        self.stored: Callable[[int, Ext], Iterable[Context]] = lambda code, ext: ()
        self.authenticated = self.authorized = 0

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the answer to a request whose sender is not known, or may not do what it asks for; None if it may be
        served.
        """
        if self._authentication is not None and request.code not in self._unauthenticated:
            remark = self._authentication.refusal(request)
            if remark is not None:
                return self._refuse(Check.AUTHENTICATION, request, None, "signature", remark)
            self.authenticated += 1
        if self._authorization is None or request.code in self._unauthorized:
            self._tell_of_signature(request)
            return None
        username = request.ext.get(ACCESS_KEY)
        key: tuple[str | int | None, ...] | None = None
        if username is not None and request.code not in self.told:
            # The hot path: who asked for the same since the last change, and was allowed it, may.
            key = self._key(request, username)
            if key in self._authorization.allowed:
                self.authorized += 1
                return None
        refusal = self._refused_by_rules(request, username, self._authorization)
        if refusal is None:
            self.authorized += 1
            if key is not None:
                self._authorization.keep_allowed(key)
        return refusal

    def _tell_of_signature(self, request: ReceivedRequest) -> None:
        """Tell of a request of the codes `told` that passes by its signature, as no rule is asked about it."""
        if request.code in self.told:
            if self._authorization is None:
                self._tell(Check.AUTHENTICATION, request, None, "signature")
            else:
                self._tell(Check.AUTHORIZATION, request, None, "whitelist")

    def _refused_by_rules(
        self, request: ReceivedRequest, username: str | None, authorization: Authorization
    ) -> Refusal | None:
        """Return the answer to a request one of whose resources its user may not use so."""
        source = request.peer.remote_host
        if request.code in NAMES_A_PLACE and FOR_USER in request.ext and authorization.is_super(username or ""):
            # A proxy asks for one of its clients: whose message it is only a broker knows.
            username, source = request.ext[FOR_USER], request.ext.get(FOR_HOST, "")
        try:
            contexts = contexts_of(request.code, request.ext, request.body, complete=self._complete)
            if self._complete and request.code in NAMES_A_PLACE:
                contexts += self.stored(request.code, request.ext)
        except (NotReadable, ProtocolError):
            return self._refuse(Check.AUTHORIZATION, request, None, "unreadable", UNREADABLE)
        except ServerError as e:
            return self._refuse(Check.AUTHORIZATION, request, None, "unreadable", e.remark)
        if not contexts and username is None and self._complete and request.code not in self._unauthenticated:
            # A heartbeat of producers, say: nothing in particular is needed, but a name.
            return self._refuse(Check.AUTHORIZATION, request, None, "unsigned", FAILED)
        asked: Context | None = None
        rule = "nothing to check"
        for context in contexts:
            asked = self._named(context)
            verdict = authorization.verdict(username, asked, source)
            if verdict.remark is not None:
                return self._refuse(Check.AUTHORIZATION, request, asked, verdict.rule, verdict.remark)
            rule = verdict.rule
        if request.code in self.told:
            self._tell(Check.AUTHORIZATION, request, asked, rule)
        return None

    def _named(self, context: Context) -> Context:
        """Return what a request needs, with the name of this cluster where it is the cluster."""
        return context._replace(name=self.cluster_name) if context.kind == CLUSTER else context

    def standing(self, request: ReceivedRequest) -> Standing | None:
        """Return what requests like this one have to show to be let through, if it was let through itself.

        A request is like this one if it is equal in all that this check looks at. None if each such request has to be
        checked by `refuses`.
        """
        authentication = self._authentication
        if authentication is None or request.code in self._unauthenticated or request.code in self.told:
            return None
        user = authentication.user_of(request)
        if user is None:
            return None
        authorization = None if request.code in self._unauthorized else self._authorization
        standing = Standing(self, authentication, authorization, request, user, self._key(request, user.username))
        return standing if standing.holds() else None

    @staticmethod
    def _key(request: ReceivedRequest, username: str) -> tuple[str | int | None, ...] | None:
        """Return what decides about a request, if that is its code, its user, its source and some fields alone."""
        fields = NAMED_BY.get(request.code)
        if fields is None:
            return None
        return (request.code, username, request.peer.remote_host, *map(request.ext.get, fields))

    # -- what the broker sends of itself -------------------------------------------------------------------------

    def _user(self, sender: Sender) -> str | None:
        """Return the user whose heartbeat it was; None if nobody asked for a signature of it."""
        return None if self._authentication is not None and Code.HEART_BEAT in self._unauthenticated else sender.user

    def trusts(self, sender: Sender) -> bool:
        """Tell whether a sender may do everything, so that he may send requests in others' names."""
        return self._authorization is not None and self._authorization.is_super(self._user(sender) or "")

    def _is_let_in(self, sender: Sender) -> bool:
        """Tell whether a sender, whom no rule is asked about, would still be let in."""
        user = self._user(sender)
        return user is None or self._authentication is None or not self._complete or self._authentication.knows(user)

    def may(self, sender: Sender, contexts: Iterable[Context]) -> bool:
        """Tell whether a sender has the rights in `contexts`, without which he may not be sent something."""
        if self._authorization is None or not self._complete:
            return self._is_let_in(sender)
        for context in contexts:
            verdict = self._authorization.verdict(self._user(sender) or None, self._named(context), sender.host)
            if verdict.remark is not None:
                return False
        return True

    def publishes(self, sender: Sender) -> bool:
        """Tell whether a sender may send to at least one topic."""
        if self._authorization is None or not self._complete:
            return self._is_let_in(sender)
        return self._authorization.may_somewhere(self._user(sender) or "", TOPIC, PUB, sender.host)

    def _refuse(
        self, check: Check, request: ReceivedRequest, context: Context | None, rule: str, remark: str
    ) -> Refusal:
        self._tell(check, request, context, rule, remark)
        return Refusal(ResponseCode.NO_PERMISSION, remark)

    def _tell(
        self, check: Check, request: ReceivedRequest, context: Context | None, rule: str, remark: str = ""
    ) -> None:
        username = request.ext.get(ACCESS_KEY)
        self._decided(
            Decision(
                check=check,
                subject="" if username is None else subject_of(username),
                source=request.peer.address,
                code=request.code,
                resource="" if context is None else context.key,
                actions=() if context is None else context.actions,
                allowed=not remark,
                rule=rule,
                remark=remark,
            )
        )
