"""The topics of a broker: settings, automatic creation, topics.json. Rule: a new topic is on disk before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rocketspark.broker import names
from rocketspark.broker.config import JsonFile, first_version, next_version
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError
from rocketspark.model.route import PERM_INHERIT, PERM_READ, PERM_WRITE
from rocketspark.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from rocketspark.protocol.codes import ResponseCode

READ_WRITE = PERM_READ | PERM_WRITE
DELAY_QUEUE_COUNT = 18


class Topics:
    """Every topic of one broker.

    `on_change`: called with the changed configs, so that the NameServers hear of them at once.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        file: JsonFile[TopicConfigTable],
        on_change: Callable[[list[TopicConfig]], None] = lambda changed: None,
    ) -> None:
        self._settings = settings
        self._file = file
        self.on_change = on_change
        self.on_automatic: Callable[[str], None] = lambda topic: None
        table = file.load() or TopicConfigTable(data_version=first_version())
        self.version: DataVersion = table.data_version
        self.table: dict[str, TopicConfig] = dict(table.topic_config_table)
        for config in self._system_topics():
            known = self.table.get(config.topic_name)
            if known is None or config.topic_name == names.SCHEDULE_TOPIC:
                self.table[config.topic_name] = config

    def _system_topics(self) -> Iterable[TopicConfig]:
        s = self._settings

        def topic(name: str, queues: int = 1, perm: int = READ_WRITE) -> TopicConfig:
            return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

        yield topic(names.SELF_TEST_TOPIC)
        if s.auto_create_topic:
            yield topic(names.DEFAULT_TOPIC, s.default_topic_queue_count, READ_WRITE | PERM_INHERIT)
        yield topic(names.BENCHMARK_TOPIC, 1024)
        yield topic(s.cluster_name, 16, READ_WRITE | PERM_INHERIT if s.cluster_topic_enabled else 0)
        yield topic(s.broker_name, 1, READ_WRITE | PERM_INHERIT if s.broker_topic_enabled else 0)
        yield topic(names.OFFSET_MOVED_TOPIC)
        yield topic(names.SCHEDULE_TOPIC, max(DELAY_QUEUE_COUNT, len(s.delays_ms())))
        if s.trace_topic_enabled:
            yield topic(s.trace_topic)
        yield topic(f"{s.cluster_name}_REPLY_TOPIC")
        yield topic(names.HALF_TOPIC)
        yield topic(names.OP_HALF_TOPIC)
        yield topic(names.TIMER_TOPIC)

    def get(self, topic: str) -> TopicConfig | None:
        """A topic's settings, None if the broker has no such topic."""
        return self.table.get(topic)

    def put(self, config: TopicConfig) -> None:
        """Create a topic or replace its settings."""
        self.table[config.topic_name] = config
        self._changed([config])

    def delete(self, topic: str) -> None:
        """Forget a topic's settings."""
        if self.table.pop(topic, None) is not None:
            self._changed([])

    def create_for_send(self, topic: str, default_topic: str, queue_count: int, topic_sys_flag: int = 0) -> TopicConfig:
        """The new topic of a first send, inheriting from its default topic.

        Raises ServerError 17 if creation is off or the default topic may not be inherited from (rule: wire.md 2.5,
        TopicConfigManager 5.x).
        """
        parent = self.table.get(default_topic)
        if default_topic == names.DEFAULT_TOPIC and not self._settings.auto_create_topic:
            parent = None
        if parent is None or not parent.perm & PERM_INHERIT:
            raise ServerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! (automatic creation is off or {default_topic!r}"
                " cannot be inherited from; create it, e.g. with `rocketspark topic create`)",
            )
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

    def ensure(self, topic: str, queue_count: int = 1, perm: int = READ_WRITE) -> TopicConfig:
        """A topic the broker needs itself (retries, dead letters), made if need be."""
        config = self.table.get(topic)
        if config is None:
            config = TopicConfig(topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm)
            self.put(config)
        return config

    def wrapper(self, configs: Iterable[TopicConfig] | None = None) -> TopicConfigTable:
        """The table as it is registered; `configs` for a part of it. Permissions are cut to the broker's own."""
        allowed = self._settings.broker_permission
        cut = allowed & READ_WRITE != READ_WRITE
        chosen = self.table.values() if configs is None else configs
        table = {}
        for c in chosen:
            if cut:
                c = TopicConfig(**{f: getattr(c, f) for f in c.__struct_fields__} | {"perm": c.perm & allowed})
            table[c.topic_name] = c
        return TopicConfigTable(topic_config_table=table, data_version=self.version)

    def announce(self) -> None:
        """Something that all topics inherit changed (the broker's permission, what may be made): tell of it."""
        for config in self._system_topics():
            self.table.setdefault(config.topic_name, config)
        self._changed(list(self.table.values()))

    def _changed(self, configs: list[TopicConfig]) -> None:
        self.version = next_version(self.version)
        self.save()
        self.on_change(configs)

    def save(self) -> None:
        """Write topics.json."""
        self._file.save(TopicConfigTable(topic_config_table=self.table, data_version=self.version))
