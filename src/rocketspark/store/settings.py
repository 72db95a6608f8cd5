"""What a store is given: its directories and sizes, and the time.

Rule: sizes are those of the files on disk and stay as they are; the time is handed in, so that tests set it by hand."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rocketspark import machine

DELAY_LEVELS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


class StoreSettings(msgspec.Struct, kw_only=True):
    """Directories and sizes of a store. The defaults are RocketMQ's; sizes must not change while there are files.

    The broker's keys that RocketMQ keeps with the store (flushDiskType, flushIntervalCommitLog, ...) stand with all
    others in broker.settings.
    """

    root: str
    commit_log: str | None = None
    # A replica whose `commit_log` was lost copies it from others; else an empty folder is an error, once it had files.
    is_copied: bool = False
    log_file_bytes: int = 1 << 30
    queue_file_units: int = 300_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enabled: bool = True
    message_bytes_max: int = 4 << 20
    # Tags codes go into consumequeue_ext/.
    queue_ext: bool = False
    queue_ext_file_bytes: int = 48 << 20
    batch_queue_file_units: int = 300_000
    # Each record ends with a CRC of all before it; recovery compares it (that of the body is compared anyway).
    # Messages go into the light queues that they name.
    light_queues: bool = False
    append_record_crc: bool = False
    verify_record_crc: bool = False
    # Of compaction: bytes of a segment's two files, and of the table of keys of one step (maxOffsetMapSize).
    compaction_log_bytes: int = 100 << 20
    compaction_units_bytes: int = 10 << 20
    compaction_keys_bytes: int = 100 << 20
    delay_ms: tuple[int, ...] = DELAY_LEVELS_MS


class Clock(Protocol):
    """Anything that tells the time in ms since 1970."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return machine.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is set."""

    def __init__(self, at_ms: int = 0) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms
