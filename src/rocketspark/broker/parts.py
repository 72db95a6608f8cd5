"""The parts of a broker in three groups, as handlers get them. Rule: a handler gets what it needs, never the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketspark.access.tables import AccessTables
from rocketspark.broker.consumers.assignments import RequestModes
from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.left_messages import LeftMessages
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.broker.topics import Topics
from rocketspark.store.store import Store
from rocketspark.transport.processor_table import Routes


class HasRoutes(Protocol):
    """A handler: it adds the requests that it serves to the broker's routes."""

    def routes(self, routes: Routes) -> None:
        """Add the requests that this handler serves."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of topics, groups, offsets and clients. `access`: users and rules; None without access control 2.0."""

    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    clients: ConnectedClients
    request_modes: RequestModes
    access: AccessTables | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """The parts that store and deliver messages: put, delay, timer, transaction, pop, and the quarantine.

    `left`: which messages left for another broker while this one acted for its master.
    """

    put_message: PutMessage
    delays: ScheduleMessages
    timers: TimerMessages
    timer_rules: TimerRules
    transactions: Transactions
    quarantine: Quarantine
    pops: InFlightMessages
    left: LeftMessages


@dataclass(frozen=True, slots=True)
class StoreReads:
    """The store and what its readers share: statistics, turns for long scans, and the second tier if there is one."""

    store: Store
    stats: Stats
    long_scans: LongScans
    tiering: Tiering | None
