"""Who is elected begins with offsets that its own log bears out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.replication.role_changes import Replication
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.json.bodies import OffsetTable


def test_offsets_of_messages_that_never_came_are_lowered_before_others_are_taken(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "consumerOffset.json", OffsetTable, encode_offsets)
    offsets = ConsumerOffsets(file)
    offsets.table.update({"T@G": {0: 9, 1: 3}, "Later@G": {0: 2}})

    async def drained(seconds: float) -> None: ...

    elected: Any = object.__new__(Replication)
    elected.synchronize = None
    elected.client = SimpleNamespace(drained=drained, leave=lambda: None)
    elected.stop_copying = lambda: None
    elected._tables = SimpleNamespace(offsets=offsets)
    elected._store = SimpleNamespace(stored_range=lambda topic, queue_id: (0, 5 if topic == "T" else 0))
    asyncio.run(elected.finish_copying())
    # A topic whose settings came late keeps its row.
    wanted = {"T@G": {0: 5, 1: 3}, "Later@G": {0: 0}}
    assert offsets.table == wanted
    found = file.load()
    assert found is not None
    assert found.offset_table == wanted
