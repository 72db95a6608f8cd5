"""Users and what they may do (access control 2.0), on the masters of a cluster or on brokers by name or address.

Rule: what is asked of several brokers is tried on each; what a broker refuses is raised once all were asked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rocketspark.admin.cluster_client import BrokerState, ClusterClient
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import Heartbeat
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketspark.transport.peer import Peer

NAME_CHARACTERS_MAX = 255
USER_TYPES = ("Super", "Normal")
USER_STATUSES = ("enable", "disable")
POLICY_TYPES = ("Custom", "Default")
DECISIONS = ("Allow", "Deny")
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
RESOURCE_TYPES = ("Topic", "Group", "Cluster")
SUBJECT_PREFIX = "User:"


class UserState(msgspec.Struct, frozen=True, order=True):
    """A user on one broker. `user_type`: Super or Normal; `status`: enable or disable."""

    broker_name: str
    username: str
    user_type: str
    status: str


class RuleState(msgspec.Struct, frozen=True, order=True):
    """One rule of a subject on one broker. No `source_ips`: from everywhere."""

    broker_name: str
    subject: str
    policy_type: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str


T = TypeVar("T")
A = TypeVar("A")


class _Kind(NamedTuple, Generic[T]):
    """What differs between copying users and copying rules: the words, and the calls on a broker."""

    called: str
    name: Callable[[T], str]
    get: Callable[..., Awaitable[T | None]]
    list: Callable[..., Awaitable[Sequence[T]]]
    create: Callable[..., Awaitable[None]]
    update: Callable[..., Awaitable[None]]


_USERS = _Kind[UserInfo](
    "user",
    lambda user: user.username or "",
    admin_api.get_user,
    admin_api.list_users,
    admin_api.create_user,
    admin_api.update_user,
)
_RULES = _Kind[AclInfo](
    "rules of",
    lambda acl: acl.subject or "",
    admin_api.get_acl,
    admin_api.list_acls,
    admin_api.create_acl,
    admin_api.update_acl,
)


class AccessOperations(ClusterClient):
    """The part of AsyncAdmin that is about users and rules.

    `brokers`: names, or "host:port" of any broker, also of a slave; by default all masters, or those of `cluster`.
    """

    # -- users ---------------------------------------------------------------------------------------------------

    async def check_keys(self) -> None:
        """Return if a master takes the keys that requests are signed with, whatever their user may do; also where
        brokers ask for none. Raises ServerError if it does not.
        """
        target, *_ = await self._masters(None, None)
        await client_api.heartbeat(
            await self._broker(target.address),
            Heartbeat(client_id=self._instance.client_id),
            timeout_ms=self._timeout_ms,
        )

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Create a user; returns the brokers' names. Raises ServerError where a user of this name exists already."""
        if not password.strip():
            raise UsageError("a user needs a password that is not blank")
        user = UserInfo(
            username=_name(username), password=password, user_type=_one_of("user_type", user_type, USER_TYPES)
        )
        return await self._on_all(
            cluster,
            brokers,
            f"create user {username!r}",
            lambda peer: admin_api.create_user(peer, user, timeout_ms=self._timeout_ms),
        )

    async def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        status: str | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Change a user's password, type or status (enable, disable); None keeps. Returns the brokers' names."""
        if password is None and user_type is None and status is None:
            raise UsageError("nothing to change: give a password, a user_type or a status")
        if password is not None and not password.strip():
            raise UsageError("a user needs a password that is not blank")
        user = UserInfo(
            username=_name(username),
            password=password,
            user_type=user_type and _one_of("user_type", user_type, USER_TYPES),
            user_status=status and _one_of("status", status, USER_STATUSES),
        )
        return await self._on_all(
            cluster,
            brokers,
            f"update user {username!r}",
            lambda peer: admin_api.update_user(peer, user, timeout_ms=self._timeout_ms),
        )

    async def delete_user(
        self, username: str, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[str]:
        """Delete a user and his rules; returns the brokers' names. A user who does not exist is no error."""
        _name(username)
        return await self._on_all(
            cluster,
            brokers,
            f"delete user {username!r}",
            lambda peer: admin_api.delete_user(peer, username, timeout_ms=self._timeout_ms),
        )

    async def get_user(
        self, username: str, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[UserState]:
        """Return a user as each broker has it. Raises UsageError if no broker has a user of this name."""
        _name(username)
        asked = await self._ask_each(cluster, brokers, admin_api.get_user, username)
        found = [_user_state(broker_name, user) for broker_name, user in asked if user is not None]
        if not found:
            raise UsageError(f"no broker has a user {username!r}")
        return found

    async def list_users(
        self, part: str = "", *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[UserState]:
        """Return the users whose names contain `part`, sorted by broker and name."""
        asked = await self._ask_each(cluster, brokers, admin_api.list_users, part)
        return sorted(_user_state(broker_name, user) for broker_name, users in asked for user in users)

    async def copy_users(
        self, source: str, *, usernames: Sequence[str] = (), brokers: Iterable[str] | None = None
    ) -> dict[str, list[str]]:
        """Create or update the users of the broker `source` on other brokers; by default all its users, on all other
        masters.

        Returns the names of the copied users, by the name of the broker that got them. Raises UsageError for a user
        that `source` does not have.
        """
        return await self._copy(_USERS, source, [_name(name) for name in usernames], brokers)

    # -- rules ---------------------------------------------------------------------------------------------------

    async def create_acl(
        self,
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str] | None,
        *,
        decision: str | None = None,
        source_ips: Sequence[str] | None = None,
        policy_type: str = "Custom",
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Allow a user something or deny it; the user's rules for other resources stay. Returns the brokers' names.

        Where the user has a rule for a resource already, the arguments that are None leave that part of it as it is.

        Args:
            subject: the user's name, or "User:name".
            resources: "Topic:orders", "Topic:order*", "Group:*", "Cluster:DefaultCluster", "*", …
            actions: All, Pub, Sub, Create, Update, Delete, Get, List; a new rule needs one.
            decision: Allow (a new rule's default) or Deny.
            source_ips: addresses and networks of clients that the rule is for; empty, as by default in a new rule: all.
            policy_type: Custom, or Default: rules of type Default are asked where no Custom rule fits.
        """
        wanted = acl_info(subject, resources, actions, decision, source_ips, policy_type)
        return await self._put_acl("create", admin_api.create_acl, wanted, cluster, brokers)

    async def update_acl(
        self,
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str] | None = None,
        *,
        decision: str | None = None,
        source_ips: Sequence[str] | None = None,
        policy_type: str = "Custom",
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Change a user's rules for these resources, or create them; the arguments are those of `create_acl`."""
        wanted = acl_info(subject, resources, actions, decision, source_ips, policy_type)
        return await self._put_acl("update", admin_api.update_acl, wanted, cluster, brokers)

    async def _put_acl(
        self,
        verb: str,
        put: Callable[..., Awaitable[None]],
        wanted: AclInfo,
        cluster: str | None,
        brokers: Iterable[str] | None,
    ) -> list[str]:
        async def act(peer: Peer) -> None:
            # Not asked for alone: of a user who is not there the broker says more when rules are put.
            listed = await admin_api.list_acls(peer, wanted.subject or "", timeout_ms=self._timeout_ms)
            known = next((acl for acl in listed if acl.subject == wanted.subject), None)
            await put(peer, _over(wanted, known), timeout_ms=self._timeout_ms)

        return await self._on_all(cluster, brokers, f"{verb} rules of {wanted.subject!r}", act)

    async def delete_acl(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Remove a user's rules for `resource`, of both types or of `policy_type` alone, or all rules of the user.

        Returns the brokers' names. Raises ServerError where the user has no such rule.
        """
        whole = _subject(subject)
        wanted = None if resource is None else _resource(resource)
        kind = None if policy_type is None else _one_of("policy_type", policy_type, POLICY_TYPES)

        async def act(peer: Peer) -> None:
            kinds = [kind] if wanted is None else await self._kinds_for(peer, whole, wanted, kind)
            for each in kinds:
                await admin_api.delete_acl(peer, whole, policy_type=each, resource=wanted, timeout_ms=self._timeout_ms)

        return await self._on_all(cluster, brokers, f"delete rules of {whole!r}", act)

    async def _kinds_for(self, peer: Peer, subject: str, resource: str, kind: str | None) -> list[str | None]:
        """Return the types of a user's rules for a resource on a broker. A request to delete that names no type deletes
        the rule of type Custom, and succeeds without one: so types are asked first. Raises ServerError if none is
        there.
        """
        listed = await admin_api.list_acls(peer, subject, timeout_ms=self._timeout_ms)
        policies = next((acl.policies for acl in listed if acl.subject == subject), None) or ()
        found = [
            policy.policy_type
            for policy in policies
            if kind in (None, policy.policy_type) and any(entry.resource == resource for entry in policy.entries or ())
        ]
        if not found:
            which = "rule" if kind is None else f"{kind} rule"
            raise ServerError(ResponseCode.NO_PERMISSION, f"there is no {which} of {subject} for {resource}")
        return found

    async def get_acl(
        self, subject: str, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[RuleState]:
        """Return a user's rules as each broker has them. Raises UsageError if no broker has any."""
        whole = _subject(subject)
        asked = await self._ask_each(cluster, brokers, admin_api.get_acl, whole)
        found = [rule for broker_name, acl in asked if acl is not None for rule in _rule_states(broker_name, acl)]
        if not found:
            raise UsageError(f"no broker has rules of {whole!r}")
        return found

    async def list_acls(
        self,
        subject_part: str = "",
        resource_part: str = "",
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[RuleState]:
        """Return the rules whose subject contains `subject_part` and whose resource contains `resource_part`, sorted by
        broker and subject.
        """
        asked = await self._ask_each(cluster, brokers, admin_api.list_acls, subject_part, resource_part)
        found = [rule for broker_name, acls in asked for acl in acls for rule in _rule_states(broker_name, acl)]
        return sorted(found, key=lambda rule: (rule.broker_name, rule.subject))

    async def copy_acls(
        self, source: str, *, subjects: Sequence[str] = (), brokers: Iterable[str] | None = None
    ) -> dict[str, list[str]]:
        """Create or update the rules of the broker `source` on other brokers; by default of all subjects, on all other
        masters.

        Returns the subjects, by the name of the broker that got their rules. Raises UsageError for a subject that has
        no rules on `source`.
        """
        return await self._copy(_RULES, source, [_subject(subject) for subject in subjects], brokers)

    async def _copy(
        self, kind: _Kind[T], source: str, names: Sequence[str], brokers: Iterable[str] | None
    ) -> dict[str, list[str]]:
        origin, targets = await self._copy_ends(source, brokers)
        peer = await self._broker(origin.address)
        entries: list[T] = []
        for name in names:
            entry = await kind.get(peer, name, timeout_ms=self._timeout_ms)
            if entry is None:
                raise UsageError(f"{origin.broker_name} has no {kind.called} {name!r}")
            entries.append(entry)
        if not names:
            entries += await kind.list(peer, timeout_ms=self._timeout_ms)
        copied: dict[str, list[str]] = {}
        for target in targets:
            other = await self._broker(target.address)
            copied[target.broker_name] = []
            for entry in entries:
                name = kind.name(entry)
                known = await kind.get(other, name, timeout_ms=self._timeout_ms)
                put = kind.create if known is None else kind.update
                await put(other, entry, timeout_ms=self._timeout_ms)
                copied[target.broker_name].append(name)
        return copied

    # -- where ---------------------------------------------------------------------------------------------------

    async def _targets(self, cluster: str | None, brokers: Iterable[str] | None) -> list[BrokerState]:
        if brokers is None:
            return await self._masters(cluster, None)
        wanted = list(dict.fromkeys(brokers))
        names = [name for name in wanted if ":" not in name]
        found = {b.broker_name: b for b in await self._masters(cluster, names)} if names else {}
        return [found[name] if name in found else BrokerState("", name, 0, name) for name in wanted]

    async def _ask_each(
        self, cluster: str | None, brokers: Iterable[str] | None, ask: Callable[..., Awaitable[A]], *what: str
    ) -> list[tuple[str, A]]:
        """Return what each broker answers, with its name."""
        return [
            (target.broker_name, await ask(await self._broker(target.address), *what, timeout_ms=self._timeout_ms))
            for target in await self._targets(cluster, brokers)
        ]

    async def _on_all(
        self,
        cluster: str | None,
        brokers: Iterable[str] | None,
        doing: str,
        act: Callable[[Peer], Awaitable[None]],
    ) -> list[str]:
        return list(await self._each(await self._targets(cluster, brokers), doing, act))

    async def _copy_ends(self, source: str, brokers: Iterable[str] | None) -> tuple[BrokerState, list[BrokerState]]:
        (origin,) = await self._targets(None, [source])
        targets = [t for t in await self._targets(None, brokers) if t.address != origin.address]
        if not targets:
            raise UsageError(f"no broker to copy to but {origin.broker_name} itself")
        return origin, targets


def acl_info(
    subject: str,
    resources: Sequence[str],
    actions: Sequence[str] | None,
    decision: str | None = None,
    source_ips: Sequence[str] | None = None,
    policy_type: str = "Custom",
) -> AclInfo:
    """Return an operator's rules in the form of a request to brokers, with None for what is not given; arguments as for
    `create_acl`. Raises UsageError for an illegal one.
    """
    if not resources or (actions is not None and not actions):
        raise UsageError("a rule needs a resource, as Topic:orders, and an action, as Pub")
    entries = [
        PolicyEntryInfo(
            resource=_resource(resource),
            actions=None if actions is None else [_one_of("action", action, ACTIONS) for action in actions],
            source_ips=None if source_ips is None else [_source_ip(ip) for ip in source_ips],
            decision=None if decision is None else _one_of("decision", decision, DECISIONS),
        )
        for resource in resources
    ]
    kind = _one_of("policy_type", policy_type, POLICY_TYPES)
    return AclInfo(subject=_subject(subject), policies=[PolicyInfo(policy_type=kind, entries=entries)])


def _over(wanted: AclInfo, known: AclInfo | None) -> AclInfo:
    """Return the whole rules to send to a broker: what `wanted` leaves out is as in `known`, else as in a new rule."""
    had = {
        (policy.policy_type, entry.resource): entry
        for policy in (known and known.policies) or ()
        for entry in policy.entries or ()
    }

    def whole(kind: str | None, entry: PolicyEntryInfo) -> PolicyEntryInfo:
        before = had.get((kind, entry.resource), PolicyEntryInfo())
        actions = entry.actions or before.actions
        if not actions:
            raise UsageError(f"there is no rule of {wanted.subject!r} for {entry.resource}: a new one needs an action")
        return PolicyEntryInfo(
            resource=entry.resource,
            actions=actions,
            source_ips=(before.source_ips if entry.source_ips is None else entry.source_ips) or None,
            decision=entry.decision or before.decision or DECISIONS[0],
        )

    policies = [
        PolicyInfo(policy_type=p.policy_type, entries=[whole(p.policy_type, entry) for entry in p.entries or ()])
        for p in wanted.policies or ()
    ]
    return AclInfo(subject=wanted.subject, policies=policies)


def _name(username: str) -> str:
    if not username.strip() or len(username) > NAME_CHARACTERS_MAX or not username.isprintable():
        raise UsageError(
            f"{shown(username, characters_max=60)!r} is no name of a user: 1 to {NAME_CHARACTERS_MAX} printable"
            " characters are needed"
        )
    return username


def _subject(subject: str) -> str:
    return SUBJECT_PREFIX + _name(subject.removeprefix(SUBJECT_PREFIX))


def _resource(text: str) -> str:
    kind, _, name = text.strip().partition(":")
    if kind == "*" and not name:
        return "*"
    found = next((each for each in RESOURCE_TYPES if each.lower() == kind.lower()), None)
    if found is None or not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX:
        raise UsageError(
            f"{shown(text, characters_max=60)!r} is no resource: Topic:name, Group:name, Cluster:name, where name may"
            " end in *, or * for everything"
        )
    return f"{found}:{name}"


def _source_ip(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UsageError(
            f"{shown(text, characters_max=60)!r} is no source address: one as 10.1.2.3 or a network as 10.0.0.0/8 is"
            " needed"
        ) from None
    return text


def _one_of(what: str, text: str, known: tuple[str, ...]) -> str:
    found = next((each for each in known if each.lower() == text.strip().lower()), None)
    if found is None:
        raise UsageError(f"{what} {shown(text, characters_max=60)!r} is not one of {', '.join(known)}")
    return found


def _user_state(broker_name: str, user: UserInfo) -> UserState:
    return UserState(broker_name, user.username or "", user.user_type or "", user.user_status or "")


def _rule_states(broker_name: str, acl: AclInfo) -> list[RuleState]:
    return [
        RuleState(
            broker_name,
            acl.subject or "",
            policy.policy_type or "Custom",
            entry.resource or "",
            tuple(entry.actions or ()),
            tuple(entry.source_ips or ()),
            entry.decision or "",
        )
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]


__all__ = ["AccessOperations", "RuleState", "UserState", "acl_info"]
