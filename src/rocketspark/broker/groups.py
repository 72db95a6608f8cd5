"""Settings of consumer groups: subscriptionGroup.json. Rule: a group unknown so far is made, unless that is off."""

from __future__ import annotations

from rocketspark.broker import names
from rocketspark.broker.config import JsonFile, first_version, next_version
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol.bodies import DataVersion, GroupConfig, GroupConfigTable

# Groups every broker has (rule: SubscriptionGroupManager, 5.x).
SYSTEM_GROUPS = (
    *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
    *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS"),
)

# Bit of a forbidden table's entry: the group may not read the topic (rule: PermName.INDEX_PERM_READ, 5.x).
FORBIDDEN_READ = 1 << 2


class Groups:
    """The consumer groups a broker knows."""

    def __init__(self, settings: BrokerSettings, file: JsonFile[GroupConfigTable]) -> None:
        self._settings = settings
        self._file = file
        table = file.load() or GroupConfigTable(data_version=first_version())
        self.version: DataVersion = table.data_version
        self.forbidden = table.forbidden_table
        self.table: dict[str, GroupConfig] = dict(table.subscription_group_table)
        for name in SYSTEM_GROUPS:
            self.table.setdefault(name, GroupConfig(group_name=name))

    def get(self, group: str) -> GroupConfig | None:
        """The settings of a group, made on first use if that is on; None if there is no such group."""
        config = self.table.get(group)
        if config is None and self._settings.auto_create_group:
            names.check_group(group)
            config = GroupConfig(group_name=group)
            self.put(config)
        return config

    def put(self, config: GroupConfig) -> None:
        """Create a group or replace its settings."""
        self.table[config.group_name] = config
        self.version = next_version(self.version)
        self.save()

    def delete(self, group: str) -> None:
        """Forget a group's settings."""
        if self.table.pop(group, None) is not None:
            self.forbidden.pop(group, None)
            self.version = next_version(self.version)
            self.save()

    def readable(self, group: str, topic: str) -> bool:
        """May the group read the topic?"""
        return not self.forbidden.get(group, {}).get(topic, 0) & FORBIDDEN_READ

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic."""
        bits = self.forbidden.setdefault(group, {})
        bits[topic] = bits.get(topic, 0) & ~FORBIDDEN_READ if readable else bits.get(topic, 0) | FORBIDDEN_READ
        if not bits[topic]:
            del bits[topic]
        if not bits:
            del self.forbidden[group]
        self.version = next_version(self.version)
        self.save()

    def document(self) -> GroupConfigTable:
        """The whole table with its version."""
        return GroupConfigTable(
            subscription_group_table=self.table, forbidden_table=self.forbidden, data_version=self.version
        )

    def save(self) -> None:
        """Write subscriptionGroup.json."""
        self._file.save(self.document())
