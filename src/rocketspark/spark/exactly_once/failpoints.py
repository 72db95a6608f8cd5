"""Failpoints: moments at which tests kill the process. Rule: in use nothing listens, and passing one costs a call."""

from __future__ import annotations

from collections.abc import Callable

# In the order in which a batch passes them.
MOMENTS = (
    "halves under way",  # some half messages are being sent
    "halves sent",  # some half messages are stored, no manifest tells of them
    "task done",  # the manifest is stored, the task has not yet told Spark
    "before record",
    "record sent",  # the commit record is stored, its writer does not know
    "recorded",
    "ends sent",  # some ends are under way
    "some ends",  # some messages are committed
    "before ended",  # all are committed, no record says so
    "ended",  # Spark does not know yet
)

listener: Callable[[str], None] | None = None


def passing(moment: str) -> None:
    """Tell a test's listener that this moment is reached; does nothing without a listener."""
    if listener is not None:
        listener(moment)
