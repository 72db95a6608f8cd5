"""The mappings of this broker's static topics, in topicQueueMapping.json. Rule: on disk before a client is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rocketspark.broker.storage.json_tables import JsonFile, next_version
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import static_topics
from rocketspark.protocol.json.bodies import DataVersion, QueueMapping
from rocketspark.protocol.json.static_topics import MappingDetail, MappingTable

FILE_NAME = "topicQueueMapping.json"


class StaticTopics:
    """Every static topic of one broker; without a file the table is empty and takes nothing.

    `on_change`: called after each change.
    """

    def __init__(self, broker_name: str = "", file: JsonFile[MappingTable] | None = None) -> None:
        self._broker_name = broker_name
        self._file = file
        table = (file.load() if file is not None else None) or MappingTable()
        self.version: DataVersion = table.data_version
        self.table: dict[str, MappingDetail] = table.topic_queue_mapping_info_map
        self.on_change: Callable[[], None] = lambda: None
        self._waiting: asyncio.Future[None] | None = None
        for topic, detail in self.table.items():
            if mistake := self._mistake(topic, detail):
                raise ConfigError(f"{FILE_NAME}: topic {shown(topic)}: {mistake}; mend or remove the file")

    def _mistake(self, topic: str, detail: MappingDetail) -> str:
        if detail.topic != topic:
            return f"the mapping is that of another topic, {shown(detail.topic)!r}"
        if detail.bname != self._broker_name:
            return f"the mapping is that of another broker, {shown(detail.bname)!r}: this one is {self._broker_name!r}"
        for queue_id, items in detail.hosted_queues.items():
            if mistake := "No items" if not items else static_topics.wrong_parts(items):
                return f"queue {queue_id}: {mistake}"
        return ""

    def check(self, topic: str, detail: MappingDetail, *, force: bool) -> MappingDetail:
        """Return a topic's mapping as `put` would store it: `detail`, with queues that only the present mapping has.

        `force`: it may contradict the present mapping. Raises ServerError 1 for a mapping that is not allowed.
        """
        mistake = self._mistake(topic, detail)
        old = self.table.get(topic)
        if old is None or mistake:
            merged = detail
        else:
            merged = static_topics.MappingDetail(
                topic=topic,
                scope=detail.scope,
                total_queues=detail.total_queues,
                bname=detail.bname,
                epoch=detail.epoch,
                dirty=detail.dirty,
                curr_id_map=detail.curr_id_map,
                hosted_queues={**old.hosted_queues, **detail.hosted_queues},
            )
            mistake = "" if force else static_topics.wrong_update(old, detail)
        if mistake:
            raise ServerError(ResponseCode.SYSTEM_ERROR, mistake)
        return merged

    def put(self, detail: MappingDetail) -> None:
        """Create or replace a topic's mapping. Raises StoreError if it cannot be saved, and nothing is changed then."""
        self._replace({**self.table, detail.topic: detail}, next_version(self.version))

    def delete(self, topic: str) -> None:
        """Forget a topic's mapping."""
        if topic in self.table:
            table = dict(self.table)
            del table[topic]
            self._replace(table, next_version(self.version))

    def take(self, table: dict[str, MappingDetail], version: DataVersion) -> None:
        """Replace the table by the master's, with its version; invalid mappings are left out."""
        if version != self.version or table != self.table:
            right = {topic: detail for topic, detail in table.items() if not self._mistake(topic, detail)}
            self._replace(right, version)

    def _replace(self, table: dict[str, MappingDetail], version: DataVersion) -> None:
        if self._file is not None:
            self._file.save(MappingTable(data_version=version, topic_queue_mapping_info_map=table))
        # In place: others look at the same table.
        self.table.clear()
        self.table.update(table)
        self.version = version
        self.on_change()
        if self._waiting is not None:
            self._waiting.set_result(None)
            self._waiting = None

    def queue_now(self, topic: str, queue_id: int) -> int:
        """Return the queue in which a delayed message for a queue of a static topic is to be stored: one led here now.

        If this broker leads none it is the queue itself. RocketMQ stores the message behind the end of a part that
        moved, where nobody reads on.
        """
        detail = self.table.get(topic)
        led = [] if detail is None else list(static_topics.info_of(detail).curr_id_map.values())
        return queue_id if queue_id in led or not led else led[0]

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change, `timeout_s` at most."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._waiting], timeout=timeout_s)

    def infos(self, topics: Iterable[str] | None = None) -> dict[str, QueueMapping]:
        """Return the mappings of these topics, or of all, as NameServers are told them."""
        if not self.table:
            return {}
        chosen = self.table if topics is None else [topic for topic in topics if topic in self.table]
        return {topic: static_topics.info_of(self.table[topic]) for topic in chosen}
