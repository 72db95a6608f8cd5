"""The table that `mqadmin brokerStatus` and `clusterList` show. Rule: every value comes from the broker's state.

Names: BrokerRuntimeInfo 5.5.0. There are no thread pools here: their queues are empty, their capacities the settings'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.timers.timer_messages import TimerProgress
from rocketspark.broker.statistics.stats import PUT_TIME_NAMES, Stats
from rocketspark.broker.storage.retention import disk_used_percent
from rocketspark.store.store import Store

VERSION_NAME = "V5_5_0"
_POOLS = {
    "send": "sendThreadPoolQueueCapacity",
    "pull": "pullThreadPoolQueueCapacity",
    "litePull": "litePullThreadPoolQueueCapacity",
    "ack": "ackThreadPoolQueueCapacity",
    "query": "queryThreadPoolQueueCapacity",
}
# Java's Integer.MAX_VALUE: no pool of buffers that could run out.
_UNBOUNDED = str(2**31 - 1)


def runtime_info(
    store: Store,
    stats: Stats,
    delays: ScheduleMessages,
    timers: TimerProgress,
    settings: dict[str, str],
    *,
    now_ms: int,
    active: bool,
) -> dict[str, str]:
    """Return the table of GET_BROKER_RUNTIME_INFO (28). `settings`: keys and values of broker.conf."""
    stats.collect()
    log_path = store.settings.commit_log or f"{store.settings.root}/commitlog"
    used, total, free = disk(log_path)
    queues_used, _, _ = disk(store.settings.root)
    found, missed = stats.rates(lambda t: t.found), stats.rates(lambda t: t.missed)
    totals = [f + m for f, m in zip(found, missed, strict=True)]
    stored = stats.stored
    table: dict[str, object] = {
        "bootTimestamp": stats.started_ms,
        "brokerActive": active,
        "brokerVersionDesc": VERSION_NAME,
        "commitLogDirCapacity": f"Total : {readable(total)}, Free : {readable(free)}.",
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{log_path}": used,
        "commitLogMaxOffset": store.written_position,
        "commitLogMinOffset": store.min_position,
        "consumeQueueDiskRatio": queues_used,
        "dispatchBehindBytes": 0,  # Queues and index are written by the append itself.
        "dispatchMaxBuffer": 0,
        "earliestMessageTimeStamp": earliest_ms(store),
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": settings["endTransactionPoolQueueCapacity"],
        "getFoundTps": _rates(found),
        "getMessageEntireTimeMax": stats.reads.longest_ms,
        "getMissTps": _rates(missed),
        "getTotalTps": _rates(totals + [0.0] * (3 - len(totals))),
        "getTransferredTps": _rates(stats.rates(lambda t: t.messages)),
        "msgGetTotalTodayMorning": stats.get_mornings[0],
        "msgGetTotalTodayNow": stats.get_today(),
        "msgGetTotalYesterdayMorning": stats.get_mornings[1],
        "msgPutTotalTodayMorning": stats.put_mornings[0],
        "msgPutTotalTodayNow": stats.put_today(),
        "msgPutTotalYesterdayMorning": stats.put_mornings[1],
        "pageCacheLockTimeMills": 0,  # Appends hold no lock.
        "putLatency99": f"{stats.put_percentile_ms(0.99):.2f}",
        "putLatency999": f"{stats.put_percentile_ms(0.999):.2f}",
        "putMessageAverageSize": stored.bytes / stored.messages if stored.messages else 0.0,
        "putMessageDistributeTime": "".join(
            f"[{name}]:{times} " for name, times in zip(PUT_TIME_NAMES, stats.put_times, strict=True)
        ),
        "putMessageEntireTimeMax": stats.put_longest_ms,
        "putMessageFailedTimes": stats.put_failures,
        "putMessageSizeTotal": stored.bytes,
        "putMessageTimesTotal": stored.messages,
        "putTps": _rates(stats.rates(lambda t: t.stored)),
        "remainHowManyDataToFlush": readable(store.written_position - store.flushed_position),
        "remainTransientStoreBufferNumbs": _UNBOUNDED,
        "runtime": duration(now_ms - stats.started_ms),
        "startAcceptSendRequestTimeStamp": settings["startAcceptSendRequestTimeStamp"],
        "timerCongestNum": timers.waiting,
        "timerDequeueTps": timers.dequeue_tps,
        "timerEnqueueTps": timers.enqueue_tps,
        "timerOffsetBehind": timers.unread,
        "timerReadBehind": timers.late_ms // 1000,
    }
    if store.recovered.skipped_bytes:
        # Ours: what the last start found damaged in the log and passed over.
        table["recoverySkippedBytes"] = store.recovered.skipped_bytes
    table |= _pools(settings)
    table |= {f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in delays.progress().items()}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in table.items()}


def _pools(settings: dict[str, str]) -> Iterator[tuple[str, object]]:
    for pool, capacity in _POOLS.items():
        yield f"{pool}ThreadPoolQueueCapacity", settings[capacity]
        yield f"{pool}ThreadPoolQueueHeadWaitTimeMills", 0
        yield f"{pool}ThreadPoolQueueSize", 0


def disk(path: str) -> tuple[float, int, int]:
    """Return (share in use, from 0 to 1; bytes in all; bytes free) of the disk that a folder is on."""
    found = os.statvfs(path)
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bfree
    return disk_used_percent(path) / 100, total, free


def earliest_ms(store: Store) -> int:
    """Store time of the oldest record; -1 without any."""
    for stored in store.iterate(store.min_position):
        return stored.store_time_ms
    return -1


def readable(count: int) -> str:
    """Return a number of bytes in the unit that suits: 252 B, 1.5 KiB, 232.5 GiB."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {' KMGTPE'[power]}iB"


def duration(span_ms: int) -> str:
    """Return a time span as RocketMQ writes it: [ 0 days, 0 hours, 2 minutes, 48 seconds ]."""
    seconds = max(0, span_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _rates(rates: list[float]) -> str:
    """Return rates over 10, 60 and 600 s, separated by blanks; there are always three, as tools expect."""
    return " ".join([str(rate) for rate in rates] + [""] * (3 - len(rates)))
