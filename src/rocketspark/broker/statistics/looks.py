"""Looks at many queues or tables for figures. Rule: one piece in each turn of the loop, so that requests go on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Looks(Generic[T]):
    """What somebody asks for again and again, and takes a long look. `look`: yields between its pieces and returns what
    it found; `run`: makes one piece in each turn of the loop, the first at once; `first`: found before the first look.
    """

    def __init__(self, look: Callable[[], Generator[None, None, T]], run: Callable[[Iterator[None]], None], first: T):
        self._look = look
        self._run = run
        self._found = first
        self._is_looking = False

    def found(self) -> T:
        """Return what there is now; where that takes more than one piece, what the look found that the question before
        this one began.
        """
        if not self._is_looking:
            self._is_looking = True
            self._run(self._pieces())
        return self._found

    def _pieces(self) -> Iterator[None]:
        try:
            self._found = yield from self._look()
        finally:
            self._is_looking = False
