"""The key gate: sends of one key pass one at a time, in order of arrival; different keys don't wait for each other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable


class KeyGate:
    """Lets one of each key pass; a key is known as long as somebody passes or waits."""

    def __init__(self) -> None:
        # By key: the turns of those who wait behind the one that passes.
        self._turns: dict[Hashable, OrderedDict[asyncio.Future[None], None]] = {}

    def take_place(self, key: Hashable) -> asyncio.Future[None] | None:
        """Take the place behind all who came before. Returns the turn to wait for, None if it has come.

        `leave` must follow, with that turn.
        """
        turns = self._turns.get(key)
        if turns is None:
            self._turns[key] = OrderedDict()
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns[turn] = None
        return turn

    async def enter(self, key: Hashable) -> None:
        """Wait for all who came before, if any. `leave` must follow unless this raises."""
        turn = self.take_place(key)
        if turn is not None:
            try:
                await turn
            except BaseException:
                self.leave(key, turn)
                raise

    def leave(self, key: Hashable, turn: asyncio.Future[None] | None = None) -> None:
        """Let the next one pass; or give up the place of a turn that has not come."""
        turns = self._turns.get(key)
        if turn is not None and (turn.cancelled() or not turn.done()):
            turn.cancel()
            if turns is not None:
                turns.pop(turn, None)
            return
        assert turns is not None
        while turns:
            following, _ = turns.popitem(last=False)
            if not following.done():
                following.set_result(None)
                return
        del self._turns[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._turns

    def __len__(self) -> int:
        return len(self._turns)
