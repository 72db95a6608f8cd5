"""Leaves out the tests of what the installed Spark does not have."""

from __future__ import annotations

from rocketspark.spark.spark_features import FILTERS

# Its cases are made of Spark's classes for filters.
collect_ignore = [] if FILTERS else ["test_pushdown.py"]
