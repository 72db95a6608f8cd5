"""What arrives at a slave: its master's messages become readable, its tables change what the store knows of topics."""

from __future__ import annotations

import asyncio

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages import batch_queue_topics
from rocketspark.broker.parts import Tables
from rocketspark.broker.replication.tables.slave_synchronize import SlaveSynchronize, StoreSide
from rocketspark.errors import StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker.replication")

DISPATCH_RETRY_S = 1.0


class Arrivals:
    """`synchronize`: what follows the master's tables, once it is made."""

    def __init__(self, store: Store, tables: Tables, long_polling: LongPolling) -> None:
        self._store = store
        self._tables = tables
        self._long_polling = long_polling
        self.synchronize: SlaveSynchronize | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def close(self) -> None:
        """Look at nothing more."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def appended(self) -> None:
        """Make what came readable, and wake who waits for it."""
        store = self._store
        if self._closing or not store.log.is_replica:
            return
        try:
            store.dispatch_received()
        except StoreError as e:
            log.warning("what came from the master cannot be read yet, tried again: %s", e)
            self._try_again()
        except Exception:
            # After any error: else nothing would be looked at until more comes.
            log.exception("what came from the master cannot be read yet, tried again")
            self._try_again()
        for topic, queue_id, _ in store.take_arrived():
            self._long_polling.mark(topic, queue_id)
            if topic not in self._tables.topics.table and self.synchronize is not None:
                # A new topic: its settings should be here before the master can be gone.
                self.synchronize.look()

    def _try_again(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DISPATCH_RETRY_S, self._again)

    def _again(self) -> None:
        self._timer = None
        self.appended()

    def store_side(self) -> StoreSide:
        """Return what the store hears of the master's tables."""
        return StoreSide(
            log_end=lambda: self._store.written_position,
            topics_taken=self._topics_taken,
            topics_gone=self._topics_gone,
            deleted_topics=self._store.take_deletions,
        )

    def _topics_taken(self, topics: list[TopicConfig]) -> None:
        for topic in batch_queue_topics.batch_topics(topics):
            self._store.make_batch_topic(topic)

    def _topics_gone(self, names: list[str]) -> None:
        for name in names:
            try:
                self._store.delete_topic(name)
            except StoreError as e:
                log.warning("topic %s is deleted at the master, but not here: %s", name, e)
