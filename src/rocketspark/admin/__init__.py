"""An operator's work on a cluster, from Python: `Admin`, and `AsyncAdmin` on a loop of asyncio.

Imports client. Start with operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.admin.operations import Admin, AsyncAdmin

__getattr__ = attributes(__name__, {"Admin": "operations", "AsyncAdmin": "operations"})
__all__ = ["Admin", "AsyncAdmin"]
