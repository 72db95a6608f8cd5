"""The message store: RocketMQ's files, synchronous."""

from rocketspark.store.appending import BatchMessage
from rocketspark.store.reading import Found, Read
from rocketspark.store.settings import DELAY_LEVELS_MS, StoreSettings
from rocketspark.store.store import Store

__all__ = ["DELAY_LEVELS_MS", "BatchMessage", "Found", "Read", "Store", "StoreSettings"]
