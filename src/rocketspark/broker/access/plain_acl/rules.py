"""The rules of access control 1.0: accounts, white lists, permissions on topics and groups, and what they decide.

Rule: a set of rules never changes; a changed file makes a new one. What is not known is refused, as in RocketMQ.
Nothing prints a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rocketspark.broker.access.plain_acl.addresses import Matches
from rocketspark.errors import ConfigError
from rocketspark.model.text import shown, string_hash
from rocketspark.protocol.request_signing import is_signed_with

DENY, ANY, PUB, SUB = 1, 2, 4, 8
_BY_TEXT = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
RETRY_PREFIX = "%RETRY%"
# Requests that only an admin account may send (rule: Permission.ADMIN_CODE).
ADMIN_CODES = frozenset({17, 25, 215, 200, 207})
# Requests of the same weight that RocketMQ lets everybody send who can sign: the rules themselves, topics and groups by
# lists, static topics, offsets of whole groups, how a group's queues are shared out, a look through all of its lite
# topics, cold data, the timer's engine, the users and rules of access control 2.0, with their passwords.
MORE_ADMIN_CODES = frozenset(
    {
        18,
        27,
        50,
        51,
        53,
        54,
        222,
        225,
        306,
        314,
        316,
        323,
        329,
        353,
        401,
        513,
        2001,
        2002,
        2004,
        5001,
        200_079,
        *range(3001, 3011),
    }
)


def permission(text: str | None) -> int:
    """Return the permission bits that a text such as "PUB|SUB" names; DENY for None and for an unknown text."""
    return _BY_TEXT.get((text or "").strip(), DENY)


def is_permission(text: str) -> bool:
    """Return whether a text names a permission, such as "PUB" or "PUB|SUB"."""
    return text.strip() in _BY_TEXT


def allows(needed: int, owned: int) -> bool:
    """Return whether the permission bits that an account has satisfy those that are needed (rule: checkPermission)."""
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)


def resource_permission(text: str) -> tuple[str, str]:
    """Split "name=permission" into its two texts. Raises ConfigError if the text has another form."""
    items = [item for item in text.split("=") if item]
    if len(items) != 2:
        raise ConfigError(f"{shown(text, characters_max=80)!r}: name=permission is needed, such as orders=PUB|SUB")
    return items[0].strip(), items[1].strip()


def retry_resource(group: str) -> str:
    """Return the name under which the rules hold a consumer group: that of its retry topic."""
    return RETRY_PREFIX + group


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of a Java HashMap, in which RocketMQ checks them and names the first it refuses."""
    ordered = list(dict.fromkeys(names))
    slots = 16
    while len(ordered) > slots * 3 // 4:
        slots *= 2

    def slot(name: str) -> int:
        code = string_hash(name) & 0xFFFFFFFF
        return (code ^ (code >> 16)) & (slots - 1)

    return sorted(ordered, key=slot)


def resource_told(resource: str) -> str:
    """Return how a remark names a resource: "topic:orders" or "group:billing"."""
    if not resource.startswith(RETRY_PREFIX):
        return f"topic:{resource}"
    # A retry topic of pops names the topic after a "+".
    parts = resource.rstrip("+").split("+")
    name = parts[0] if len(parts) == 2 else resource
    return f"group:{name[len(RETRY_PREFIX) :]}"


PERMISSIONS = "permissions"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# What RocketMQ puts before and after the reason: clients look for the class, people for the place.
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
_VALIDATE = "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:%d)"
_CHECK = "org.apache.rocketmq.acl.plain.PlainPermissionChecker.check(PlainPermissionChecker.java:%d)"


@dataclass(frozen=True, slots=True)
class Account:
    """One account. `resources`: its permission bits by topic, and by retry topic for consumer groups."""

    access_key: str
    secret: bytes = field(repr=False)
    is_white: Matches = field(repr=False)
    admin: bool
    default_topic: int
    default_group: int
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """All accounts by access key, and the addresses from which everybody may do everything."""

    accounts: Mapping[str, Account]
    white: tuple[Matches, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to be decided on. `address`: its sender's; `resources`: the permissions needed, in order of checks."""

    address: str
    code: int
    version: int
    ext: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a request.

    `remark`: why it is refused, "" if it passes; `rule`: the name of the rule that decided; `resource`: the topic or
    group that is refused; `needed`: the permission bits that the request lacks there.
    """

    remark: str
    rule: str
    resource: str = ""
    needed: int = 0


def decide(rules: Rules, asked: Asked, admin_codes: frozenset[int] = ADMIN_CODES) -> Verdict:
    """Decide about a request, with the checks in RocketMQ's order (rule: PlainPermissionManager.validate)."""
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
            is_group = name.startswith(RETRY_PREFIX)
            if not allows(needed, account.default_group if is_group else account.default_topic):
                text = f"No default permission for {resource_told(name)}"
                return _refused(text, _CHECK % 57, "default permission", name, needed)
        elif not allows(needed, owned):
            text = f"No permission for {resource_told(name)}"
            return _refused(text, _CHECK % 62, "permission", name, needed)
    return Verdict("", PERMISSIONS)


def decide_besides(rules: Rules, asked: Asked, resources: Mapping[str, int], *, admin: bool, told: Verdict) -> Verdict:
    """Decide about a request that RocketMQ's rules let pass, and that needs more here than RocketMQ asks for.

    `resources`: the further permissions needed; `admin`: whether it needs an administrator; `told`: the decision by
    RocketMQ's rules, which is returned as it is if the account's permissions had no part in it.
    """
    account = rules.accounts.get(asked.ext.get("AccessKey", ""))
    if told.rule != PERMISSIONS or account is None or not (resources or admin):
        return told
    more = replace(asked, resources=resources)
    return _decide_by_permissions(account, more, frozenset((asked.code,)) if admin else frozenset())


def may(rules: Rules, address: str, access_key: str, resources: Mapping[str, int]) -> bool:
    """Return whether the broker may send an account something for which it needs these rights.

    `resources`: the needed rights (PUB, SUB) by the name of the topic or of the group's retry topic.
    """
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
    return any(allows(PUB, each) for each in owned)


def _of_topics(account: Account) -> Iterator[int]:
    return (each for name, each in account.resources.items() if not name.startswith(RETRY_PREFIX))


def _refused(text: str, place: str, rule: str, resource: str = "", needed: int = 0) -> Verdict:
    return Verdict(exception_text(text, place), rule, resource, needed)


def exception_text(text: str, place: str) -> str:
    """Return a remark in the form in which RocketMQ writes an exception: class, text, place."""
    return f"{_EXCEPTION}: {text}, {place}"
