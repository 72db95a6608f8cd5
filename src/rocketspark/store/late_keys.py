"""Index keys of records that a slave gets late, as they were damaged: put where they belong.

Rule: entries ascend in the log's order, so those of all records after them are put again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rocketspark.errors import RecordError, StoreFull
from rocketspark.protocol.message.record import Record, decode
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.commitlog.dispatch import dispatch_request, enters_index
from rocketspark.store.consume_queue_repair import records_between
from rocketspark.store.index.index_service import IndexService
from rocketspark.store.recovery import Replay

_log = logging.getLogger("rocketspark.store")

# Of so much of the log keys are put again at once, some 0.2 s.
REINDEX_BYTES_MAX = 32 << 20


def index_late(log: CommitLog, index: IndexService, replay: Replay, begin: int, late: Sequence[Record]) -> None:
    """Put the keys of records into the index, the first of which begins at a physical offset; not those it has."""
    end = log.written
    if all(_is_indexed(index, found) for found in late):
        return
    try:
        if end - begin > REINDEX_BYTES_MAX:
            raise StoreFull(f"{end - begin} bytes of the log follow, more than are put into the index anew")
        index.cut(begin)
    except StoreFull as e:
        _log.warning("%d mended messages are not found by key: %s", len(late), e)
        return
    for data in records_between(log, begin, end):
        try:
            replay.put_keys_again(decode(data, check_crc=False))
        except RecordError:
            continue  # It was told when it came.


def _is_indexed(index: IndexService, found: Record) -> bool:
    request = dispatch_request(found.sys_flag, found.properties)
    key = request.unique_id or (request.keys or b"").partition(b" ")[0]
    if not key or not enters_index(found.sys_flag):
        return True
    topic, time_ms = found.topic.decode("utf-8", "replace"), found.store_time_ms
    return found.position in index.find(topic, key.decode("utf-8", "replace"), time_ms, time_ms)
