"""The two files of offsets where there are light queues: consumerOffset.json, and RocketMQ's lmqConsumerOffset.json.

Rule: with light queues RocketMQ reads the second alone, and keeps offsets of groups named %LMQ%… in a table of their
own there; without, it reads the first alone. Both are written, and the newer one is read, so either broker goes on. The
second is written while it is there, as a copy of a store may not tell which of the two is newer.
"""

from __future__ import annotations

from rocketspark.broker.storage.json_tables import ConfigFolder, JsonFile
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import LightOffsetTable, OffsetTable

USUAL, LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"
_LIGHT_GROUP = "@%LMQ%"
_QUEUE_ID = 0


class OffsetFiles(JsonFile[OffsetTable]):
    """Both files as one. `light`: whether this broker has light queues."""

    def __init__(self, config: ConfigFolder, usual: JsonFile[OffsetTable], *, light: bool) -> None:
        super().__init__(config.path(USUAL), OffsetTable)
        self._usual = usual
        self._light = config.file(LIGHT, LightOffsetTable)
        self._paths = config.path(USUAL), config.path(LIGHT)
        self._has_light = light

    def load(self) -> OffsetTable | None:
        """Return the newer table. Raises ConfigError for a file that cannot be read."""
        usual, light = self._usual.load(), self._light.load()
        if light is None:
            return usual
        written = [path.stat().st_mtime_ns if path.exists() else 0 for path in self._paths]
        of_groups = {key: {_QUEUE_ID: offset} for key, offset in light.lmq_offset_table.items()}
        if usual is None or written[1] >= written[0]:
            return OffsetTable(offset_table={**light.offset_table, **of_groups}, data_version=light.data_version)
        if self._has_light:
            usual.offset_table = {**of_groups, **usual.offset_table}
        return usual

    def write(self, text: bytes) -> None:
        """Replace both files; the first alone if there never were light queues. Raises StoreFull, StoreUnwritable."""
        # The second first, as it has everything: after a kill in between it is the newer one, and is read alone.
        if self._has_light or self._paths[1].exists():
            self._light.write(with_light_groups(text))
        self._usual.write(text)


def with_light_groups(text: bytes) -> bytes:
    """Return lmqConsumerOffset.json for the text of consumerOffset.json."""
    rows: dict[str, int] = {}
    if _LIGHT_GROUP.encode() in text:
        for key, queues in java_json.decode(text, OffsetTable).offset_table.items():
            if _LIGHT_GROUP in key and _QUEUE_ID in queues:
                rows[key] = queues[_QUEUE_ID]
    return b'%b,"lmqOffsetTable":%b}' % (text[:-1], bodies.encode(rows))
