"""Long work as a generator that yields between its pieces. Rule: who has no loop to let go on does all pieces here."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    """Do all pieces at once, and return what they make."""
    while True:
        try:
            next(steps)
        except StopIteration as e:
            made: T = e.value
            return made
