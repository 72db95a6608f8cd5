"""Properties of our own, in which a message that was sent again names the message it is a copy of.

By them `audit` compares a copy with its origin, and a restore that goes on skips what it sent already.
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
