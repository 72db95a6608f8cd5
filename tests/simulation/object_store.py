"""An object store that brokers reach over the simulated network: objects in memory behind ObjectSegments' file system.

Rule: a request is on its way whatever becomes of who made it. One that nobody waits for any more is carried out all the
same once it arrives, and those that a store held up in any order; so what a broker gave up may be done after what it
did in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from tests.simulation import loop
from tests.support.objects_in_memory import Objects

from rocketspark.broker.tiered_settings import TieredSettings
from rocketspark.store.tiered.object_segments import ATTEMPTS, REQUEST_S, ObjectSegments

if TYPE_CHECKING:
    from tests.simulation.loop import Strand
    from tests.simulation.world import Node, World

NAME, ROOT = "object-store", "bucket/tier"
T = TypeVar("T")
Answer = tuple[object, OSError | None]


class PlayedStore(Objects):
    """The store, a machine of its own. `away`: what is wrong with it, as in `parts.tiered`."""

    def __init__(self, away: list[str]) -> None:
        super().__init__()
        self._away = away
        # Requests that wait until it goes on.
        self._waiting: list[Callable[[], None]] = []

    def come_back(self, world: World) -> None:
        """Carry out what waited."""
        waiting, self._waiting = self._waiting, []
        chance = world.random(f"{NAME} {len(waiting)}")
        for arrive in waiting:
            world.at(world.now_s + chance.uniform(0, 2), arrive)

    def asked(self, carry_out: Callable[[], T]) -> T:
        """Make a request, and again if it is not answered in time, as the client of S3 does."""
        strand = loop.current_strand()
        if strand is None:
            return carry_out()
        error = OSError("no answer")
        for _ in range(ATTEMPTS):
            strand.process.node.count_call()
            for found, failed in self._ask_once(strand, carry_out):
                if failed is None:
                    return cast("T", found)
                if isinstance(failed, FileNotFoundError):
                    raise failed
                error = failed
        raise error

    def _ask_once(self, strand: Strand, carry_out: Callable[[], T]) -> list[Answer]:
        """Make a request; return its answer, or nothing if none came in time."""
        answers: list[Answer] = []
        node, clock = strand.process.node, strand.process.node.clock

        def told(found: object, error: OSError | None) -> None:
            answers.append((found, error))
            strand.wake()

        self._send(node, carry_out, told)
        until_s = clock.steady() + REQUEST_S
        # Others wake a strand too.
        while not answers and clock.steady() < until_s:
            strand.pause(until_s - clock.steady())
        return answers

    def _send(
        self, node: Node, carry_out: Callable[[], object], told: Callable[[object, OSError | None], None]
    ) -> None:
        """Have a request arrive, and its answer come back, unless that is lost."""
        network, own = node.world.network, node.world.node(NAME)

        def arrive() -> None:
            if "hangs" in self._away:
                self._waiting.append(arrive)
                return
            found, error = None, OSError("503 slow down") if "fails" in self._away else None
            if error is None:
                try:
                    found = carry_out()
                except OSError as e:
                    error = e
            if "does not answer" not in self._away:
                network.carry(own.ip, node.ip, lambda: told(found, error))

        network.carry(node.ip, own.ip, arrive)


def install(store: PlayedStore) -> None:
    """Have the brokers of this process find their tier there, whatever place their settings name."""

    def segments(settings: TieredSettings) -> ObjectSegments:
        return ObjectSegments(store, ROOT)

    TieredSettings.segments = segments  # type: ignore[method-assign]
