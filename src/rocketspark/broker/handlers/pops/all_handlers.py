"""The handlers of POP requests, each with what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.handlers.pops.ack_message import AckHandler, Answers
from rocketspark.broker.handlers.pops.change_invisible_time import ChangeInvisibleTimeHandler
from rocketspark.broker.handlers.pops.lite_topics import LiteHandler
from rocketspark.broker.handlers.pops.notification import NotificationHandler
from rocketspark.broker.handlers.pops.peek_message import PeekHandler
from rocketspark.broker.handlers.pops.pop_message import PopHandler
from rocketspark.broker.operations.long_scans import LongScans
from rocketspark.broker.parts import HasRoutes, Tables
from rocketspark.broker.pop.pop_filter import PopFilters
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.pop.reading import PopReading
from rocketspark.broker.pop.requests import PopChecks
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.store.store import Store


def pop_handlers(
    settings: BrokerSettings,
    store: Store,
    tables: Tables,
    pops: Pops,
    filtering: BackgroundThread,
    durability: Durability,
    stats: Stats,
    scans: LongScans,
) -> Iterator[HasRoutes]:
    """Make the handlers. `filtering`: the thread that costly filters run in."""
    topics, offsets = tables.topics, tables.offsets
    in_flight, ordered, block_ends = pops.in_flight, pops.ordered, pops.block_ends
    checks, filters = PopChecks(settings, tables, in_flight), PopFilters(filtering)
    reading = PopReading(settings, store, tables, in_flight, ordered, block_ends, stats, LogMemory(settings, store))
    yield PopHandler(settings, checks, filters, reading, pops.waiting, in_flight, scans)
    yield PeekHandler(settings, checks, store, topics, reading, scans)
    waiting = pops.waiting, pops.notified
    yield NotificationHandler(settings, checks, filters, store, topics, reading, ordered, *waiting, scans)
    answers = Answers(durability)
    yield AckHandler(checks, store, offsets, in_flight, ordered, block_ends, answers, scans)
    yield ChangeInvisibleTimeHandler(checks, store, offsets, in_flight, ordered, block_ends, answers)
    yield LiteHandler()
