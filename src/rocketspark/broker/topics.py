"""The topics of a broker: settings, automatic creation, topics.json.

Rules: a new topic is on disk before its client is answered; many that are made in one turn are saved once. A topic's
kind of queue stays what it was made with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.automatic_creation import AutomaticCreation, Made
from rocketspark.broker.declared_settings import QUEUES_MAX
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.broker.storage.json_tables import JsonFile, first_version, next_version, sorted_json
from rocketspark.broker.storage.table_saving import UnsavedChanges, pieces
from rocketspark.errors import ServerError
from rocketspark.model.route import PERM_INHERIT, PERM_READ, PERM_WRITE
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import DataVersion, TopicConfig, TopicConfigTable
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.topic_attributes import (
    BATCH,
    CLEANUP_POLICY,
    COMPACTION,
    DELETE,
    MESSAGE_TYPE,
    PRIORITY,
    QUEUE_TYPE,
    SIMPLE,
    is_compacted,
)
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

READ_WRITE = PERM_READ | PERM_WRITE
DELAY_QUEUE_COUNT = 18


class Topics:
    """Every topic of one broker.

    `on_change`: called with the names of changed and deleted topics, so that the NameServers hear of them at once;
    `statics`: the mappings of static topics. `elected_at`: where the log ended when this broker was elected, 0 if it
    was not: topics of messages before may be unknown (see find_missing).
    """

    def __init__(
        self,
        settings: BrokerSettings,
        file: JsonFile[TopicConfigTable],
        on_change: Callable[[list[str]], None] = lambda changed: None,
        statics: StaticTopics | None = None,
    ) -> None:
        self.statics = statics or StaticTopics()
        self._settings = settings
        self._file = file
        self.creation = AutomaticCreation(settings)
        self.elected_at = 0
        self.on_change = on_change
        self.on_automatic: Callable[[str], None] = lambda topic: None
        # Called with topics that are about to be made: ends the deletion of earlier ones of their names.
        self.make_way: Callable[[Iterable[str]], None] = lambda names: None
        self.unsaved = UnsavedChanges("topics.json", lambda: self.table, self.snapshot, lambda text: file.write(text))
        table = file.load() or TopicConfigTable(data_version=first_version())
        self.version: DataVersion = table.data_version
        self.table: dict[str, TopicConfig] = dict(table.topic_config_table)
        # Kept beside the table: to look for them among 100,000 topics takes 15 ms.
        self._compacted = frozenset(name for name, config in self.table.items() if has_compaction(config))
        own = list(self._system_topics())
        # Those named after the broker and its cluster are among them.
        self._own_names = frozenset(config.topic_name for config in own)
        for config in own:
            known = self.table.get(config.topic_name)
            if known is None or config.topic_name == topic_names.SCHEDULE_TOPIC:
                self.table[config.topic_name] = config

    def _system_topics(self) -> Iterable[TopicConfig]:
        s = self._settings

        def topic(name: str, queues: int = 1, perm: int = READ_WRITE) -> TopicConfig:
            return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

        yield topic(topic_names.SELF_TEST_TOPIC)
        if s.auto_create_topic:
            yield topic(topic_names.DEFAULT_TOPIC, s.default_topic_queue_count, READ_WRITE | PERM_INHERIT)
        yield topic(topic_names.BENCHMARK_TOPIC, 1024)
        yield topic(s.cluster_name, 16, READ_WRITE | PERM_INHERIT if s.cluster_topic_enabled else 0)
        yield topic(s.broker_name, 1, READ_WRITE | PERM_INHERIT if s.broker_topic_enabled else 0)
        yield topic(topic_names.OFFSET_MOVED_TOPIC)
        yield topic(topic_names.SCHEDULE_TOPIC, max(DELAY_QUEUE_COUNT, len(s.delays_ms())))
        if s.trace_topic_enabled:
            yield topic(s.trace_topic)
        yield topic(f"{s.cluster_name}_REPLY_TOPIC")
        yield topic(topic_names.HALF_TOPIC)
        yield topic(topic_names.OP_HALF_TOPIC)
        yield topic(topic_names.TIMER_TOPIC)
        yield topic(topic_names.REVIVE_TOPIC_PREFIX + s.cluster_name, s.revive_queue_count)
        if s.slave_acting_master:
            # Replicas find each other by its route (rule: 5.x; there every broker has it).
            yield topic(topic_names.MEMBER_TOPIC_PREFIX + s.broker_name, 1, PERM_INHERIT)

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, None if the broker has no such topic. Each light queue has the same ones."""
        config = self.table.get(topic)
        if config is None and self._settings.light_queues and topic_names.is_light(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=READ_WRITE)
        return config

    def check_not_own(self, topic: str) -> None:
        """Raise ServerError 29 for a topic that the broker keeps for itself, which nobody changes or deletes."""
        if topic_names.is_system_topic(topic) or topic in self._own_names:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")

    def put(self, config: TopicConfig) -> None:
        """Create a topic or replace its settings."""
        self.put_all([config])

    def put_all(self, configs: list[TopicConfig]) -> None:
        """Create topics or replace their settings, as one change.

        Raises StoreFull or StoreUnwritable if an earlier topic of a name is being deleted, and that cannot be ended.
        """
        self.make_way(config.topic_name for config in configs)
        self._put_all(configs)

    def _put_all(self, configs: list[TopicConfig]) -> None:
        self.table.update((config.topic_name, config) for config in configs)
        self._note_compacted([config.topic_name for config in configs])
        self._changed([config.topic_name for config in configs])

    def set_ordered(self, topics: Iterable[str]) -> None:
        """Mark topics that have an order table at a NameServer; no mark is removed (updateOrderTopicConfig, 5.x)."""
        found = [
            # A new object: the present one may be on its way to disk.
            msgspec.structs.replace(self.table[topic], order=True)
            for topic in topics
            if topic in self.table and not self.table[topic].order
        ]
        if found:
            self.put_all(found)

    def delete(self, topic: str) -> None:
        """Forget a topic's settings."""
        if self.table.pop(topic, None) is not None:
            self._note_compacted([topic])
            self._changed([topic])

    def create_for_send(
        self, topic: str, default_topic: str, queue_count: int, topic_sys_flag: int = 0, *, by: str = ""
    ) -> TopicConfig:
        """Create the topic of a first send, with the settings of its default topic. `by`: the sender's address.

        Raises ServerError 2 if clients have created too many topics, 17 if creation is off or the default topic may not
        be inherited from (rule: TopicConfigManager, 5.x).
        """
        parent = self.table.get(default_topic)
        if default_topic == topic_names.DEFAULT_TOPIC and not self._settings.auto_create_topic:
            parent = None
        if parent is None or not parent.perm & PERM_INHERIT:
            raise ServerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! (automatic creation is off or {default_topic!r}"
                " cannot be inherited from; create it, e.g. with `rocketspark topic create`)",
            )
        self.creation.admit(Made.TOPIC, self.table, by)
        queues = max(0, min(queue_count, parent.write_queue_nums))
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=parent.perm & ~PERM_INHERIT,
            topic_filter_type=parent.topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )
        self.put(config)
        self.on_automatic(topic)
        return config

    def ensure(self, topic: str, queue_count: int = 1, perm: int = READ_WRITE, *, by: str = "") -> TopicConfig:
        """Return a topic that the broker needs itself (retries, dead letters), created if it does not exist.

        `by`: the address of a client that named it. Raises ServerError 2 if clients have created too many topics.
        """
        config = self.table.get(topic)
        if config is None:
            self.creation.admit(Made.TOPIC, self.table, by)
            queue_count = min(max(queue_count, 0), QUEUES_MAX)
            config = TopicConfig(topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm)
            self.put(config)
        return config

    def wrapper(self, configs: Iterable[TopicConfig] | None = None) -> TopicConfigTable:
        """Return the table, or only `configs`, as it is registered, with permissions cut to the broker's own."""
        chosen = self.table.values() if configs is None else configs
        table = dict(self._cut([(c.topic_name, c) for c in chosen]))
        mappings = self.statics.infos(None if configs is None else table)
        return TopicConfigTable(
            topic_config_table=table, data_version=self.version, topic_queue_mapping_info_map=mappings
        )

    def state(self) -> tuple[DataVersion, int]:
        """Return a value that differs whenever `wrapper_json` differs."""
        return self.version, self._settings.broker_permission

    def wrapper_json(
        self,
        around: Callable[[TopicConfigTable], Any] = lambda table: table,
        part: Mapping[str, TopicConfig] | None = None,
        following: int = 0,
    ) -> Iterator[bytes]:
        """Return the JSON of `around(wrapper())` in pieces. `part`: only these topics, before `following` more parts.

        Each part has a version of its own, the last part that of the table: a NameServer takes nothing of a version
        that it has.
        """
        mappings = self.statics.infos(part)
        version = msgspec.structs.replace(self.version, counter=self.version.counter - following)
        empty = around(TopicConfigTable(data_version=version, topic_queue_mapping_info_map=mappings))
        table = self.table if part is None else part
        return pieces(empty, "topicConfigTable", table, lambda rows: sorted_json(dict(self._cut(rows)))[1:-1])

    def _cut(self, rows: list[tuple[str, TopicConfig]]) -> list[tuple[str, TopicConfig]]:
        allowed = self._settings.broker_permission
        if allowed & READ_WRITE == READ_WRITE:
            return rows
        return [(name, msgspec.structs.replace(c, perm=c.perm & allowed)) for name, c in rows]

    def begin_epoch(self, epoch: int) -> None:
        """Raise the table's version to a master's epoch: NameServers then believe it, and not an earlier master."""
        if epoch > self.version.state_version:
            self.version = next_version(self.version)
            self.version.state_version = epoch
            self.unsaved.changed()

    def find_missing(self, queues: Mapping[str, Collection[int]]) -> None:
        """Create those of these topics that are not in this table: they have queues in the log, or messages that came
        due.

        A master that dies soon after it created a topic leaves its slaves the messages alone. Its producers may know of
        more queues than have messages, so the topic gets as many as one that is created by a first send.
        """
        usual = self._settings.default_topic_queue_count
        found = {
            name: min(max(max(ids) + 1, 1 if name.startswith("%") else usual), QUEUES_MAX)
            for name, ids in queues.items()
            if ids
            and name not in self.table
            and not topic_names.is_system_topic(name)
            and not name.startswith(topic_names.LIGHT_PREFIX)
        }
        if found:
            # With the messages that they have: another master made them.
            self._put_all(
                [
                    TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=READ_WRITE)
                    for name, count in found.items()
                ]
            )
            log.warning(
                "the master before made %d topics that are known by their messages alone: check their numbers of"
                " queues (%s)",
                len(found),
                ", ".join(sorted(found)[:10]),
            )

    def take(self, table: dict[str, TopicConfig], version: DataVersion) -> tuple[list[TopicConfig], list[str]]:
        """Replace the table by the master's, with its version; return (topics new or changed, names of topics gone)."""
        gone = [name for name in self.table if name not in table]
        changed = [config for name, config in table.items() if self.table.get(name) != config]
        if gone or changed or version != self.version:
            for name in gone:
                del self.table[name]
            self.table.update((config.topic_name, config) for config in changed)
            self._note_compacted([*gone, *(config.topic_name for config in changed)])
            self.version = version
            self.unsaved.changed()
            self.on_change([config.topic_name for config in changed])
        return changed, gone

    def announce(self) -> None:
        """Tell the NameServers of a setting that all topics inherit: the broker's permission, or that of new topics."""
        for config in self._system_topics():
            self.table.setdefault(config.topic_name, config)
        self._changed(list(self.table))

    def _changed(self, topics: list[str]) -> None:
        # Many are told in parts, each under a version of its own: none is one that was told before.
        self.version = next_version(self.version, max(len(topics), 1))
        self.unsaved.changed()
        self.on_change(topics)

    def snapshot(self) -> Iterator[bytes]:
        """Return the whole table with its version, as JSON in pieces; permissions are not cut to the broker's own."""
        return pieces(TopicConfigTable(data_version=self.version), "topicConfigTable", self.table)

    def with_mappings(self) -> Iterator[bytes]:
        """Return what slaves ask for: the table as in `snapshot`, and the mappings of static topics."""
        around = TopicConfigTable(
            data_version=self.version,
            topic_queue_mapping_detail_map=self.statics.table,
            mapping_data_version=self.statics.version,
        )
        return pieces(around, "topicConfigTable", self.table)

    def compacted(self) -> frozenset[str]:
        """Return the topics with compaction."""
        return self._compacted

    def _note_compacted(self, names: list[str]) -> None:
        """Note which of these topics, new, changed or gone, have compaction now."""
        found = {name for name in names if name in self.table and has_compaction(self.table[name])}
        if found or not self._compacted.isdisjoint(names):
            self._compacted = self._compacted.difference(names) | found

    def save(self) -> None:
        """Write topics.json."""
        self._file.write(b"".join(self.snapshot()))


def has_batch_queues(config: TopicConfig) -> bool:
    """Tell whether a topic's queues are batch queues."""
    return config.attributes.get(QUEUE_TYPE) == BATCH


def has_priorities(config: TopicConfig) -> bool:
    """Tell whether a topic is for messages with priorities."""
    return config.attributes.get(MESSAGE_TYPE) == PRIORITY


def has_compaction(config: TopicConfig) -> bool:
    """Tell whether of a topic the newest message of each key is kept."""
    return is_compacted(config.attributes)


def batch_topics(configs: Iterable[TopicConfig]) -> list[str]:
    """Return the names of those topics that have batch queues."""
    return [config.topic_name for config in configs if has_batch_queues(config)]


def tell_store(store: Store, configs: Collection[TopicConfig], *, compaction: bool) -> None:
    """Tell a store, before it is opened, what its topics are. `compaction`: whether the broker compacts."""
    store.batch_topics = batch_topics(configs)
    store.simple_topics = {config.topic_name for config in configs} - set(store.batch_topics)
    store.compacted_topics = [config.topic_name for config in configs if compaction and has_compaction(config)]


def check_queue_type(topic: str, known: TopicConfig | None, attributes: dict[str, str]) -> None:
    """Raise ServerError 29 for an unknown kind of queue or policy of what goes, or a change of one."""
    kind, policy = attributes.get(QUEUE_TYPE, SIMPLE), attributes.get(CLEANUP_POLICY, DELETE)
    before = attributes if known is None else known.attributes
    if kind not in (SIMPLE, BATCH):
        why = f"{QUEUE_TYPE} {kind!r} is neither {SIMPLE} nor {BATCH}"
    elif kind == BATCH and is_compacted(attributes):
        why = f"{CLEANUP_POLICY}={COMPACTION} needs {QUEUE_TYPE}={SIMPLE}: a batch has no key"
    elif policy not in (DELETE, COMPACTION):
        why = f"{CLEANUP_POLICY} {policy!r} is neither {DELETE} nor {COMPACTION}"
    elif before.get(CLEANUP_POLICY, DELETE) != policy:
        why = f"{CLEANUP_POLICY} cannot change; delete the topic and create it anew"
    elif before.get(QUEUE_TYPE, SIMPLE) != kind:
        why = f"{QUEUE_TYPE} cannot change; delete the topic and create it anew"
    else:
        return
    raise ServerError(ResponseCode.INVALID_PARAMETER, f"topic[{topic}]: {why}")


def check_inner_batch(topic: str, config: TopicConfig | None, sys_flag: int) -> None:
    """Raise ServerError 13 for one record of several messages that is sent to a topic without batch queues, or that
    cannot be counted.
    """
    if not sys_flag & sysflags.INNER_BATCH:
        return
    why = ""
    if config is None or not has_batch_queues(config):
        why = f"inner batches need {QUEUE_TYPE}={BATCH}, {topic} has not"
    elif sys_flag & (sysflags.COMPRESSED | sysflags.TRANSACTION_MASK):
        why = "an inner batch is neither compressed nor a transaction's"
    if why:
        raise ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {why}")
