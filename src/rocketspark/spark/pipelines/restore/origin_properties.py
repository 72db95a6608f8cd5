"""Properties of a replayed message that name its earlier place. Rule: `audit` compares by them, `restore` skips by them
the rows it sent already.
"""

from __future__ import annotations

# The id of the restore that sent it: the same for all its messages, however often it was stopped and started.
RESTORE_ID = "restoreId"
# topic/broker/queueId/queueOffset: names a message for ever.
ORIGIN_PLACE = "originPlace"
# The producer's unique id, and times in ms since 1970.
ORIGIN_MESSAGE_ID = "originMessageId"
ORIGIN_BORN_TIME = "originBornTime"
ORIGIN_STORE_TIME = "originStoreTime"

NAMES = (RESTORE_ID, ORIGIN_PLACE, ORIGIN_MESSAGE_ID, ORIGIN_BORN_TIME, ORIGIN_STORE_TIME)
