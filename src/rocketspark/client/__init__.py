"""Producers and consumers. Rule: a name is imported when it is first used.

Start with sync, or producer and consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.client.consumer.lite.lite_push_consumer import AsyncLitePushConsumer
    from rocketspark.client.consumer.lite.lite_simple_consumer import AsyncLiteSimpleConsumer
    from rocketspark.client.consumer.pop.simple_consumer import AsyncSimpleConsumer
    from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer
    from rocketspark.client.consumer.push_consumer import AsyncPushConsumer
    from rocketspark.client.message_batch import MessageBatch
    from rocketspark.client.producer.prepared_message import split
    from rocketspark.client.producer.producer import AsyncProducer
    from rocketspark.client.producer.transactions import (
        AsyncTransactionProducer,
        RowsTransaction,
        RowsTransactionResult,
        Transaction,
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from rocketspark.client.results import SendManyResult, SendResult, SendStatus
    from rocketspark.client.sync import (
        LitePushConsumer,
        LiteSimpleConsumer,
        Producer,
        PullConsumer,
        PushConsumer,
        SimpleConsumer,
    )

_HOME = {
    "AsyncPullConsumer": "consumer.pull_consumer",
    "AsyncPushConsumer": "consumer.push_consumer",
    "AsyncSimpleConsumer": "consumer.pop.simple_consumer",
    "AsyncLitePushConsumer": "consumer.lite.lite_push_consumer",
    "AsyncLiteSimpleConsumer": "consumer.lite.lite_simple_consumer",
    "LitePushConsumer": "sync",
    "LiteSimpleConsumer": "sync",
    "PullConsumer": "sync",
    "SimpleConsumer": "sync",
    "PushConsumer": "sync",
    "AsyncProducer": "producer.producer",
    "Producer": "sync",
    "split": "producer.prepared_message",
    "AsyncTransactionProducer": "producer.transactions",
    "RowsTransaction": "producer.transactions",
    "RowsTransactionResult": "producer.transactions",
    "Transaction": "producer.transactions",
    "TransactionProducer": "producer.transactions",
    "TransactionResult": "producer.transactions",
    "TransactionState": "producer.transactions",
    "MessageBatch": "message_batch",
    "SendManyResult": "results",
    "SendResult": "results",
    "SendStatus": "results",
}

__all__ = [
    "AsyncLitePushConsumer",
    "AsyncLiteSimpleConsumer",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransactionProducer",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "MessageBatch",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "RowsTransaction",
    "RowsTransactionResult",
    "SendManyResult",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "split",
]

__getattr__ = attributes(__name__, _HOME)
