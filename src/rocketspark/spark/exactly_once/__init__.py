"""Exactly-once writing: half messages, ended once the batch's commit is recorded.

Start with batch_commit.
"""

from rocketspark.spark.exactly_once.batch_commit import SentAttempt, TaskAttempt, abort, commit, open_log, send_attempt
from rocketspark.spark.exactly_once.commit_records import JOB

__all__ = ["JOB", "SentAttempt", "TaskAttempt", "abort", "commit", "open_log", "send_attempt"]
