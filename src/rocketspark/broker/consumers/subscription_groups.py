"""Settings of consumer groups: subscriptionGroup.json. Rule: a group unknown so far is made, unless that is off."""

from __future__ import annotations

from collections.abc import Iterator

from rocketspark.broker import topic_names
from rocketspark.broker.automatic_creation import AutomaticCreation, Made
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import JsonFile, first_version, next_version
from rocketspark.broker.storage.table_saving import UnsavedChanges, pieces
from rocketspark.errors import ServerError
from rocketspark.model.namespace import SYSTEM_GROUPS
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import DataVersion, GroupConfig, GroupConfigTable

# Bit of a forbidden table's entry: the group may not read the topic (rule: PermName.INDEX_PERM_READ, 5.x).
FORBIDDEN_READ = 1 << 2


# Pairs of a group and a topic that it may not read: they are saved in one piece.
FORBIDDEN_MAX = 10_000


def check_consumes(group: GroupConfig | None, name: str) -> GroupConfig:
    """Return a group's settings; raises ServerError if there is none of that name, or if it may not consume."""
    if group is None:
        raise ServerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
    if not group.consume_enable:
        raise ServerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
    return group


class SubscriptionGroups:
    """The consumer groups a broker knows."""

    def __init__(self, settings: BrokerSettings, file: JsonFile[GroupConfigTable]) -> None:
        self._settings = settings
        self._file = file
        # That of the topics in a broker: one address makes so many of both.
        self.creation = AutomaticCreation(settings)
        self.unsaved = UnsavedChanges(
            "subscriptionGroup.json", lambda: self.table, self.snapshot, lambda text: file.write(text)
        )
        table = file.load() or GroupConfigTable(data_version=first_version())
        self.version: DataVersion = table.data_version
        self.forbidden = table.forbidden_table
        self.table: dict[str, GroupConfig] = dict(table.subscription_group_table)
        for name in SYSTEM_GROUPS:
            self.table.setdefault(name, GroupConfig(group_name=name))

    def get(self, group: str, *, by: str = "") -> GroupConfig | None:
        """Return the settings of a group, made on first use if that is on; None if there is no such group.

        `by`: the address of the client that names the group. Raises ServerError 2 if clients have created too many
        groups.
        """
        config = self.table.get(group)
        if config is None and self._is_light(group):
            return GroupConfig(group_name=group)
        if config is None and self._settings.auto_create_group:
            topic_names.check_group(group)
            self.creation.admit(Made.GROUP, self.table, by)
            config = GroupConfig(group_name=group)
            self.put(config)
        return config

    def has(self, group: str) -> bool:
        """Tell whether there is such a group. Those of light queues (%LMQ%…) all are, and have no settings."""
        return group in self.table or self._is_light(group)

    def _is_light(self, group: str) -> bool:
        return self._settings.light_queues and topic_names.is_light(group)

    def put(self, config: GroupConfig) -> None:
        """Create a group or replace its settings."""
        self.put_all([config])

    def put_all(self, configs: list[GroupConfig]) -> None:
        """Create groups or replace their settings, in one save; each is a change of its own, as in RocketMQ."""
        self.table.update((config.group_name, config) for config in configs)
        self._changed(len(configs))

    def delete(self, group: str) -> None:
        """Forget a group's settings."""
        if self.table.pop(group, None) is not None:
            self.forbidden.pop(group, None)
            self._changed()

    def readable(self, group: str, topic: str) -> bool:
        """Tell whether the group may read the topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & FORBIDDEN_READ

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read a topic. Raises ServerError 2 if the table of what is forbidden is full."""
        if not readable and self.readable(group, topic) and sum(map(len, self.forbidden.values())) >= FORBIDDEN_MAX:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"{FORBIDDEN_MAX} groups and topics are forbidden, no more are")
        bits = self.forbidden.setdefault(group, {})
        bits[topic] = bits.get(topic, 0) & ~FORBIDDEN_READ if readable else bits.get(topic, 0) | FORBIDDEN_READ
        if not bits[topic]:
            del bits[topic]
        if not bits:
            del self.forbidden[group]
        self._changed()

    def take(
        self, table: dict[str, GroupConfig], forbidden: dict[str, dict[str, int]] | None, version: DataVersion
    ) -> None:
        """Replace the table by the master's, with its version. `forbidden`: None if the master does not tell it."""
        forbidden = self.forbidden if forbidden is None else forbidden
        if (table, forbidden, version) != (self.table, self.forbidden, self.version):
            for name in [name for name in self.table if name not in table]:
                del self.table[name]
            self.table.update(table)
            self.forbidden = forbidden
            self.version = version
            self.unsaved.changed()

    def _changed(self, count: int = 1) -> None:
        self.version = next_version(self.version, count)
        self.unsaved.changed()

    def snapshot(self) -> Iterator[bytes]:
        """Return the whole table with its version, as JSON in pieces."""
        around = GroupConfigTable(forbidden_table=self.forbidden, data_version=self.version)
        return pieces(around, "subscriptionGroupTable", self.table)

    def save(self) -> None:
        """Write subscriptionGroup.json."""
        self._file.write(b"".join(self.snapshot()))
