"""Leaves out tests of what the installed Spark does not have: it has nothing that they could show."""

from __future__ import annotations

from rocketspark.spark.spark_features import FILTERS

collect_ignore = [] if FILTERS else ["read/test_pushed_filters.py"]
