"""RocketSpark: a message system in Python that speaks Apache RocketMQ, with its data pipeline on Spark.

Rule: importing the package is cheap; a name's module is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketspark.client import (
        AsyncProducer,
        AsyncPullConsumer,
        AsyncPushConsumer,
        AsyncTransactionProducer,
        Producer,
        PullConsumer,
        PushConsumer,
        SendResult,
        SendStatus,
        Transaction,
        TransactionProducer,
        TransactionResult,
        TransactionState,
        split,
    )
    from rocketspark.errors import RocketSparkError
    from rocketspark.model import Message, MessageQueue, ReceivedMessage

__version__ = "0.1.0"

_HOME = {
    "AsyncPullConsumer": "client.pull_consumer",
    "AsyncPushConsumer": "client.push_consumer",
    "PullConsumer": "client.sync",
    "PushConsumer": "client.sync",
    "AsyncProducer": "client.producer",
    "Producer": "client.sync",
    "AsyncTransactionProducer": "client.transactions",
    "Transaction": "client.transactions",
    "TransactionProducer": "client.transactions",
    "TransactionResult": "client.transactions",
    "TransactionState": "client.transactions",
    "split": "client.producer",
    "SendResult": "client.results",
    "SendStatus": "client.results",
    "RocketSparkError": "errors",
    "Message": "model",
    "MessageQueue": "model",
    "ReceivedMessage": "model",
}

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RocketSparkError",
    "SendResult",
    "SendStatus",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "split",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
