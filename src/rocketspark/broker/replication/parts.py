"""The values by which replication gets the parts of its broker, and an acting slave gets those of replication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.operations.registration import Registration
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.master_api import HaInfo, HaInfoExchange
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.replication.special_services import SpecialServices
from rocketspark.broker.replication.waits import Durability, ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections
from rocketspark.transport.processor_table import Routes


@dataclass(frozen=True, slots=True)
class ReplicationParts:
    """The parts of a broker that a change of its role concerns."""

    settings: BrokerSettings
    store: Store
    role: BrokerRole
    services: SpecialServices
    registration: Registration
    durability: Durability
    waits: ReplicaWaits
    ha_info: HaInfoExchange
    long_polling: LongPolling
    routes: Routes
    tables: Tables
    messages: Messages


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """A broker's connections to the others of its name: for requests, its link as a slave, and its slaves' links."""

    members: MemberGroup
    connections: Connections
    client: HaClient
    listener: HaListener


@dataclass(frozen=True, slots=True)
class MasterSteps:
    """What the acting mode can make replication do.

    Args: own_ha_info: returns this broker's addresses while it is the master, else None. follow: takes the replication
    address and the request address of the registered master. copy_from: copies from a master that is not registered
    yet. leave_master: ends the copying, as the master is gone. configure: adapts what is refused, and what answers wait
    for, to a changed role.
    """

    own_ha_info: Callable[[], HaInfo | None]
    follow: Callable[[str | None, str | None], None]
    copy_from: Callable[[HaInfo], None]
    leave_master: Callable[[], None]
    configure: Callable[[], None]
