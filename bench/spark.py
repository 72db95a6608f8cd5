"""`python -m bench spark`: the Spark part."""

from bench.spark_read import run

__all__ = ["run"]
