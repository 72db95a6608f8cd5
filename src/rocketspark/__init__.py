"""RocketSpark: a message system in Python that speaks Apache RocketMQ, with its data pipeline on Spark.

Rule: importing the package is cheap; a name's module is imported when the name is first used.

Start with client, broker.server or spark.source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.client import (
        AsyncLitePushConsumer,
        AsyncLiteSimpleConsumer,
        AsyncProducer,
        AsyncPullConsumer,
        AsyncPushConsumer,
        AsyncSimpleConsumer,
        AsyncTransactionProducer,
        LitePushConsumer,
        LiteSimpleConsumer,
        MessageBatch,
        Producer,
        PullConsumer,
        PushConsumer,
        RowsTransaction,
        RowsTransactionResult,
        SendManyResult,
        SendResult,
        SendStatus,
        SimpleConsumer,
        Transaction,
        TransactionProducer,
        TransactionResult,
        TransactionState,
        split,
    )
    from rocketspark.errors import RocketSparkError
    from rocketspark.model import Message, MessageQueue, ReceivedMessage
    from rocketspark.tables.read_table import read_batches, read_table

__version__ = "0.1.0"

_HOME = {
    "AsyncPullConsumer": "client.consumer.pull_consumer",
    "AsyncPushConsumer": "client.consumer.push_consumer",
    "AsyncSimpleConsumer": "client.consumer.pop.simple_consumer",
    "AsyncLitePushConsumer": "client.consumer.lite.lite_push_consumer",
    "AsyncLiteSimpleConsumer": "client.consumer.lite.lite_simple_consumer",
    "LitePushConsumer": "client.sync",
    "LiteSimpleConsumer": "client.sync",
    "PullConsumer": "client.sync",
    "PushConsumer": "client.sync",
    "SimpleConsumer": "client.sync",
    "AsyncProducer": "client.producer.producer",
    "Producer": "client.sync",
    "AsyncTransactionProducer": "client.producer.transactions",
    "RowsTransaction": "client.producer.transactions",
    "RowsTransactionResult": "client.producer.transactions",
    "Transaction": "client.producer.transactions",
    "TransactionProducer": "client.producer.transactions",
    "TransactionResult": "client.producer.transactions",
    "TransactionState": "client.producer.transactions",
    "split": "client.producer.prepared_message",
    "MessageBatch": "client.message_batch",
    "SendManyResult": "client.results",
    "SendResult": "client.results",
    "SendStatus": "client.results",
    "RocketSparkError": "errors",
    "Message": "model",
    "MessageQueue": "model",
    "ReceivedMessage": "model",
    "read_batches": "tables.read_table",
    "read_table": "tables.read_table",
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
    "Message",
    "MessageBatch",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RocketSparkError",
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
    "read_batches",
    "read_table",
    "split",
]

__getattr__ = attributes(__name__, _HOME)
