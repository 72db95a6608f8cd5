"""Checks that a request was signed by the user whom it names (rule: DefaultAuthenticationHandler, 5.5.0).

Stateless: every request's signature is checked. Stateful: the first good one of a user on a connection counts for some
time; it ends at once if the user changes. A bad one, and one that was let through by a whitelist, is never remembered.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rocketspark import machine
from rocketspark.access.tables import Tables, User
from rocketspark.protocol.request_signing import ACCESS_KEY, is_recent, is_signature, is_signed_with, is_too_old
from rocketspark.transport.processor_table import ReceivedRequest

# Users of one connection; more are checked each time.
REMEMBERED_MAX = 16


class Remembered(msgspec.Struct, frozen=True):
    """A user, as he was when a signature of his was good on a connection. `until_s`: how long it counts, by the loop's
    clock.
    """

    user: User
    until_s: float


class Authentication:
    """Checks signatures by the table of users; without a table it refuses everybody.

    `remember_s`: for how long a good signature counts on its connection; 0: each request's is checked. `age_max_ms`:
    how old a signature that tells its time may be; 0: of any age. `now_s`, `now_ms`: the clocks.
    """

    def __init__(
        self,
        tables: Tables | None,
        *,
        remember_s: float,
        now_s: Callable[[], float],
        age_max_ms: int = 0,
        now_ms: Callable[[], int] = lambda: machine.time_ns() // 1_000_000,
    ) -> None:
        self._tables = tables
        self._remember_s = remember_s
        self._now_s = now_s
        self._age_max_ms = age_max_ms
        self._now_ms = now_ms

    def refusal(self, request: ReceivedRequest) -> str | None:
        """Return why it is not certain that the request is from the user whom it names; None if it is."""
        if self._tables is None:
            return "The authenticationMetadataProvider is not configured"
        username = request.ext.get(ACCESS_KEY)
        if not username:
            return "username cannot be null."
        user = self._tables.users.get(username)
        if user is None:
            return f"User:{username} is not found."
        if not user.is_enabled:
            return f"User:{username} is disabled."
        if self._remember_s and self._is_remembered(request, user):
            return None
        if not is_signed_with(user.password.encode(), request.ext, request.body, request.version):
            return "check signature failed."
        if is_too_old(request.ext, self._now_ms(), self._age_max_ms):
            return "the signature is too old."
        if self._remember_s:
            self._remember(request, user)
        return None

    def knows(self, username: str) -> bool:
        """Tell whether a user is known and enabled."""
        user = None if self._tables is None else self._tables.users.get(username)
        return user is not None and user.is_enabled

    @property
    def looks_at_each(self) -> bool:
        """Tell whether every request's signature is checked, rather than the first of a connection."""
        return not self._remember_s

    def counts(self, request: ReceivedRequest, user: User) -> bool:
        """Tell whether a user is unchanged and enabled, and, where one signature counts for a time, whether that time
        lasts.
        """
        if not user.is_enabled or self.user_of(request) is not user:
            return False
        return self.looks_at_each or self._is_remembered(request, user)

    def user_of(self, request: ReceivedRequest) -> User | None:
        """Return the user whom a request names as its sender; None if it names nobody who is known."""
        return None if self._tables is None else self._tables.users.get(request.ext.get(ACCESS_KEY, ""))

    def is_good(
        self, user: User, content: bytes, body: bytes | memoryview, signature: bytes, signed_ms: int | None
    ) -> bool:
        """Tell whether a signature is the user's, and not too old; `signed_ms`: when it was made, None if the request
        does not tell.
        """
        if not is_signature(signature, user.password.encode(), content, body):
            return False
        return not (signed_ms and self._age_max_ms) or is_recent(signed_ms, self._now_ms(), self._age_max_ms)

    def _is_remembered(self, request: ReceivedRequest, user: User) -> bool:
        known = (request.peer.gate_notes or {}).get(user.username)
        # The tables make a new user of each change.
        return known is not None and known.user is user and self._now_s() < known.until_s

    def _remember(self, request: ReceivedRequest, user: User) -> None:
        notes = request.peer.gate_notes
        if notes is None:
            notes = request.peer.gate_notes = {}
        if len(notes) < REMEMBERED_MAX or user.username in notes:
            notes[user.username] = Remembered(user, self._now_s() + self._remember_s)
