"""The users, their rules by user name, and the file both are kept in.

Rule: a change is answered once the whole file is on the disk; nothing shows a password by itself.

A change is written first (a new file of mode 0600, on the disk before it takes the old one's place) and counts from
then on; if it cannot be written, nothing has changed. There is no `.bak`, as it would still hold users who have been
removed. With a file that cannot be read the server does not start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from rocketspark.access.policies import Acl
from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.store.files import config_files

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
        """True for a user who may do everything, whatever the rules say."""
        return self.user_type == SUPER

    @property
    def is_enabled(self) -> bool:
        """False for a user whose requests are all refused."""
        return self.user_status != DISABLE

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type}, {self.user_status})"


def user_type_of(text: str | None) -> str | None:
    """Return the type of user that a text names; None for any other text."""
    return {"super": SUPER, "normal": NORMAL}.get((text or "").lower())


def user_status_of(text: str | None) -> str | None:
    """Return the status of a user that a text names; None for any other text."""
    return {"enable": ENABLE, "disable": DISABLE}.get((text or "").lower())


def subject_of(username: str) -> str:
    """Return the subject by which rules name a user, "User:name"."""
    return f"{SUBJECT_PREFIX}{username}"


def username_of(subject: str | None) -> str | None:
    """Return the name of the user that a subject names; None for a subject that is no user."""
    kind, _, name = (subject or "").partition(":")
    return name if kind.lower() == "user" else None


T = TypeVar("T")

FILE_NAME = "accessControl.json"
VERSION = 1
MODE = 0o600


class Tables(Protocol):
    """Users and rules by user name, from whatever source."""

    users: dict[str, User]
    acls: dict[str, Acl]


class AccessFile(msgspec.Struct, frozen=True):
    """The content of the file: users and rules by user name."""

    version: int
    users: dict[str, User]
    acls: dict[str, Acl]


class AccessTables:
    """Users and rules by user name, kept in a file. A change replaces the tables as a whole, so that readers never see
    half of it.

    `changed`: called after each change; `narrowed`: after one that may have taken something from a user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.changed: Callable[[], None] = lambda: None
        self.narrowed: Callable[[], None] = lambda: None

    def load(self) -> None:
        """Read the file. Raises ConfigError for one that is broken or of a newer program."""
        text = config_files.read_whole(str(self._path))
        if text is None:
            return
        config_files.check_version(str(self._path), VERSION)
        try:
            found = typed_json.decode(text, AccessFile)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise ConfigError(
                f"{self._path} cannot be read: {e}; bring back an older copy of it, or remove it to begin without users"
            ) from None
        self.users, self.acls = found.users, found.acls
        self.changed()

    def replace(self, users: dict[str, User], acls: dict[str, Acl]) -> bool:
        """Replace both tables, in the file and here; False if they are the same already. Raises StoreFull or
        StoreUnwritable.
        """
        if users == self.users and acls == self.acls:
            return False
        text = msgspec.json.format(msgspec.json.encode(AccessFile(VERSION, users, acls)), indent=1).decode()
        config_files.write(str(self._path), text, keep_before=False, mode=MODE)
        only_added = _has_all(users, self.users) and _has_all(acls, self.acls)
        self.users, self.acls = users, acls
        self.changed()
        if not only_added:
            self.narrowed()
        return True

    def put_user(self, user: User) -> None:
        """Create or change a user."""
        self.replace(self.users | {user.username: user}, self.acls)

    def delete_user(self, username: str) -> None:
        """Remove a user and his rules."""
        self.replace(_without(self.users, username), _without(self.acls, username))

    def put_acl(self, username: str, acl: Acl) -> None:
        """Set the rules of a user."""
        self.replace(self.users, self.acls | {username: acl})

    def delete_acl(self, username: str) -> None:
        """Remove the rules of a user."""
        self.replace(self.users, _without(self.acls, username))


def _has_all(table: dict[str, T], before: dict[str, T]) -> bool:
    return all(table.get(name) == value for name, value in before.items())


def _without(table: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in table.items() if key != name}
