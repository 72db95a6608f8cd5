"""Clients and a database together: idempotent consuming, an outbox. Rule: a name is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketspark.recipes.databases import Database, database_of
    from rocketspark.recipes.deduplication import deduplicate, outbox_key
    from rocketspark.recipes.outbox import AsyncOutbox, Outbox
    from rocketspark.recipes.outbox_entries import Entry, Kept, State
    from rocketspark.recipes.outbox_store import OutboxStore
    from rocketspark.recipes.seen_store import SeenStore

_HOME = {
    "AsyncOutbox": "outbox",
    "Database": "databases",
    "Entry": "outbox_entries",
    "Kept": "outbox_entries",
    "Outbox": "outbox",
    "OutboxStore": "outbox_store",
    "SeenStore": "seen_store",
    "State": "outbox_entries",
    "database_of": "databases",
    "deduplicate": "deduplication",
    "outbox_key": "deduplication",
}

__all__ = [
    "AsyncOutbox",
    "Database",
    "Entry",
    "Kept",
    "Outbox",
    "OutboxStore",
    "SeenStore",
    "State",
    "database_of",
    "deduplicate",
    "outbox_key",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
