"""What subjects may do: entries of a Custom and a Default policy, and which of them decides about a request.

Rule (AclAuthorizationHandler, 5.5.0): of the Custom entries that match, else of the Default ones, the first decides:
a type before `*`, a name before a prefix before any, a longer prefix before a shorter one, then Deny before Allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rocketspark.access.resources import ALL, Resource, is_in

CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"


class PolicyEntry(msgspec.Struct, frozen=True):
    """One rule. `source_ips`: the addresses and networks for which it holds, none for all."""

    resource: Resource
    actions: tuple[str, ...]
    decision: str
    source_ips: tuple[str, ...] = ()

    def matches(self, kind: str, name: str, actions: Iterable[str], source_ip: str) -> bool:
        """Return whether the rule says something about any of these actions on a resource."""
        return (
            self.resource.matches(kind, name)
            and any(action in self.actions or ALL in self.actions for action in actions)
            and (not self.source_ips or any(is_in(source_ip, network) for network in self.source_ips))
        )

    @property
    def order(self) -> tuple[bool, int, int, bool]:
        """Where it stands among those that match."""
        return (*self.resource.order, self.decision != DENY)


class Policy(msgspec.Struct, frozen=True):
    """Rules of one type."""

    type: str
    entries: tuple[PolicyEntry, ...]


class Acl(msgspec.Struct, frozen=True):
    """What one user may do: at most one policy of each type."""

    policies: tuple[Policy, ...] = ()

    def deciding(self, kind: str, name: str, actions: Sequence[str], source_ip: str) -> tuple[str, PolicyEntry] | None:
        """Return the entry that decides, with the type of its policy; None if no entry matches."""
        for wanted in (CUSTOM, DEFAULT):
            for policy in self.policies:
                if policy.type != wanted:
                    continue
                matching = [entry for entry in policy.entries if entry.matches(kind, name, actions, source_ip)]
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
        """Return these rules, all of them: of several for one resource the evaluation's order picks."""
        table: dict[str, tuple[PolicyEntry, ...]] = {}
        for policy in policies:
            table[policy.type] = table.get(policy.type, ()) + policy.entries
        return cls(tuple(Policy(kind, entries) for kind, entries in table.items()))

    def updated(self, policies: Iterable[Policy]) -> Acl:
        """Return it with these rules: one for the same resource is replaced where it stands, others are added."""
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
        """Return it without the rule for a resource; a policy without rules goes too."""
        left = []
        for policy in self.policies:
            entries = policy.entries
            if policy.type == policy_type:
                entries = tuple(entry for entry in entries if entry.resource != resource)
                if not entries:
                    continue
            left.append(Policy(policy.type, entries))
        return Acl(tuple(left))
