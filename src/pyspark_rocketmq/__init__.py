"""PySpark imports every top-level package named pyspark_* and registers its DefaultSource: format("rocketmq")."""

from rocketspark.spark import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
