"""The brokers of a name as the NameServers tell them, also where one of these is silent."""

from __future__ import annotations

import asyncio

import pytest

from rocketspark.broker.replication import members as members_module
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import NotSent
from rocketspark.transport.connections import Connections

pytestmark = pytest.mark.shows("topics, groups and users that an operator changed reach slaves past silent NameServers")

Told = dict[str, dict[int, str] | None]


class Group(MemberGroup):
    """Hears from each NameServer what a test says; None: nothing ever, not named: it cannot be reached."""

    def __init__(self, told: Told) -> None:
        super().__init__(BrokerSettings(namesrv_addresses=";".join(["gone:1", *told])), Connections())
        self.told = told

    async def _known_to(self, namesrv: str) -> dict[int, str]:
        found = self.told.get(namesrv, {})
        if found is None:
            await asyncio.Event().wait()
        if not found:
            raise NotSent("nobody listens", address=namesrv)
        return found


def test_a_silent_nameserver_does_not_keep_slaves_from_an_operators_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were asked one after another, and the answer to the operator waits less than a request of them does."""

    async def main() -> None:
        monkeypatch.setattr(members_module, "FIND_S", 60)
        known = {0: "m:1", 2: "s:1"}
        members = Group({"silent:1": None, "b:1": known})
        assert await members.find({2}) == members.addresses == known
        # One of them knows no such broker: all that answer are heard, and who was known before stays so.
        members.told = {"silent:1": {0: "m:1"}, "b:1": {3: "t:1"}}
        assert await members.find({4}) == {**known, 3: "t:1"}
        monkeypatch.setattr(members_module, "FIND_S", 0)
        members.told = dict.fromkeys(members.told)
        assert await members.find({2}) == {**known, 3: "t:1"}

    asyncio.run(main())
