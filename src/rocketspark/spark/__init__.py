"""Spark reads and writes topics: format("rocketmq").

Start with source.
"""

from rocketspark.spark.source import RocketMQDataSource

__all__ = ["RocketMQDataSource"]
