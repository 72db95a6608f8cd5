"""Offsets by time: finds a queue's exact offset for a time. Rule: pure search; the queries to the broker are handed in.

Brokers answer SEARCH_OFFSET_BY_TIMESTAMP well but not always exactly: Apache RocketMQ gives the first unit of a queue
file instead of the oldest message, 0 where the log's part is gone, and on batch queues the last record for a time after
it (BatchConsumeQueue, 5.5). So its answer is a guess, proved by the store times of the two messages around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


async def first_at_or_after(
    time_ms: int, oldest: int, end: int, guess: int, stored_ms: Callable[[int], Awaitable[float]]
) -> int:
    """Return the first offset of [oldest, end) stored at or after `time_ms`, `end` if none is.

    Args:
        guess: where it should be; two questions prove a right one, a wrong one costs a binary search.
        stored_ms: asks for the store time of the message at an offset: -inf if it is deleted, inf if not there yet.

    Store times must ascend; where a broker's clock was set back it is an offset at which they pass `time_ms`.
    """
    low, high = oldest, end
    guess = min(max(guess, low), high)
    if guess > low:
        if await stored_ms(guess - 1) < time_ms:
            low = guess
        else:
            high = guess - 1
    if low == guess < high:
        if await stored_ms(guess) >= time_ms:
            high = guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high) // 2
        if await stored_ms(middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
