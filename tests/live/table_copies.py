"""The tables of a slave without a broker around them: what `SlaveSynchronize` changes can be looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.live.support import settings

from rocketspark.broker.consumers.assignments import FILE_NAME, RequestModes
from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.messages.schedule_messages import ScheduleMessages, encode_delay_offsets
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.replication.slave_synchronize import SlaveSynchronize, StoreSide
from rocketspark.broker.static_topics import mappings
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.broker.topics import Topics
from rocketspark.protocol.json.bodies import (
    DelayOffsetTable,
    GroupConfigTable,
    OffsetTable,
    QuarantineTable,
    TopicConfigTable,
)
from rocketspark.protocol.json.metadata import RequestModeTable
from rocketspark.protocol.json.static_topics import MappingTable
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store import Store
from rocketspark.store.timers.timer_files import TimerFiles

T = TypeVar("T")


class TableCopies:
    """Topics, groups, offsets and all else over a folder of their own; nothing is delivered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        s = settings(root)
        self.store = Store(s.store_settings())
        self.store.open()
        nothing: Any = None
        quarantine = Quarantine(self._file("quarantine.json", QuarantineTable))
        self.tables = Tables(
            Topics(
                s,
                self._file("topics.json", TopicConfigTable),
                statics=StaticTopics(s.broker_name, self._file(mappings.FILE_NAME, MappingTable)),
            ),
            SubscriptionGroups(s, self._file("subscriptionGroup.json", GroupConfigTable)),
            ConsumerOffsets(JsonFile(root / "config" / "consumerOffset.json", OffsetTable, encode_offsets)),
            ConnectedClients(lambda group: None),
            RequestModes(self._file(FILE_NAME, RequestModeTable)),
        )
        self.messages = Messages(
            nothing,
            ScheduleMessages(
                self.store,
                s.delays_ms(),
                JsonFile(root / "config" / "delayOffset.json", DelayOffsetTable, encode_delay_offsets),
                quarantine,
            ),
            TimerMessages(
                self.store,
                nothing,
                TimerFiles(str(root)),
                self._file("timermetrics", TimerCounts),
                nothing,
                quarantine,
            ),
            nothing,
            nothing,
            quarantine,
            nothing,
            nothing,
        )

    def _file(self, name: str, kind: type[T]) -> JsonFile[T]:
        return JsonFile(self.root / "config" / name, kind)

    def close(self) -> None:
        self.store.prepare_to_close()
        self.store.close()

    def saved(self) -> TableCopies:
        """The same folder read again, as a start does."""
        self.tables.offsets.finish()
        self.messages.quarantine.save()
        self.close()
        return TableCopies(self.root)


@asynccontextmanager
async def slave(
    root: Path, master: str | None, store_side: StoreSide | None = None, **arguments: Any
) -> AsyncIterator[tuple[TableCopies, SlaveSynchronize]]:
    """A slave's tables that follow a master; the first look has ended if there is a master."""
    copies = TableCopies(root)
    follow = SlaveSynchronize(copies.tables, copies.messages, store_side or StoreSide(), **arguments)
    follow.start()
    try:
        if master is not None:
            follow.set_master(master)
            await follow.passed()
        yield copies, follow
    finally:
        await follow.stop()
        copies.close()


async def look(follow: SlaveSynchronize) -> None:
    """Look at the master now, and wait until that is done."""
    ended = follow.passed()
    follow.look()
    await ended


def offsets_of(tables: Tables) -> dict[str, dict[int, int]]:
    """All consumer offsets, by values."""
    return {key: dict(queues) for key, queues in tables.offsets.table.items()}
