"""How groups are given topics' messages (SET_MESSAGE_REQUEST_MODE): kept and told to slaves, as RocketMQ does.

Rule: a mode is what members are told that ask for their queues; a member that pulls or pops anyway is served.
"""

from __future__ import annotations

from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.metadata import RequestMode, RequestModeTable

log = LimitedLog("rocketspark.broker")

FILE_NAME = "messageRequestMode.json"
# The file is written anew at each change.
MODES_MAX = 10_000


class RequestModes:
    """The modes of one broker, by topic and group."""

    def __init__(self, file: JsonFile[RequestModeTable]) -> None:
        self._file = file
        self._changed = False
        try:
            self.table = file.load() or RequestModeTable(message_request_mode_map={})
        except ConfigError as e:
            # No consumer is served differently for them.
            log.error("the message request modes cannot be read and begin empty: %s", e)
            self.table = RequestModeTable(message_request_mode_map={})

    def set(self, mode: RequestMode) -> None:
        """Set the mode of a group in a topic. Raises StoreError; ServerError 2 if there are too many."""
        modes = self.table.message_request_mode_map
        if mode.consumer_group not in modes.get(mode.topic, {}) and sum(map(len, modes.values())) >= MODES_MAX:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"there are {MODES_MAX} request modes, no more are kept")
        modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._changed = True
        self.save()

    def take(self, table: RequestModeTable) -> None:
        """Make the table a master's. Raises StoreError."""
        self._changed |= table != self.table
        self.table = table
        self.save()

    def save(self) -> None:
        """Write the table if it changed. Raises StoreError."""
        if self._changed:
            self._file.save(self.table)
            self._changed = False
