"""Who is at the other side: a random cookie, and behind it the keys of somebody who logged in.

Rule: keys stay in this process and never leave it but as signatures; the cookie says nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from typing import Any

from rocketspark import machine
from rocketspark.console.cluster.view import ClusterView

COOKIE = "rocketspark_console"
IDLE_S, LIFE_S = 30 * 60.0, 12 * 3600.0
SESSIONS_MAX, SESSIONS_OF_ONE_MAX = 500, 50
NOTES_MAX = 1000
# Failed logins in a minute: of one address, and of all.
PERIOD_S = 60.0
ATTEMPTS_OF_HOST_MAX, ATTEMPTS_MAX = 5, 50
HOSTS_MAX = 1000


class Session:
    """Somebody who logged in: his name, and the cluster as his keys show it."""

    def __init__(self, name: str, view: ClusterView) -> None:
        self.name, self.view = name, view
        self.began_s = self.seen_s = machine.monotonic()

    def is_over(self) -> bool:
        """Tell whether it is too old, or nobody used it for too long."""
        now = machine.monotonic()
        return now - self.seen_s > IDLE_S or now - self.began_s > LIFE_S


class Sessions:
    """The sessions of a console, by the cookie's value."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[str, Session] = OrderedDict()
        # Sentences that the next page of a cookie shows.
        self._notes: OrderedDict[str, str] = OrderedDict()

    def token(self, cookie: str) -> str:
        """Return the token that forms of the cookie's pages bring back."""
        return hmac.new(self._secret, cookie.encode(), hashlib.sha256).hexdigest()

    def find(self, cookie: str, *, used: bool = True) -> Session | None:
        """Return the session of a cookie, if somebody logged in with it. `used`: he did something: it goes on."""
        session = self._known.get(cookie)
        if session is None or session.is_over():
            return None
        if used:
            session.seen_s = machine.monotonic()
        return session

    def holds(self, cookie: str, session: Session) -> bool:
        """Tell whether a session goes on; unlike `find` that is no use of it."""
        return self._known.get(cookie) is session and not session.is_over()

    def begin(self, session: Session) -> tuple[str, list[Session]]:
        """Keep a session; returns its new cookie, and sessions that ended, whose views are to be closed."""
        cookie = new_cookie()
        self._known[cookie] = session
        ended = self.end_over()
        # Who logs in again and again ends his own: the others stay logged in.
        his = [each for each, known in self._known.items() if known.name == session.name]
        ended += [self._known.pop(each) for each in his[:-SESSIONS_OF_ONE_MAX]]
        while len(self._known) > SESSIONS_MAX:
            ended.append(self._known.popitem(last=False)[1])
        return cookie, ended

    def end_over(self) -> list[Session]:
        """Forget the sessions that are over and return them: their views hold keys and connections."""
        over = [each for each, known in self._known.items() if known.is_over()]
        return [self._known.pop(each) for each in over]

    def end(self, cookie: str) -> Session | None:
        """Forget a session and return it."""
        return self._known.pop(cookie, None)

    def end_all(self) -> list[Session]:
        """Forget all sessions and return them."""
        ended = list(self._known.values())
        self._known.clear()
        return ended

    def note(self, cookie: str, text: str) -> None:
        """Keep a sentence for the next page."""
        self._notes[cookie] = text
        while len(self._notes) > NOTES_MAX:
            self._notes.popitem(last=False)

    def take_note(self, cookie: str) -> str:
        """Return the sentence for this page, "" without one."""
        return self._notes.pop(cookie, "")


class Attempts:
    """How many logins failed, of each address and in all, so that nobody tries keys in turn."""

    def __init__(self) -> None:
        self._all: deque[float] = deque()
        self._hosts: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, host: str) -> int:
        """Return in how many seconds this address may try again; 0: now."""
        now = machine.monotonic()
        left = 0.0
        for times, most in ((self._hosts.get(host), ATTEMPTS_OF_HOST_MAX), (self._all, ATTEMPTS_MAX)):
            while times and times[0] <= now - PERIOD_S:
                times.popleft()
            if times and len(times) >= most:
                left = max(left, times[0] + PERIOD_S - now)
        return int(left) + 1 if left else 0

    def failed(self, host: str) -> None:
        """Count a login that failed."""
        now = machine.monotonic()
        self._all.append(now)
        self._hosts.setdefault(host, deque()).append(now)
        while len(self._hosts) > HOSTS_MAX:
            self._hosts.popitem(last=False)

    def succeeded(self, host: str) -> None:
        """Take back a login that was counted as failed before the cluster answered."""
        for times in (self._all, self._hosts.get(host)):
            if times:
                times.pop()


def new_cookie() -> str:
    """Return the value of a new cookie."""
    return secrets.token_urlsafe(32)


def is_cookie(value: Any) -> bool:
    """Tell whether a text can be a cookie that the console gave."""
    return isinstance(value, str) and len(value) == 43 and value.replace("-", "").replace("_", "").isalnum()
