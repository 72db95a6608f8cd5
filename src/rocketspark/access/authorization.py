"""What a user may do (rule: UserAuthorizationHandler, AclAuthorizationHandler, 5.5.0).

Answers are kept until a change of the tables. Which rule decides: `policies`.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.access.policies import ALLOW
from rocketspark.access.request_contexts import Context
from rocketspark.access.tables import Tables, subject_of

FAILED = "Authorization failed. Please verify your access rights and try again."

# Answers about longer names are not kept: requests may hold a MiB of them.
KEPT_CHARACTERS_MAX = 512


class Verdict(NamedTuple):
    """The answer to whether a user may do something. `remark`: why not, None if he may; `rule`: the rule that
    decided.
    """

    remark: str | None
    rule: str


class Authorization:
    """Decides what users may do, by the tables of users and rules.

    `users`, `acls`: the tables that hold them, None where its provider is not configured; `kept_max`: how many answers
    are kept.
    """

    def __init__(self, users: Tables | None, acls: Tables | None, *, kept_max: int) -> None:
        self._users = users
        self._acls = acls
        self._kept_max = kept_max
        self._kept: dict[tuple[str | None, Context, str], Verdict] = {}
        # Requests that were allowed whole: code, user, source and what names their resources.
        self.allowed: set[tuple[str | int | None, ...]] = set()

    def forget(self) -> None:
        """Forget all answers that are kept, as users or rules have changed."""
        self._kept.clear()
        self.allowed.clear()

    def keep_allowed(self, request: tuple[str | int | None, ...]) -> None:
        """Note that a request was allowed, so that equal ones pass unchecked until the next change; one with long names
        is not kept.
        """
        if sum(len(part) for part in request if isinstance(part, str)) > KEPT_CHARACTERS_MAX:
            return
        if len(self.allowed) >= self._kept_max:
            self.allowed.clear()
        self.allowed.add(request)

    def verdict(self, username: str | None, context: Context, source_ip: str) -> Verdict:
        """Decide whether a user may do what `context` says; `username` is None for a request without a user."""
        key = (username, context, source_ip)
        found = self._kept.get(key)
        if found is None:
            found = self._decide(username, context, source_ip)
            if len(context.name) + len(username or "") > KEPT_CHARACTERS_MAX:
                return found
            if len(self._kept) >= self._kept_max:
                self._kept.clear()
            self._kept[key] = found
        return found

    def is_super(self, username: str) -> bool:
        """Return whether a user may do everything."""
        user = self._users.users.get(username) if self._users is not None else None
        return user is not None and user.is_enabled and user.is_super

    def may_somewhere(self, username: str, kind: str, action: str, source_ip: str) -> bool:
        """Tell whether a user may do `action` to at least one resource of a kind (topics, groups)."""
        if self._users is None or self._acls is None or self.is_super(username):
            return self.is_super(username)
        user, acl = self._users.users.get(username), self._acls.acls.get(username)
        return bool(user and user.is_enabled and acl and acl.allows_somewhere(kind, action, source_ip))

    def _decide(self, username: str | None, context: Context, source_ip: str) -> Verdict:
        if username is None:
            return Verdict(FAILED, "unsigned")
        if self._users is None:
            return Verdict("The authenticationMetadataProvider is not configured", "not configured")
        user = self._users.users.get(username)
        if user is None:
            return Verdict(f"User:{username} not found.", "unknown user")
        if not user.is_enabled:
            return Verdict(f"User:{username} is disabled.", "disabled user")
        if user.is_super:
            return Verdict(None, "super user")
        if self._acls is None:
            return Verdict("The authorizationMetadataProvider is not configured", "not configured")
        acl = self._acls.acls.get(username)
        deciding = acl and acl.deciding(context.kind, context.name, context.actions, source_ip)
        if deciding:
            policy_type, entry = deciding
            rule = f"{policy_type} {entry.resource.key} {entry.decision}"
            if entry.decision == ALLOW:
                return Verdict(None, rule)
            why = "the decision is deny."
        else:
            rule, why = "no matching rule", "no matched policies."
        refused = f"{subject_of(username)} has no permission to access {context.key} from {source_ip}, "
        return Verdict(refused + why, rule)
