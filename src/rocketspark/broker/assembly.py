"""Makes the tables of a broker from their files, and the parts that store and deliver its messages.

Rule: nothing runs yet when these functions return."""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.access.tables import AccessTables
from rocketspark.broker import topic_names
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.assignments import FILE_NAME as REQUEST_MODES
from rocketspark.broker.consumers.assignments import RequestModes
from rocketspark.broker.consumers.connected_clients import ConnectedClients, ConsumerGroup
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.light_offsets import USUAL, OffsetFiles
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.consumers.readers_anew import FILE_NAME as READERS_ANEW
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.messages.schedule_messages import ScheduleMessages, encode_delay_offsets
from rocketspark.broker.messages.send_rules import MessageSettings, SendRules
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.messages.timers.timer_rules import TimerRules
from rocketspark.broker.messages.transactions.half_messages import CheckLimits
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.static_topics.mappings import FILE_NAME as STATIC_TOPICS
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import ConfigFolder, SaveFailures
from rocketspark.broker.storage.left_messages import LeftMessages
from rocketspark.broker.topics import Topics
from rocketspark.protocol.json.bodies import (
    DelayOffsetTable,
    GroupConfigTable,
    OffsetTable,
    QuarantineTable,
    ReadersTable,
    TopicConfigTable,
)
from rocketspark.protocol.json.metadata import RequestModeTable
from rocketspark.protocol.json.static_topics import MappingTable
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store.store import Store
from rocketspark.store.timers.timer_files import TimerFiles


def make_tables(
    s: BrokerSettings,
    config: ConfigFolder,
    access: AccessTables | None,
    *,
    soon: Callable[..., object],
    beside: BackgroundThread,
    notify: Callable[[ConsumerGroup], None],
) -> Tables:
    """Make the broker's tables (topics, groups, offsets, clients) and load what their files hold.

    `soon`: runs a function in the loop's next turn, so that all changes of one turn are saved together. `beside`: the
    thread that writes the files. `notify`: tells the members of a consumer group that a member came or went. Raises
    ConfigError for a file that cannot be read.
    """
    statics = StaticTopics(s.broker_name, config.file(STATIC_TOPICS, MappingTable))
    topics = Topics(s, config.file("topics.json", TopicConfigTable), statics=statics)
    groups = SubscriptionGroups(s, config.file("subscriptionGroup.json", GroupConfigTable))
    offsets = ConsumerOffsets(
        OffsetFiles(config, config.file(USUAL, OffsetTable, encode_offsets), light=s.light_queues),
        lambda: s.offset_version_step,
        config.file(READERS_ANEW, ReadersTable),
    )
    groups.creation = offsets.creation = topics.creation
    clients = ConnectedClients(
        lambda group: notify(group) if s.notify_group_changes else None, expiry_ms=s.client_expiry_ms
    )
    for table in (topics.unsaved, groups.unsaved, offsets):
        table.begin(soon, beside)
    # In the next turn: a table that cannot be saved now is logged, and the broker serves all the same.
    topics.unsaved.changed()
    groups.unsaved.changed()
    modes = RequestModes(config.file(REQUEST_MODES, RequestModeTable))
    return Tables(topics, groups, offsets, clients, modes, access)


def keep_within_queues(store: Store, tables: Tables, ordered: OrderedPops) -> None:
    """Lower offsets and ordered pops that count messages which an unclean stop, or a cut of the log, took away.

    It is called before anything is served, and does nothing after a clean stop.
    """
    if not (store.crashed or store.recovered.cut):
        return
    topics, queues = tables.topics, store.queues()

    def end(topic: str, queue_id: int) -> int:
        return store.stored_range(topic, queue_id)[1]

    def has_topic(topic: str) -> bool:
        # Every light queue has settings, whether it is there or not.
        is_light = topic.startswith(topic_names.LIGHT_PREFIX)
        return topic in queues or (not is_light and topics.get(topic) is not None)

    tables.offsets.keep_within(end, has_topic)
    ordered.keep_within(end, store.store_time_at)


def drop_light(store: Store, offsets: ConsumerOffsets, names: list[str]) -> None:
    """Remove light queues that have no message left, with the offsets of their groups. Raises StoreFull,
    StoreUnwritable; then all are there, with their offsets.
    """
    store.delete_light(names)
    offsets.delete_light(set(names))


def make_messages(
    s: BrokerSettings,
    store: Store,
    config: ConfigFolder,
    tables: Tables,
    long_polling: LongPolling,
    stats: Stats,
    saves: SaveFailures,
) -> Messages:
    """Make what stores and delivers messages: puts, delay levels, timers, transactions, pops and the quarantine.

    `saves`: notes the files that could not be written. Raises ConfigError for a file that cannot be read.
    """
    quarantine = Quarantine(config.file("quarantine.json", QuarantineTable))
    quarantine.flush_log = store.flush_log
    delay_file = config.file("delayOffset.json", DelayOffsetTable, encode_delay_offsets)
    delays = ScheduleMessages(store, s.delays_ms(), delay_file, quarantine, lambda: s.delay_version_step)
    timer_rules = TimerRules(
        broker_name=s.broker_name,
        enabled=s.timers_enabled,
        precision_ms=s.timer_precision_ms,
        delay_max_ms=s.timer_delay_max_s * 1000,
    )
    send_rules = SendRules(store, tables.topics, MessageSettings.of(s))
    send_rules.static_topics = tables.topics.statics.table
    put_message = PutMessage(store, send_rules, long_polling, delays, stats, timer_rules)
    put_message.queue_now = tables.topics.statics.queue_now
    timer_files = TimerFiles(
        s.store_root,
        precision_ms=s.timer_precision_ms,
        log_file_bytes=s.timer_log_file_bytes,
        roll_slots=s.timer_roll_slots,
    )
    timer_counts = config.file("timermetrics", TimerCounts)
    timers = TimerMessages(store, put_message, timer_files, timer_counts, stats, quarantine, saves=saves)
    put_message.timer_arrived = timers.arrived
    transactions = Transactions(
        store,
        put_message,
        tables.offsets,
        tables.clients,
        stats,
        quarantine,
        CheckLimits.of(s),
        s.broker_name,
        tables.topics.ensure,
    )
    pops = InFlightMessages(s, put_message, tables.offsets, lambda: store.flushed_position)
    left = LeftMessages(config.path("leftMessages"))
    put_message.has_left = left.has
    return Messages(put_message, delays, timers, timer_rules, transactions, quarantine, pops, left)
