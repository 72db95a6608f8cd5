"""Values that every layer shares.

Start with message.
"""

from rocketspark.model.limited_log import escape_values
from rocketspark.model.message import Message, MessageFields, ReceivedMessage
from rocketspark.model.route import BrokerData, MessageQueue, QueueData, TopicRoute, is_logical
from rocketspark.model.subscription import Subscription, subscribe

__all__ = [
    "BrokerData",
    "Message",
    "MessageFields",
    "MessageQueue",
    "QueueData",
    "ReceivedMessage",
    "Subscription",
    "TopicRoute",
    "is_logical",
    "subscribe",
]

escape_values()
