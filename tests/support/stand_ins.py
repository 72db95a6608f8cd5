"""Something in a module's place, for the code of one module alone: others in this process, such as a cluster that tests
share, go on with the real one.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


def like(module: ModuleType, **changed: Any) -> SimpleNamespace:
    """A module with some of its names standing for something else."""
    return SimpleNamespace(**{**vars(module), **changed})
