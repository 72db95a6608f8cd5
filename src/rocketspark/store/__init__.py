"""The message store: RocketMQ's files, synchronous.

Start with store.
"""

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.store.commitlog.append_message import BatchMessage
    from rocketspark.store.get_message import GetMessageResult, GetStatus
    from rocketspark.store.settings import DELAY_LEVELS_MS, StoreSettings
    from rocketspark.store.store import Store

__all__ = ["DELAY_LEVELS_MS", "BatchMessage", "GetMessageResult", "GetStatus", "Store", "StoreSettings"]

# The proxy's rules come from files of the store's kind, and need nothing else of it.
__getattr__ = attributes(
    __name__,
    {
        "BatchMessage": "commitlog.append_message",
        "GetMessageResult": "get_message",
        "GetStatus": "get_message",
        "DELAY_LEVELS_MS": "settings",
        "StoreSettings": "settings",
        "Store": "store",
    },
)
