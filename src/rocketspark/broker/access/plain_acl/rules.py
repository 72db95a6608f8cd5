"""The rules of access control 1.0: accounts and white lists, as they stand in the files, and what they decide.

Rule: a set of rules never changes; a changed file makes a new one. Nothing prints a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rocketspark.broker.access.plain_acl import permissions
from rocketspark.broker.access.plain_acl.addresses import Matches
from rocketspark.broker.access.plain_acl.permissions import PUB
from rocketspark.protocol.request_signing import is_signed_with

PERMISSIONS = "permissions"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# What RocketMQ puts before and after the reason: clients look for the class, people for the place.
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
_VALIDATE = "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:%d)"
_CHECK = "org.apache.rocketmq.acl.plain.PlainPermissionChecker.check(PlainPermissionChecker.java:%d)"


@dataclass(frozen=True, slots=True)
class Account:
    """One account. `resources`: what it may do with topics and, by their retry topics, groups."""

    access_key: str
    secret: bytes = field(repr=False)
    is_white: Matches = field(repr=False)
    admin: bool
    default_topic: int
    default_group: int
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """All accounts by access key, and from where everybody may do everything."""

    accounts: Mapping[str, Account]
    white: tuple[Matches, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. `address`: of its sender; `resources`: permissions needed, in Java's order of checks."""

    address: str
    code: int
    version: int
    ext: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say. `remark`: "" for a request that passes; `rule`: what decided; `resource`: the refused one."""

    remark: str
    rule: str
    resource: str = ""
    needed: int = 0


def decide(rules: Rules, asked: Asked, admin_codes: frozenset[int] = permissions.ADMIN_CODES) -> Verdict:
    """Decide about a request (rule: PlainPermissionManager.validate, the order of checks is its)."""
    if any(matches(asked.address) for matches in rules.white):
        return Verdict("", "global white list")
    access_key = asked.ext.get("AccessKey")
    if access_key is None:
        return _refused("No accessKey is configured", _VALIDATE % 609, "no access key")
    account = rules.accounts.get(access_key)
    if account is None:
        return _refused(f"No acl config for {access_key}", _VALIDATE % 613, "unknown access key")
    if account.is_white(asked.address):
        return Verdict("", "white list of the account")
    if not is_signed_with(account.secret, asked.ext, asked.body, asked.version):
        return _refused(f"Check signature failed for accessKey={access_key}", _VALIDATE % 629, "signature")
    if asked.resources.get(TRACE_TOPIC) == PUB:
        return Verdict("", "trace topic")
    return _decide_by_permissions(account, asked, admin_codes)


def _decide_by_permissions(account: Account, asked: Asked, admin_codes: frozenset[int]) -> Verdict:
    if account.admin:
        return Verdict("", "admin")
    if asked.code in admin_codes:
        text = f"Need admin permission for request code={asked.code}, but accessKey={account.access_key} is not"
        return _refused(text, _CHECK % 36, "admin code")
    for name, needed in asked.resources.items():
        owned = account.resources.get(name)
        if owned is None:
            is_group = name.startswith(permissions.RETRY_PREFIX)
            if not permissions.allows(needed, account.default_group if is_group else account.default_topic):
                text = f"No default permission for {permissions.told(name)}"
                return _refused(text, _CHECK % 57, "default permission", name, needed)
        elif not permissions.allows(needed, owned):
            text = f"No permission for {permissions.told(name)}"
            return _refused(text, _CHECK % 62, "permission", name, needed)
    return Verdict("", PERMISSIONS)


def decide_besides(rules: Rules, asked: Asked, resources: Mapping[str, int], *, admin: bool, told: Verdict) -> Verdict:
    """Return whether an account may that was allowed a request (`told`) and needs more for it, or an admin's rights."""
    account = rules.accounts.get(asked.ext.get("AccessKey", ""))
    if told.rule != PERMISSIONS or account is None or not (resources or admin):
        return told
    more = replace(asked, resources=resources)
    return _decide_by_permissions(account, more, frozenset((asked.code,)) if admin else frozenset())


def may(rules: Rules, address: str, access_key: str, resources: Mapping[str, int]) -> bool:
    """Return whether an account may be sent what needs these."""
    if is_free(rules, address, access_key):
        return True
    account = rules.accounts.get(access_key)
    if account is None:
        return False
    asked = Asked(address, 0, 0, {}, b"", resources)
    return not _decide_by_permissions(account, asked, frozenset()).remark


def is_free(rules: Rules, address: str, access_key: str) -> bool:
    """Return whether an account may do everything."""
    account = rules.accounts.get(access_key)
    free = any(matches(address) for matches in rules.white)
    return free or (account is not None and (account.admin or account.is_white(address)))


def publishes(rules: Rules, address: str, access_key: str) -> bool:
    """Return whether an account may send to any topic."""
    if is_free(rules, address, access_key):
        return True
    account = rules.accounts.get(access_key)
    owned = () if account is None else (account.default_topic, *_of_topics(account))
    return any(permissions.allows(PUB, each) for each in owned)


def _of_topics(account: Account) -> Iterator[int]:
    return (each for name, each in account.resources.items() if not name.startswith(permissions.RETRY_PREFIX))


def _refused(text: str, place: str, rule: str, resource: str = "", needed: int = 0) -> Verdict:
    return Verdict(exception_text(text, place), rule, resource, needed)


def exception_text(text: str, place: str) -> str:
    """Return a remark as RocketMQ writes an exception's: class, text, place."""
    return f"{_EXCEPTION}: {text}, {place}"
