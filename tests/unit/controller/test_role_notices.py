"""Elections and notices of who is master: each broker hears of the newest alone, the log of each reason once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from rocketspark.controller.elections import LogEnd
from rocketspark.controller.held_elections import Elections
from rocketspark.controller.replica_sets import Replica, ReplicaSet, apply
from rocketspark.controller.replicas_info import Decision
from rocketspark.controller.role_notices import RoleNotices
from rocketspark.controller.settings import ControllerSettings
from rocketspark.protocol.headers.controller import ElectMasterHeader, ElectMasterReply


def test_a_newer_notice_takes_the_place_of_one_that_has_not_left() -> None:
    told: list[tuple[str, bytes]] = []
    reached = asyncio.Event()

    class Slow:
        async def get(self, address: str) -> Any:
            await reached.wait()
            return SimpleNamespace(oneway=lambda code, header, body: told.append((address, body)))

        async def close(self) -> None:
            pass

    async def main() -> None:
        notices = RoleNotices(cast(Any, Slow()))
        for body in (b"old", b"new"):
            notices.tell(["a", "b"], ElectMasterReply(), body)
            # The older ones are over, and called back.
            for _ in range(5):
                await asyncio.sleep(0)
        assert notices._tasks.keys() == {"a", "b"}
        reached.set()
        while notices._tasks:
            await asyncio.sleep(0)
        assert sorted(told) == [("a", b"new"), ("b", b"new")]
        # One that ended leaves the place to the next.
        notices.tell(["a"], ElectMasterReply(), b"third")
        while notices._tasks:
            await asyncio.sleep(0)
        assert told[-1] == ("a", b"third")
        await notices.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_why_nobody_is_elected_is_logged_once_for_each_broker_that_asks(caplog: pytest.LogCaptureFixture) -> None:
    living: set[int] = set()

    class Decisions:
        leads = True
        sets: ClassVar = {
            "a": ReplicaSet(
                cluster="c",
                broker_name="a",
                replicas={i: Replica(f"h:{i}", "") for i in (1, 2)},
                in_sync=(1,),
                set_epoch=1,
            )
        }

        async def carry_out(self, decide: Callable[[Any], Decision]) -> Decision:
            found = decide(SimpleNamespace(sets=self.sets))
            for event in found.events:
                self.sets = apply(self.sets, event)
            return found

    lives = SimpleNamespace(
        alive=lambda cluster, name, i: i in living,
        may_live=lambda cluster, name, i: i in living,
        log_end=lambda cluster, name, i: LogEnd(),
    )

    async def main() -> None:
        elections = Elections(
            ControllerSettings({"notifyBrokerRoleChanged": "false"}),
            cast(Any, Decisions()),
            cast(Any, lives),
            cast(Any, None),
        )

        async def ask(broker_id: int, name: str = "a") -> None:
            await elections.hold(ElectMasterHeader(broker_name=name, broker_id=broker_id), f"asked by {broker_id}")

        for _ in range(3):
            await ask(1)
            await ask(2)
            await ask(9)
        living.add(1)
        await ask(1)
        living.clear()
        await elections.hold(ElectMasterHeader(broker_name="a"), "gone")
        for _ in range(3):
            await ask(2)
        assert elections._told.keys() == {"a"}
        assert elections._told["a"].keys() == {-1, 2}

    asyncio.run(main())
    lines = [line.partition(" (")[2].partition(")")[0] for line in caplog.messages if "has no new master" in line]
    assert lines == ["asked by 1", "asked by 2", *["asked by 9"] * 3, "gone", "asked by 2"]
