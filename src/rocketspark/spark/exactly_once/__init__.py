"""Exactly-once writing: half messages, ended once the batch's commit is recorded."""

from rocketspark.spark.exactly_once.records import JOB
from rocketspark.spark.exactly_once.writing import Attempt, Sent, abort, commit, open_log, send_attempt

__all__ = ["JOB", "Attempt", "Sent", "abort", "commit", "open_log", "send_attempt"]
