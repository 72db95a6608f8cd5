"""Topics with compaction or a tier, lite topics, light and batch queues, priorities under faults: each alone."""

from __future__ import annotations

import pytest
from tests.simulation.test_world import outcomes_of

# Some that came to elections, removed files, and what else is rare; more by `make soak PARTS=simulation`. With a tier
# messages were lost: a slave had removed what its master had not copied (10), two masters wrote to it (60), an upload
# to an object store that was given up came late (14).
SEEDS = [("compacted", 16), ("tiered", 10), ("tiered", 60), ("objects", 14), ("urgent", 1), ("light", 5)]
# Lite topics counted as removed on a slave that had lost its power, and lacked messages once it was elected.
SEEDS += [("lite", 9000013), ("batched", 2)]
RARE = {"compacted": "queues compacted", "tiered": "removals of old log files", "lite": "removals of lite topics"}
RARE |= {"objects": "failures of the second tier"}


@pytest.mark.shows(
    "under faults topics with compaction keep the newest of each key, a second tier all that left the store, lite"
    " topics their order, priorities theirs, light queues what names them, and batch queues whole batches"
)
def test_faults_break_no_promise_of_a_kind_of_topic() -> None:
    found = outcomes_of([(f"tests.simulation.parts.alone:{part}", seed) for part, seed in SEEDS])
    outcomes = dict(zip(SEEDS, found, strict=True))
    assert {seed: outcome["error"] for seed, outcome in outcomes.items() if outcome["error"]} == {}
    for (part, _), outcome in outcomes.items():
        assert outcome["states"]["elections"] > 0
        assert outcome["states"].get(RARE.get(part, "elections"), 0) > 0
