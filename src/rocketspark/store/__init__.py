"""The message store: RocketMQ's files, synchronous."""

from rocketspark.store.reading import Found, Read
from rocketspark.store.settings import DELAY_LEVELS_MS, StoreSettings
from rocketspark.store.store import BatchMessage, Store

__all__ = ["DELAY_LEVELS_MS", "BatchMessage", "Found", "Read", "Store", "StoreSettings"]
