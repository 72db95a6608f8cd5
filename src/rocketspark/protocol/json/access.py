"""JSON bodies of users and of what they may do (access control 2.0). Rule: nothing shows a password by itself."""

from __future__ import annotations

from rocketspark.protocol.json.bodies import Body


class UserInfo(Body, omit_defaults=True):
    """A user. None: not said, which keeps the value in an update.

    `user_type`: Super or Normal; `user_status`: enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        hidden = None if self.password is None else "…"
        return (
            f"UserInfo(username={self.username!r}, password={hidden!r}, user_type={self.user_type!r},"
            f" user_status={self.user_status!r})"
        )


class PolicyEntryInfo(Body, omit_defaults=True):
    """One rule of a policy.

    `resource`: Topic:x, Group:x, Cluster:x or *, where x may end in * or be one; `actions`: All, Pub, Sub, Create,
    Update, Delete, Get, List; `source_ips`: addresses or networks, none for any; `decision`: Allow or Deny.
    """

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body, omit_defaults=True):
    """Rules of one type: Custom, or Default, which is asked where no custom rule fits."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, omit_defaults=True):
    """What a subject, "User:name", may do."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
