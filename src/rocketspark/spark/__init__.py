"""Spark reads and writes topics: format("rocketmq")."""

from rocketspark.spark.source import RocketMQDataSource

__all__ = ["RocketMQDataSource"]
