"""Clients and a database together: idempotent consuming, an outbox. Rule: a name is imported when it is first used.

Start with outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.recipes.database import Database
    from rocketspark.recipes.database_urls import database_of
    from rocketspark.recipes.deduplication import SeenStore, deduplicate, outbox_key
    from rocketspark.recipes.outbox import AsyncOutbox, Outbox
    from rocketspark.recipes.outbox_entries import Entry, Kept, State
    from rocketspark.recipes.outbox_store import OutboxStore

_HOME = {
    "AsyncOutbox": "outbox",
    "Database": "database",
    "Entry": "outbox_entries",
    "Kept": "outbox_entries",
    "Outbox": "outbox",
    "OutboxStore": "outbox_store",
    "SeenStore": "deduplication",
    "State": "outbox_entries",
    "database_of": "database_urls",
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

__getattr__ = attributes(__name__, _HOME)
