"""Producers and consumers. Rule: a name is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketspark.client.producer import AsyncProducer, split
    from rocketspark.client.pull_consumer import AsyncPullConsumer
    from rocketspark.client.push_consumer import AsyncPushConsumer
    from rocketspark.client.results import SendResult, SendStatus
    from rocketspark.client.sync import Producer, PullConsumer, PushConsumer
    from rocketspark.client.transactions import (
        AsyncTransactionProducer,
        Transaction,
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )

_HOME = {
    "AsyncPullConsumer": "pull_consumer",
    "AsyncPushConsumer": "push_consumer",
    "PullConsumer": "sync",
    "PushConsumer": "sync",
    "AsyncProducer": "producer",
    "Producer": "sync",
    "split": "producer",
    "AsyncTransactionProducer": "transactions",
    "Transaction": "transactions",
    "TransactionProducer": "transactions",
    "TransactionResult": "transactions",
    "TransactionState": "transactions",
    "SendResult": "results",
    "SendStatus": "results",
}

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
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
