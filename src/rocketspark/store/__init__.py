"""The message store: RocketMQ's files, synchronous.

Start with store.
"""

from rocketspark.store.commitlog.append_message import BatchMessage
from rocketspark.store.get_message import GetMessageResult, GetStatus
from rocketspark.store.settings import DELAY_LEVELS_MS, StoreSettings
from rocketspark.store.store import Store

__all__ = ["DELAY_LEVELS_MS", "BatchMessage", "GetMessageResult", "GetStatus", "Store", "StoreSettings"]
