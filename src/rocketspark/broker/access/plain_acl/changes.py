"""What becomes of the accounts of access control 1.0: changed by requests (50, 51, 53), or turned into users of 2.0.

Both are pure: a document of a rule file goes in and one comes out (rule: 5.2.0), or users and rules of 2.0 do (rule:
AuthMigrator, 5.5.0, migrateAuthFromV1Enabled). No refusal repeats a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rocketspark import machine
from rocketspark.access.policies import (
    ALL,
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    GROUP,
    TOPIC,
    Acl,
    Pattern,
    Policy,
    PolicyEntry,
    Resource,
)
from rocketspark.access.policies import PUB as MAY_PUB
from rocketspark.access.policies import SUB as MAY_SUB
from rocketspark.access.tables import NORMAL, SUPER, User
from rocketspark.broker.access.plain_acl.documents import KEY_LENGTH_MIN, AccountEntry, Document, Version
from rocketspark.broker.access.plain_acl.rules import PUB, SUB, is_permission, permission, resource_permission
from rocketspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AccountChange:
    """What a request UPDATE_AND_CREATE_ACL_CONFIG (50) says of an account; a field that is None is not changed."""

    access_key: str | None
    secret_key: str | None = field(default=None, repr=False)
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise ConfigError if the keys are too short, or a permission on a topic or group cannot be understood."""
        if len(self.access_key or "") < KEY_LENGTH_MIN or len(self.secret_key or "") < KEY_LENGTH_MIN:
            key = "null" if self.access_key is None else self.access_key
            raise ConfigError(f"The accessKey={key} and secretKey=… cannot be null and length should longer than 6")
        for text in (*(self.topics or ()), *(self.groups or ())):
            try:
                _, bits = resource_permission(text)
            except ConfigError:
                raise ConfigError(
                    f"Parse Resource format error for {text}.\n"
                    "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
                ) from None
            if not is_permission(bits):
                raise ConfigError(
                    f"Parse resource permission error for {text}.\n"
                    "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
                )

    def of(self, entry: AccountEntry | None) -> AccountEntry:
        """Return the account after the change; `entry`: the account before it, None for a new one.

        Raises ConfigError if the result is no valid account.
        """
        assert self.access_key is not None
        assert self.secret_key is not None
        old = entry or AccountEntry(self.access_key, self.secret_key)
        new = AccountEntry(
            self.access_key,
            self.secret_key,
            old.white_address if self.white_address is None else self.white_address,
            self.admin,
            self.default_topic or old.default_topic,
            self.default_group or old.default_group,
            old.topics if self.topics is None else self.topics,
            old.groups if self.groups is None else self.groups,
        )
        new.account()
        return new


def with_account(document: Document, change: AccountChange) -> Document:
    """Return a document with an account added or changed; a changed account goes to the end, as in RocketMQ."""
    assert change.access_key is not None
    new = change.of(document.entry(change.access_key))
    return _next(replace(document, accounts=(*document.without(new.access_key).accounts, new)))


def without_account(document: Document, access_key: str) -> Document:
    """Return a document without an account."""
    return _next(document.without(access_key))


def with_white(document: Document, addresses: tuple[str, ...]) -> Document:
    """Return a document with another global white list. Raises ConfigError for an address that cannot be read."""
    new = replace(document, white=addresses)
    new.white_patterns()
    return _next(new)


def _next(document: Document) -> Document:
    counter = document.version.counter if document.version else 0
    return replace(document, version=Version(machine.time_ns() // 1_000_000, counter + 1))


def split(text: str | None) -> tuple[str, ...] | None:
    """Return the parts of a text that is separated by commas; None for None (rule: UtilAll.split)."""
    if text is None:
        return None
    if not text.strip():
        return ()
    parts = text.split(",")
    while parts and not parts[-1]:
        # Java's split leaves out what is empty at the end.
        parts.pop()
    return tuple(parts)


_ACTIONS = {PUB: (MAY_PUB,), SUB: (MAY_SUB,), PUB | SUB: (MAY_PUB, MAY_SUB)}


def migrated(
    entries: Iterable[AccountEntry], users: Mapping[str, User], acls: Mapping[str, Acl]
) -> tuple[dict[str, User], dict[str, Acl], list[str]]:
    """Turn accounts of access control 1.0 into users and rules of 2.0; a user who exists already is left as he is.

    Returns (all users, all rules, names of the users that were added).
    """
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
            name, permission = resource_permission(text)
            custom.append(_entry(Resource(kind, name, Pattern.LITERAL), permission))
    default = [
        _entry(Resource(kind, None, Pattern.ANY), text)
        for kind, text in ((TOPIC, entry.default_topic), (GROUP, entry.default_group))
        if text and text.strip()
    ]
    policies = ((CUSTOM, custom), (DEFAULT, default))
    return Acl(tuple(Policy(kind, tuple(entries)) for kind, entries in policies if entries))


def _entry(resource: Resource, text: str) -> PolicyEntry:
    actions = _ACTIONS.get(permission(text))
    return PolicyEntry(resource, (ALL,), DENY) if actions is None else PolicyEntry(resource, actions, ALLOW)
