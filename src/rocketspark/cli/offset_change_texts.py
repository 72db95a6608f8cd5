"""How changes of groups' offsets are shown: as JSON, as a table, and in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rocketspark.cli.operate import print_table
from rocketspark.cli.texts import counted

if TYPE_CHECKING:
    from rocketspark.admin.offsets import OffsetChange


def change_fields(change: OffsetChange) -> dict[str, Any]:
    """Return a change as --json shows it, without its group and topic."""
    return {
        "broker_name": change.queue.broker_name,
        "queue_id": change.queue.queue_id,
        "before": change.before,
        "after": change.after,
        "passed_over": change.passed_over,
        "read_again": change.read_again,
    }


def totals(changes: Iterable[OffsetChange]) -> dict[str, int]:
    """Return how many messages changes pass over, and how many they have read again."""
    some = list(changes)
    return {"passed_over": sum(c.passed_over for c in some), "read_again": sum(c.read_again for c in some)}


def print_changes(changes: Sequence[OffsetChange], *, with_topic: bool = False) -> None:
    """Print what changes, queue by queue; `with_topic`: with group and topic, where these differ."""
    figures = ("queue", "from", "to", "passed over", "read again")
    rows = (
        (
            *((c.group, c.queue.topic) if with_topic else ()),
            *(c.queue.broker_name, str(c.queue.queue_id), "none" if c.before is None else f"{c.before:,}"),
            *(f"{n:,}" for n in (c.after, c.passed_over, c.read_again)),
        )
        for c in changes
    )
    print_table((*(("group", "topic") if with_topic else ()), "broker", *figures), rows, right=figures)


def effect(changes: Iterable[OffsetChange]) -> str:
    """Return what changes do to messages, for people."""
    sums = totals(changes)
    return f"{counted(sums['passed_over'], 'message')} passed over, {sums['read_again']:,} read again"
