"""Who reads which queue. Pure: every member computes the same from the same lists."""

from __future__ import annotations

from collections.abc import Sequence

from rocketspark.model import MessageQueue


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """The member's share: neighbouring queues, the first members get one more if it does not come out even.

    Both lists sorted; a client that is no member gets none (rule: AllocateMessageQueueAveragely, 5.x).
    """
    if client_id not in members:
        return []
    place = members.index(client_id)
    share, more = divmod(len(queues), len(members))
    start = place * share + min(place, more)
    return list(queues[start : start + share + (place < more)])
