"""All operations on messages together, as AsyncAdmin has them: each kind stands on the one below it."""

from __future__ import annotations

from rocketspark.admin.messages.waiting import WaitingOperations


class MessageOperations(WaitingOperations):
    """The part of AsyncAdmin that is about messages."""
