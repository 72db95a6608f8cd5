"""What a console keeps while it runs: connections, sessions, samples, audit. Rule: nobody misses it afterwards."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from rocketspark.access.audit import Audit, Check, Decision
from rocketspark.console import databases
from rocketspark.console.cluster.kept_samples import KeptSamples
from rocketspark.console.cluster.pace import Pace
from rocketspark.console.cluster.sampler import Sampler
from rocketspark.console.cluster.streams import Streams
from rocketspark.console.cluster.view import ClusterView
from rocketspark.console.content.downloads import Downloads
from rocketspark.console.content.forms import Forms
from rocketspark.console.sessions import Attempts, Session, Sessions
from rocketspark.console.settings import ConsoleSettings
from rocketspark.errors import RocketSparkError
from rocketspark.model.text import shown

log = logging.getLogger("rocketspark.console")
TICK_S = 1.0
# Looks at messages with bodies that are under way at once; the others wait.
LOOKS_MAX = 4
# Bodies that are decoded by a schema at once, each with a compiler of its own perhaps.
DECODES_MAX = 2


class Console:
    """A running console. `own`: the cluster as the console's own keys show it, if it has any."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.pace = Pace(settings.requests_per_second)
        self.own = ClusterView(settings.namesrv, self.pace, settings.options)
        self.sessions, self.attempts = Sessions(), Attempts()
        kept = None
        if settings.samples_path:
            kept = KeptSamples(Path(settings.samples_path), settings.namesrv, settings.samples_max)
        self.sampler = Sampler(self.own, settings.sample_interval_s, settings.samples_max, kept)
        self.streams = Streams(settings.spark_streams)
        self.outboxes = databases.outboxes(settings.outbox)
        self.tables_of_ids = databases.tables_of_ids(settings.dedupe)
        # Pages that watch messages as they come.
        self.tails = 0
        self.downloads, self.forms = Downloads(), Forms()
        # Looks at messages with their bodies, each of which may hold STEP_BYTES_MAX of them.
        self.looking, self.decoding = asyncio.Semaphore(LOOKS_MAX), asyncio.Semaphore(DECODES_MAX)
        # Set at the end: answers that go on for long end with it.
        self.closing = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._audit: Audit | None = None
        if settings.audit_path:
            path = Path(settings.audit_path)
            self._audit = Audit({"server": "console"}, path, changes=(), what=lambda code, header, body: {})

    def start(self) -> None:
        """Begin to take samples. Raises StoreUnwritable if the audit cannot be written."""
        if self._audit is not None:
            self._audit.check()
        self.sampler.start()
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """End what runs, and close the connections."""
        self.closing.set()
        if self._ticking is not None:
            self._ticking.cancel()
        await self.sampler.close()
        for session in self.sessions.end_all():
            await session.view.close()
        await self.own.close()
        if self._audit is not None:
            self._audit.close()

    def view_of(self, access_key: str, secret_key: str) -> ClusterView:
        """Return the cluster as somebody's keys show it."""
        options = {**self.settings.tls_options, "access_key": access_key, "secret_key": secret_key}
        return ClusterView(self.settings.namesrv, self.pace, options)

    async def begin_session(self, name: str, view: ClusterView) -> str:
        """Keep a session; returns its cookie."""
        cookie, over = self.sessions.begin(Session(name, view))
        for session in over:
            await session.view.close()
        return cookie

    def refused_login(self, name: str, source: str, why: str) -> None:
        """Put a login that failed on record."""
        if self._audit is not None:
            self._audit.decided(
                Decision(Check.AUTHENTICATION, f"User:{name}", source, 0, "", (), False, "login", why, "login")
            )

    def changed(self, name: str, source: str, path: str, words: str, failed: str = "") -> None:
        """Record a change in the audit log.

        `words`: what it was, without a secret; `failed`: why it failed, "" if it did not.
        """
        if self._audit is not None:
            subject = f"User:{name}" if name else ""
            rule = "console" if name else "no login"
            who = Decision(Check.AUTHORIZATION, subject, source, 0, "", (), True, rule, call=f"POST {path}")
            self._audit.record(who, {"words": words}, failed)
        else:
            log.info("%s, by %s from %s: %s", words, name or "nobody known", source, failed or "done")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                if self._audit is not None:
                    self._audit.tick()
                for session in self.sessions.end_over():
                    await session.view.close()
            except (RocketSparkError, OSError) as e:
                log.warning("what is due every second: %s", shown(e))
