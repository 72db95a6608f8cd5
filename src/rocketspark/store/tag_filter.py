"""Tags compared: the codes of a subscription against those in consume queue units, as pulls read them.

The code is the hash of the message's tags (`model.text.string_hash`), so the consumer compares the tags themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, UNIT_TYPE, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_ext import ADDRESS_MAX

# Up to so many codes numpy is quicker than a loop.
CODES_MAX = 16
# Units that become Python objects together: most reads have enough before they have looked at all.
HITS_PER_STEP = 64


def with_tags_codes(
    queue: ConsumeQueue, queue_offset: int, count: int, codes: frozenset[int] | None
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield (queue offset, unit) of messages, without most of those whose tags code is not in `codes`.

    Units that hold an address in the extension stay in: their code stands there. 800 units: 10 us.
    """
    if codes is None or len(codes) > CODES_MAX:
        yield from enumerate(queue.units(queue_offset, count), queue_offset)
        return
    while count:
        view, at, here = queue.place(queue_offset, count)
        units = np.frombuffer(view, UNIT_TYPE, here, at)
        stated = units["code"].astype(np.int64)
        # Holes, too: their reader gets an answer of their own.
        wanted = (stated <= ADDRESS_MAX) | (units["size"] == GAP_SIZE)
        wanted[0] = True
        for code in codes:
            wanted |= stated == code
        hits = wanted.nonzero()[0]
        for first in range(0, len(hits), HITS_PER_STEP):
            some = hits[first : first + HITS_PER_STEP]
            yield from zip((some + queue_offset).tolist(), units[some].tolist(), strict=True)
        queue_offset += here
        count -= here
