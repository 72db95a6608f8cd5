"""How routes show a group of replicas without a master, and which brokers are told of a new lowest id. Pure.

Rules of 5.5.0 (RouteInfoManager, RIP-32): the slave with the lowest id stands in for a missing master, for reading
only."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rocketspark.model.route import MASTER_ID, PERM_WRITE
from rocketspark.protocol.json.bodies import BrokerDataBody, QueueDataBody

# Brokers look their group up by the route of a topic of this name, which is always told as it is.
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class ReplicaRules(Protocol):
    """The settings that the registry follows; it reads them each time, as they may change while it runs."""

    @property
    def acting_master(self) -> bool:
        """True if routes show the lowest slave as the master, for reading, where the group allows it."""

    @property
    def notify_min_id(self) -> bool:
        """True if brokers are told of a new lowest id in their group."""

    @property
    def delete_topics(self) -> bool:
        """True if a registration removes the broker's topics that it does not name."""


class PlainRules(msgspec.Struct):
    """The defaults of 5.5.0 for ReplicaRules."""

    acting_master: bool = False
    notify_min_id: bool = False
    delete_topics: bool = False


class MinIdChange(msgspec.Struct, frozen=True):
    """A notice for the brokers at the addresses `told`: which broker has the lowest id of their group now.

    `offline_address`: of the broker that had it before and left; `ha_address`: the replication address of one that
    came.
    """

    told: tuple[str, ...]
    broker_id: int
    address: str
    offline_address: str | None = None
    ha_address: str | None = None


def after_arrival(addresses: dict[int, str], ha_address: str) -> MinIdChange:
    """Return the notice when a broker registered with the lowest id: for the others, or for itself if it is alone."""
    lowest = min(addresses)
    told = tuple(a for i, a in addresses.items() if i != lowest) if len(addresses) > 1 else tuple(addresses.values())
    return MinIdChange(told, lowest, addresses[lowest], ha_address=ha_address)


def after_departure(addresses: dict[int, str], offline_address: str) -> MinIdChange:
    """Return the notice when the broker with the lowest id left, for all that remain."""
    lowest = min(addresses)
    return MinIdChange(tuple(addresses.values()), lowest, addresses[lowest], offline_address=offline_address)


def has_no_master(data: BrokerDataBody) -> bool:
    """Tell whether a group has no master, has slaves, and allows a slave to stand in."""
    return data.enable_acting_master and bool(data.broker_addrs) and MASTER_ID not in data.broker_addrs


def acting(data: BrokerDataBody, queues: QueueDataBody) -> BrokerDataBody:
    """Return a group as a route shows it: with its lowest slave as master, if it has none and nobody may write."""
    if not has_no_master(data) or queues.perm & PERM_WRITE:
        return data
    lowest = min(data.broker_addrs)
    addresses = {MASTER_ID if i == lowest else i: a for i, a in data.broker_addrs.items()}
    return BrokerDataBody(
        cluster=data.cluster,
        broker_name=data.broker_name,
        broker_addrs=dict(sorted(addresses.items())),
        enable_acting_master=True,
        zone_name=data.zone_name,
    )
