"""Long work as a generator that yields between its pieces. Rule: a caller without an event loop, which has to do
nothing in between, runs all pieces here.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    """Run a generator of steps to its end at once, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as e:
            made: T = e.value
            return made
