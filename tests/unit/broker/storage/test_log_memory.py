"""What of the log lies in memory: its last part, as large as a share of the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.store.store import Store


@pytest.mark.parametrize(("bytes_before_end", "behind"), [(0, [0, 1, 2]), (150, [0, 1]), (10_000, [])])
def test_messages_before_the_last_part_are_far_behind(tmp_path: Path, bytes_before_end: int, behind: list[int]) -> None:
    settings = BrokerSettings(
        store_root=str(tmp_path), log_file_bytes=1 << 20, memory_percent=100, hot_memory_percent=200
    )
    store = Store(settings.store_settings())
    store.open()
    for _ in range(3):
        store.append(b"t", 0, b"x", b"", 0, None, None, None, 1000, 0, 0, 1000, bytes(8), 0, 0)
    memory = LogMemory(settings, store)
    memory._memory_bytes = bytes_before_end
    assert [at for at in range(-1, 5) if memory.is_far_behind("t", 0, at)] == behind
    assert not memory.is_far_behind("nothing", 0, 0)
    # Twice the share counts as hot.
    memory._memory_bytes = bytes_before_end // 2
    assert [at for at in range(-1, 5) if memory.is_cold("t", 0, at)] == behind
    store.close()
