"""Any order of pops, acknowledgements, changes, time, restarts and kills against a model of what consumers may see.

What was acknowledged in time never comes again; what is invisible is given to nobody else; all else comes in the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.broker.pop.rig import NOW, RETRY, TOPIC, Clock, Rig, clock_of

from rocketspark.protocol.pop_answers import ReceiptHandle

pytestmark = pytest.mark.shows("found again at a start; kills: nothing acknowledged comes again, nothing is lost")

EXAMPLES = 40

STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 5)),
    st.tuples(st.just("pop"), st.sampled_from([TOPIC, RETRY]), st.integers(1, 6), st.sampled_from([500, 3000, 9000])),
    st.tuples(st.just("ack"), st.lists(st.integers(0, 50), min_size=1, max_size=4)),
    st.tuples(st.just("change"), st.integers(0, 50), st.sampled_from([500, 2000, 8000])),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 400, 1000, 2500, 7000])),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill")),
)


class Model:
    """What was given out. `open`: handles that may be acknowledged; `acked`: messages that are done for certain."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.rig = Rig(root, clock)
        self.clock = clock
        self.sent = 0
        self.given: list[tuple[str, ReceiptHandle]] = []
        self.invisible_to: dict[str, int] = {}
        self.acked: set[str] = set()
        self.maybe: set[str] = set()

    def do(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])

    def send(self, count: int) -> None:
        for _ in range(count):
            self.rig.send(f"K{self.sent}")
            self.sent += 1

    def pop(self, topic: str, count: int, invisible_ms: int) -> int:
        found = self.rig.pop(count, topic=topic, invisible_ms=invisible_ms)
        for key, handle in found:
            assert key not in self.acked, f"{key} was acknowledged"
            assert self.invisible_to.get(key, 0) <= self.clock(), f"{key} is invisible"
            self.invisible_to[key] = handle.next_visible_ms
            self.given.append((key, handle))
        return len(found)

    def ack(self, picks: list[int]) -> None:
        chosen = [self.given[pick % len(self.given)] for pick in picks if self.given]
        self.rig.ack(*(handle for _, handle in chosen))
        for key, handle in chosen:
            if handle.next_visible_ms > self.clock() and handle.next_visible_ms == self.invisible_to[key]:
                self.acked.add(key)
            else:
                self.maybe.add(key)

    def change(self, pick: int, invisible_ms: int) -> None:
        if not self.given:
            return
        key, handle = self.given[pick % len(self.given)]
        was = self.rig.pops.check_points
        before = len(was)
        new = self.rig.change(handle, invisible_ms)
        if handle.next_visible_ms > self.clock() and handle.next_visible_ms == self.invisible_to[key]:
            if key not in self.acked:
                assert len(was) in (before, before + 1)
                self.invisible_to[key] = new.pop_time_ms + new.invisible_time_ms
                renewed = dict(zip(handle.__struct_fields__, msgspec_values(handle), strict=True)) | {
                    "start_offset": handle.queue_offset,
                    "pop_time_ms": new.pop_time_ms,
                    "invisible_time_ms": new.invisible_time_ms,
                    "revive_queue_id": new.revive_queue_id,
                }
                self.given.append((key, ReceiptHandle(**renewed)))
        elif key not in self.acked:
            # Late: it may have been kept, and then it is invisible for that time.
            self.invisible_to[key] = 0

    def wait(self, ms: int) -> None:
        self.rig.at(self.clock() + ms)

    def save(self) -> None:
        self.rig.save()

    def restart(self) -> None:
        self.rig = self.rig.restarted()

    def kill(self) -> None:
        self.rig = self.rig.killed()

    def finish(self) -> None:
        """Everything that is left comes, and can be acknowledged."""
        for _ in range(4):
            self.wait(12_000)
            for topic in (TOPIC, RETRY):
                while self.pop(topic, 6, 3000):
                    self.rig.ack(*(handle for _, handle in self.given[-6:]))
                    for key, handle in self.given[-6:]:
                        if handle.next_visible_ms > self.clock():
                            self.acked.add(key)
        all_keys = {f"K{number}" for number in range(self.sent)}
        assert all_keys == self.acked | self.maybe & all_keys
        assert len(self.rig.pops.check_points) == 0
        self.rig.stop()


def msgspec_values(handle: ReceiptHandle) -> list[Any]:
    return [getattr(handle, name) for name in handle.__struct_fields__]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, max_size=25))
def test_any_life(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        clock = clock_of(patched)
        assert clock() == NOW
        model = Model(tmp_path_factory.mktemp("pops"), clock)
        for step in steps:
            model.do(step)
        model.finish()
