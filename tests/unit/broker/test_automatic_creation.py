"""What clients make by asking, by all and by one address."""

from __future__ import annotations

import pytest

from rocketspark.broker.automatic_creation import ADDRESSES_MAX, OFFSETS_OF_CREATION, AutomaticCreation, Made
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError

pytestmark = pytest.mark.shows(
    "tables that clients make grow: topics, groups, offsets, clients, subscriptions, locks, request modes, "
    "filters' time"
)


class Now:
    s = 100.0

    def __call__(self) -> float:
        return self.s


def refused(creation: AutomaticCreation, kind: Made, table: list[int], address: str) -> str:
    with pytest.raises(ServerError) as e:
        creation.admit(kind, table, address)
    assert e.value.code == 2
    return e.value.remark


def test_the_addresses_of_one_network_of_ipv6_make_as_many_as_one() -> None:
    creation = AutomaticCreation(BrokerSettings(auto_creations_per_minute=2), Now())
    creation.admit(Made.TOPIC, [], "2001:db8::1:4711")
    # So a trusted proxy's client is called.
    creation.admit(Made.TOPIC, [], "[2001:db8::2]:4711")
    assert "for 2001:db8::/64 in this minute" in refused(creation, Made.TOPIC, [], "2001:db8::3:4711")
    creation.admit(Made.TOPIC, [], "2001:db8:0:1::1:4711")


def test_one_address_makes_so_many_in_a_minute() -> None:
    now = Now()
    creation = AutomaticCreation(BrokerSettings(auto_creations_per_minute=3), now)
    for kind, port in ((Made.TOPIC, 1), (Made.GROUP, 2), (Made.TOPIC, 3)):
        creation.admit(kind, [], f"10.0.0.1:{port}")
    assert "10.0.0.1 in this minute: maxAutoCreatePerMinute" in refused(creation, Made.GROUP, [], "10.0.0.1:4")
    creation.admit(Made.TOPIC, [], "10.0.0.2:1")
    creation.admit(Made.TOPIC, [], "")
    # Progress counts for itself.
    for _ in range(3 * OFFSETS_OF_CREATION):
        creation.admit(Made.OFFSETS, [], "10.0.0.1:1")
    refused(creation, Made.OFFSETS, [], "10.0.0.1:1")
    now.s += 60
    creation.admit(Made.GROUP, [], "10.0.0.1:4")
    # A clock that is behind begins anew as well.
    creation.admit(Made.GROUP, [], "10.0.0.1:4")
    creation.admit(Made.GROUP, [], "10.0.0.1:4")
    now.s -= 1000
    creation.admit(Made.GROUP, [], "10.0.0.1:4")


def test_all_have_so_many() -> None:
    settings = BrokerSettings(auto_topics_max=2, auto_groups_max=3, offset_rows_max=4)
    creation = AutomaticCreation(settings)
    for kind, most, key in (
        (Made.TOPIC, 2, "maxAutoCreateTopics"),
        (Made.GROUP, 3, "maxAutoCreateGroups"),
        (Made.OFFSETS, 4, "maxConsumerOffsets"),
    ):
        creation.admit(kind, [0] * (most - 1), "a:1")
        assert refused(creation, kind, [0] * most, "a:1").endswith(f"there are {most}, {key} is {most}")
        creation.admit(kind, [0] * 100, "")


def test_addresses_beyond_many_share_one_count() -> None:
    creation = AutomaticCreation(BrokerSettings(auto_creations_per_minute=2), Now())
    for n in range(ADDRESSES_MAX):
        creation.admit(Made.TOPIC, [], f"{n}:1")
    creation.admit(Made.TOPIC, [], "x:1")
    creation.admit(Made.TOPIC, [], "y:1")
    refused(creation, Made.TOPIC, [], "z:1")
    creation.admit(Made.TOPIC, [], "7:1")
