"""Rules: what they name, and which of them decides about a request.

Resources, actions and addresses are read from their texts (rule: Resource, Action, Environment, 5.5.0): `Topic:orders`
names one topic, `Topic:orders*` all that begin so, `Topic:*` all topics, `*` everything there is.

Of the Custom entries that match a request, else of the Default ones, the first decides (rule:
AclAuthorizationHandler, 5.5.0): a type before `*`, a name before a prefix before any, a longer prefix before a shorter
one, then Deny before Allow."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec

from rocketspark.model.namespace import RETRY_PREFIX

TOPIC, GROUP, CLUSTER, ANY_TYPE = "Topic", "Group", "Cluster", "Any"
_TYPES = {name.lower(): name for name in ("Unknown", ANY_TYPE, CLUSTER, "Namespace", TOPIC, GROUP)}
ALL, ANY = "All", "Any"
PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"
_ACTIONS = {name.lower(): name for name in ("Unknown", ALL, ANY, PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)}

_PREFIX_BITS = re.compile("[0-9]{1,3}")
# Before the address in an IPv4 address that is written as IPv6.
_MAPPED_BITS = 96
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Pattern(IntEnum):
    """How a rule names resources; the lower one goes before the higher one."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class Resource(NamedTuple):
    """What a rule is about: topics, groups or clusters. `name`: without the asterisk, None for any name."""

    type: str
    name: str | None
    pattern: Pattern

    @property
    def key(self) -> str:
        """The resource as rules write it, such as `Topic:orders*`."""
        if self.type == ANY_TYPE:
            return "*"
        return f"{self.type}:{self.name or ''}{'' if self.pattern is Pattern.LITERAL else '*'}"

    def matches(self, kind: str, name: str) -> bool:
        """Tell whether the rule is about this topic, group or cluster."""
        if self.type == ANY_TYPE:
            return True
        if self.type != kind:
            return False
        if self.pattern is Pattern.ANY:
            return True
        assert self.name is not None
        return name == self.name if self.pattern is Pattern.LITERAL else name.startswith(self.name)

    @property
    def order(self) -> tuple[bool, int, int]:
        """A sort key: of the rules that match a request, one about a more exact resource sorts first."""
        length = len((self.name or "").encode("utf-16-le", "surrogatepass")) if self.pattern is Pattern.PREFIXED else 0
        return self.type == ANY_TYPE, int(self.pattern), -length


def parse_resource(text: str | None) -> Resource | None:
    """Return the resource of a text; None for a text that names none."""
    if text is None or not text.strip():
        return None
    if text == "*":
        return Resource(ANY_TYPE, None, Pattern.ANY)
    kind, _, name = text.partition(":")
    known = _TYPES.get(kind.lower())
    if known is None:
        return None
    if name == "*":
        return Resource(known, None, Pattern.ANY)
    if name.endswith("*"):
        return Resource(known, name.partition("*")[0], Pattern.PREFIXED)
    return Resource(known, name, Pattern.LITERAL)


def parse_action(text: str | None) -> str | None:
    """Return the action of a text, None for one that is unknown."""
    return _ACTIONS.get((text or "").lower())


def bare_group(name: str) -> str:
    """Return the group of a retry topic, or the name as it is; no group's name holds the "+" of a pop's retry topic."""
    return name[len(RETRY_PREFIX) :].partition("+")[0] if name.startswith(RETRY_PREFIX) else name


def is_retry_topic(name: str) -> bool:
    """Return whether a topic holds the retries of a group."""
    return name.startswith(RETRY_PREFIX)


@lru_cache(maxsize=1024)
def parse_network(text: str) -> Network | None:
    """Return the network that `1.2.3.4`, `1.2.0.0/16` or the like of IPv6 names; None for any other text."""
    address, slash, bits = text.partition("/")
    if slash and not _PREFIX_BITS.fullmatch(bits):
        return None
    try:
        found = parse_address(address)
        if slash and found is not None and found.version == 4 and ":" in address and int(bits) >= _MAPPED_BITS:
            bits = str(int(bits) - _MAPPED_BITS)
        return None if found is None else ipaddress.ip_network(f"{found}/{bits}" if slash else str(found), strict=False)
    except ValueError:
        return None


def parse_address(text: str) -> Address | None:
    """Return an address; an IPv4 address written as IPv6 is returned as IPv4. None for any other text."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@lru_cache(maxsize=4096)
def is_in(address: str, network: str) -> bool:
    """Tell whether an address is in a network. IPv4 and IPv6 addresses are never in each other's networks."""
    one, many = parse_address(address), parse_network(network)
    if one is None or many is None:
        return False
    return one.version == many.version and one in many


CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"


class PolicyEntry(msgspec.Struct, frozen=True):
    """One rule. `source_ips`: the addresses and networks of the senders for whom it counts; empty: all."""

    resource: Resource
    actions: tuple[str, ...]
    decision: str
    source_ips: tuple[str, ...] = ()

    def matches(self, kind: str, name: str, actions: Iterable[str], source_ip: str) -> bool:
        """Tell whether the rule decides about one of these actions on a resource, for a sender with this address."""
        return (
            self.resource.matches(kind, name)
            and any(action in self.actions or ALL in self.actions for action in actions)
            and (not self.source_ips or any(is_in(source_ip, network) for network in self.source_ips))
        )

    @property
    def order(self) -> tuple[bool, int, int, bool]:
        """A sort key: of the rules that match a request, the first in this order decides."""
        return (*self.resource.order, self.decision != DENY)


class Policy(msgspec.Struct, frozen=True, dict=True):
    """The rules of one type, Custom or Default."""

    type: str
    entries: tuple[PolicyEntry, ...]

    @cached_property
    def _by_resource(self) -> dict[tuple[str, str | None, Pattern], list[PolicyEntry]]:
        found: dict[tuple[str, str | None, Pattern], list[PolicyEntry]] = {}
        for entry in self.entries:
            kind, name, pattern = entry.resource
            key = (ANY_TYPE, None, Pattern.ANY) if kind == ANY_TYPE else (kind, name, pattern)
            found.setdefault(key, []).append(entry)
        return found

    @cached_property
    def _prefix_lengths(self) -> list[int]:
        named = (entry.resource for entry in self.entries)
        return sorted({len(one.name or "") for one in named if one.pattern is Pattern.PREFIXED})

    def about(self, kind: str, name: str) -> Iterator[PolicyEntry]:
        """Yield the rules that are about a resource; they are looked up, as a request may name 40,000 topics and a user
        have many rules.
        """
        rules = self._by_resource
        for key in ((ANY_TYPE, None, Pattern.ANY), (kind, None, Pattern.ANY), (kind, name, Pattern.LITERAL)):
            yield from rules.get(key, ())
        for length in self._prefix_lengths:
            if length > len(name):
                break
            yield from rules.get((kind, name[:length], Pattern.PREFIXED), ())


class Acl(msgspec.Struct, frozen=True):
    """The rules of one user: at most one policy of each type."""

    policies: tuple[Policy, ...] = ()

    def deciding(self, kind: str, name: str, actions: Sequence[str], source_ip: str) -> tuple[str, PolicyEntry] | None:
        """Return the rule that decides about a request, with the type of its policy; None if no rule matches."""
        for wanted in (CUSTOM, DEFAULT):
            for policy in self.policies:
                if policy.type != wanted:
                    continue
                matching = [e for e in policy.about(kind, name) if e.matches(kind, name, actions, source_ip)]
                if matching:
                    return wanted, min(matching, key=lambda entry: entry.order)
        return None

    def allows_somewhere(self, kind: str, action: str, source_ip: str) -> bool:
        """Return whether any rule allows an action on some resource of a kind."""
        return any(
            entry.decision == ALLOW and entry.matches(kind, entry.resource.name or "", (action,), source_ip)
            for policy in self.policies
            for entry in policy.entries
        )

    @classmethod
    def of(cls, policies: Iterable[Policy]) -> Acl:
        """Return an Acl of all these rules, also of several for one resource: their order decides between them."""
        table: dict[str, tuple[PolicyEntry, ...]] = {}
        for policy in policies:
            table[policy.type] = table.get(policy.type, ()) + policy.entries
        return cls(tuple(Policy(kind, entries) for kind, entries in table.items()))

    def updated(self, policies: Iterable[Policy]) -> Acl:
        """Return this Acl with more rules: a rule for the same resource is replaced in its place, others are added."""
        table = {policy.type: list(policy.entries) for policy in self.policies}
        for policy in Acl.of(policies).policies:
            if policy.type not in table:
                table[policy.type] = list(policy.entries)
                continue
            entries = table[policy.type]
            for entry in policy.entries:
                at = next((i for i, old in enumerate(entries) if old.resource == entry.resource), None)
                if at is None:
                    entries.append(entry)
                else:
                    entries[at] = entry
        return Acl(tuple(Policy(kind, tuple(entries)) for kind, entries in table.items()))

    def without(self, policy_type: str, resource: Resource) -> Acl:
        """Return this Acl without the rule for a resource, and without the policy if it has no rules left."""
        left = []
        for policy in self.policies:
            entries = policy.entries
            if policy.type == policy_type:
                entries = tuple(entry for entry in entries if entry.resource != resource)
                if not entries:
                    continue
            left.append(Policy(policy.type, entries))
        return Acl(tuple(left))
