"""Users: who may sign, and with what. Rule: nothing shows a password by itself."""

from __future__ import annotations

import msgspec

SUPER, NORMAL = "Super", "Normal"
ENABLE, DISABLE = "enable", "disable"
SUBJECT_PREFIX = "User:"


class User(msgspec.Struct, frozen=True):
    """A user. A Super one may do everything."""

    username: str
    password: str
    user_type: str = NORMAL
    user_status: str = ENABLE

    @property
    def is_super(self) -> bool:
        """True for one who may do everything."""
        return self.user_type == SUPER

    @property
    def is_enabled(self) -> bool:
        """False for one who is refused."""
        return self.user_status != DISABLE

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type}, {self.user_status})"


def user_type_of(text: str | None) -> str | None:
    """Return the type that a text names, None for any other text."""
    return {"super": SUPER, "normal": NORMAL}.get((text or "").lower())


def user_status_of(text: str | None) -> str | None:
    """Return the status that a text names, None for any other text."""
    return {"enable": ENABLE, "disable": DISABLE}.get((text or "").lower())


def subject_of(username: str) -> str:
    """Return a user as rules name him."""
    return f"{SUBJECT_PREFIX}{username}"


def username_of(subject: str | None) -> str | None:
    """Return the user that a subject names; None for a subject of another type."""
    kind, _, name = (subject or "").partition(":")
    return name if kind.lower() == "user" else None
