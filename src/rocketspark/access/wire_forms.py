"""Users and rules as requests and replies carry them, and back. Rule: what a text does not say is refused."""

from __future__ import annotations

import functools

from rocketspark.access.policies import (
    ANY,
    CUSTOM,
    DEFAULT,
    Acl,
    Policy,
    PolicyEntry,
    parse_action,
    parse_network,
    parse_resource,
)
from rocketspark.access.tables import (
    DISABLE,
    ENABLE,
    NORMAL,
    User,
    subject_of,
    user_status_of,
    user_type_of,
    username_of,
)
from rocketspark.errors import ProtocolError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

log = LimitedLog("rocketspark.access")

_POLICY_TYPES = {"custom": CUSTOM, "default": DEFAULT}
_DECISIONS = {"allow": "Allow", "deny": "Deny"}


class Unfit(Exception):
    """Raised for a rule in a request that cannot be kept."""


def policy_type_of(text: str | None) -> str:
    """Return the type of policy that a text names; Custom for any other text."""
    return _POLICY_TYPES.get((text or "").lower(), CUSTOM)


def policies_of(told: list[PolicyInfo]) -> list[Policy]:
    """Return the rules in a request's body; rules of the same type become one policy. Raises Unfit, in RocketMQ's
    words.
    """
    policies = []
    for policy in told:
        if policy.entries:
            kind = policy_type_of(policy.policy_type)
            policies.append(Policy(kind, tuple(_entry(entry) for entry in policy.entries)))
    if not policies:
        raise Unfit("The policies is empty.")
    return policies


def _entry(told: PolicyEntryInfo) -> PolicyEntry:
    resource = parse_resource(told.resource)
    if resource is None:
        raise Unfit("The resource is null.")
    actions = tuple(action for action in map(parse_action, told.actions or ()) if action is not None)
    if not actions:
        raise Unfit("The actions is empty.")
    if ANY in actions:
        raise Unfit("The actions can not be Any.")
    for source_ip in told.source_ips or ():
        if not source_ip.strip():
            raise Unfit("The source ip is empty.")
        if parse_network(source_ip) is None:
            raise Unfit("The source ip is invalid.")
    decision = _DECISIONS.get((told.decision or "").lower())
    if decision is None:
        raise Unfit("The decision is null or illegal.")
    return PolicyEntry(resource, actions, decision, tuple(told.source_ips or ()))


def user_info(user: User) -> UserInfo:
    return UserInfo(
        username=user.username,
        password=user.password,
        user_type=user.user_type,
        user_status=ENABLE if user.is_enabled else DISABLE,
    )


def acl_info(username: str, acl: Acl) -> AclInfo:
    return AclInfo(
        subject=subject_of(username),
        policies=[
            PolicyInfo(
                policy_type=policy.type,
                entries=[
                    PolicyEntryInfo(
                        resource=entry.resource.key,
                        actions=list(entry.actions),
                        source_ips=list(entry.source_ips) or None,
                        decision=entry.decision,
                    )
                    for entry in policy.entries
                ],
            )
            for policy in acl.policies
        ],
    )


def users_from(infos: list[UserInfo]) -> dict[str, User]:
    """Return the users that another broker lists. Raises ProtocolError for one without a name or a password."""
    users = {}
    for info in infos:
        if not info.username or not info.password:
            raise ProtocolError("a user came without name or password")
        kind, status = user_type_of(info.user_type) or NORMAL, user_status_of(info.user_status) or ENABLE
        users[info.username] = User(info.username, info.password, kind, status)
    return users


def acls_from(infos: list[AclInfo]) -> dict[str, Acl]:
    """Return the rules that another broker lists; who has one that cannot be read may do nothing.
    Raises ProtocolError for rules of nobody.
    """
    acls = {}
    for info in infos:
        username = username_of(info.subject)
        if username is None:
            raise ProtocolError("rules came without a user")
        try:
            acls[username] = Acl.of(policies_of(info.policies or []))
        except Unfit as e:
            # It is his trouble alone: the others go on.
            acls[username] = Acl()
            _tell(username, str(e))
    return acls


@functools.lru_cache(maxsize=1024)
def _tell(username: str, why: str) -> None:
    """Say once that a user's rules cannot be read; they are fetched every few seconds."""
    log.warning("the rules of user %s cannot be read, so he may do nothing: %s", shown(username), why)
