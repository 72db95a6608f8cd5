"""Users and rules as the brokers have them, fetched anew again and again.

Rule: they are fetched whole, so that unknown names cost the brokers nothing; what no broker confirmed for
`life_s` counts no more, and everybody is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rocketspark.access import wire_forms
from rocketspark.access.policies import Acl
from rocketspark.access.users import User
from rocketspark.client.connection import access_api
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.brokers import Brokers

log = LimitedLog("rocketspark.proxy")

# A user who is not known may have been made just now.
LOOK_AGAIN_S = 1.0


class FetchedTables:
    """`users`, `acls`: by user name. `changed`: called after each change. `life_s`: rule: userCacheExpiredSecond."""

    def __init__(self, brokers: Brokers, refresh_s: float, life_s: float = 300.0) -> None:
        self._brokers, self._refresh_s, self._life_s = brokers, refresh_s, life_s
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.changed: Callable[[], None] = lambda: None
        # When the tables were confirmed, and when that was tried last.
        self._fetched_s = self._tried_s = -float("inf")
        self._task: asyncio.Task[None] | None = None

    async def fresh(self, username: str | None = None) -> None:
        """Wait until the tables are as fresh as they can be had; sooner for a user who is not in them."""
        limit_s = self._refresh_s
        if username is not None and username not in self.users:
            limit_s = min(limit_s, LOOK_AGAIN_S)
        if time.monotonic() - self._tried_s < limit_s:
            if self._task is not None and not self.users:
                await asyncio.shield(self._task)
            return
        if self._task is None or self._task.done():
            self._tried_s = time.monotonic()
            self._task = asyncio.ensure_future(self._fetch())
        await asyncio.shield(self._task)

    async def _fetch(self) -> None:
        why: object = "no broker is known"
        try:
            for address in await self._brokers.masters():
                try:
                    broker = await self._brokers.peer_at(address)
                    users = wire_forms.users_from(await access_api.list_users(broker))
                    acls = wire_forms.acls_from(await access_api.list_acls(broker))
                except RocketSparkError as e:
                    why = e
                    continue
                self._fetched_s = time.monotonic()
                self._take(users, acls)
                return
        except RocketSparkError as e:
            why = e
        except Exception as e:
            log.exception("users and rules could not be fetched")
            why = e
        log.warning("users and rules could not be fetched: %s", why)
        if time.monotonic() - self._fetched_s > self._life_s:
            self._take({}, {})

    def _take(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        if users != self.users or acls != self.acls:
            self.users, self.acls = users, acls
            self.changed()

    def close(self) -> None:
        """Fetch no more."""
        if self._task is not None:
            self._task.cancel()
