"""Properties that tell of a replayed message where it was before. Rule: `audit` compares by them, `restore` skips by
them what it sent already."""

from __future__ import annotations

# Which restore sent it: the same for all its messages, however often it was stopped and started.
RESTORE_ID = "restoreId"
# topic/broker/queueId/queueOffset: names a message for ever.
ORIGIN_PLACE = "originPlace"
# The producer's unique id, and times in ms since 1970.
ORIGIN_MESSAGE_ID = "originMessageId"
ORIGIN_BORN_TIME = "originBornTime"
ORIGIN_STORE_TIME = "originStoreTime"

NAMES = (RESTORE_ID, ORIGIN_PLACE, ORIGIN_MESSAGE_ID, ORIGIN_BORN_TIME, ORIGIN_STORE_TIME)
