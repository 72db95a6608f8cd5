"""The message store: RocketMQ's files, synchronous."""

from rocketspark.store.store import BatchMessage, Found, Read, Store, StoreSettings

__all__ = ["BatchMessage", "Found", "Read", "Store", "StoreSettings"]
