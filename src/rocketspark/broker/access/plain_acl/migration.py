"""Accounts of access control 1.0 as users and rules of 2.0 (migrateAuthFromV1Enabled). Pure; rule: AuthMigrator, 5.5.0.

A user that is there already stays as he is. White lists are not carried over, as in RocketMQ. Unlike there, a
permission that 1.0 does not know, and refuses, stays a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rocketspark.access.policies import ALLOW, CUSTOM, DEFAULT, DENY, Acl, Policy, PolicyEntry
from rocketspark.access.resources import ALL, GROUP, TOPIC, Pattern, Resource
from rocketspark.access.resources import PUB as MAY_PUB
from rocketspark.access.resources import SUB as MAY_SUB
from rocketspark.access.users import NORMAL, SUPER, User
from rocketspark.broker.access.plain_acl import permissions
from rocketspark.broker.access.plain_acl.documents import AccountEntry
from rocketspark.broker.access.plain_acl.permissions import PUB, SUB

_ACTIONS = {PUB: (MAY_PUB,), SUB: (MAY_SUB,), PUB | SUB: (MAY_PUB, MAY_SUB)}


def migrated(
    entries: Iterable[AccountEntry], users: Mapping[str, User], acls: Mapping[str, Acl]
) -> tuple[dict[str, User], dict[str, Acl], list[str]]:
    """Return the tables with the accounts whose users are missing, and the names of those."""
    users, acls, added = dict(users), dict(acls), []
    for entry in entries:
        name = entry.access_key
        if name in users:
            continue
        users[name] = User(name, entry.secret_key, SUPER if entry.admin else NORMAL)
        added.append(name)
        acl = _acl(entry)
        if acl.policies:
            acls[name] = acl
    return users, acls, added


def _acl(entry: AccountEntry) -> Acl:
    custom = []
    for kind, texts in ((TOPIC, entry.topics), (GROUP, entry.groups)):
        for text in texts or ():
            name, permission = permissions.resource_permission(text)
            custom.append(_entry(Resource(kind, name, Pattern.LITERAL), permission))
    default = [
        _entry(Resource(kind, None, Pattern.ANY), text)
        for kind, text in ((TOPIC, entry.default_topic), (GROUP, entry.default_group))
        if text and text.strip()
    ]
    policies = ((CUSTOM, custom), (DEFAULT, default))
    return Acl(tuple(Policy(kind, tuple(entries)) for kind, entries in policies if entries))


def _entry(resource: Resource, text: str) -> PolicyEntry:
    actions = _ACTIONS.get(permissions.permission(text))
    return PolicyEntry(resource, (ALL,), DENY) if actions is None else PolicyEntry(resource, actions, ALLOW)
