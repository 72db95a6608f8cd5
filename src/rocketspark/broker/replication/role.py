"""What a broker is among those of its name. Rule: one object says it, only `Replication` changes it, all others ask."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rocketspark.broker.settings import BrokerSettings
from rocketspark.model.route import MASTER_ID


class Role(Enum):
    """MASTER takes messages; SLAVE copies; ACTING is a slave that does a lost master's work without taking messages;
    FENCED serves nothing that writes until it knows its master."""

    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting master"
    FENCED = "fenced"


class BrokerRole:
    """The role of one broker, and where its master is.

    `master_address`: "host:port" of the master's requests, None if it is not known or this is the master;
    `min_broker_id`, `min_broker_address`: of the live broker of the name with the lowest id; `epoch`: the master's, 0
    without a controller; `reason`: why the role is what it is.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self.kind = Role.MASTER
        self.reason = "start"
        self.master_address: str | None = None
        self.min_broker_id = MASTER_ID
        self.min_broker_address = ""
        self.epoch = 0
        # True while the master's log arrives here.
        self.is_copying: Callable[[], bool] = lambda: False

    @property
    def broker_id(self) -> int:
        """The id under which the NameServers know this broker."""
        return self._settings.broker_id

    @property
    def is_master(self) -> bool:
        """True if messages are taken here."""
        return self.kind is Role.MASTER

    @property
    def is_sync_master(self) -> bool:
        """True if messages may wait for replicas."""
        return self.is_master and self._settings.broker_role == "SYNC_MASTER"

    @property
    def has_live_master(self) -> bool:
        """True on a slave whose master serves: consumers that are not far behind are sent back to it."""
        return self.kind is Role.SLAVE and self.min_broker_id == MASTER_ID and self.is_copying()

    @property
    def delivers(self) -> bool:
        """True if delay levels, timers and transaction checks run here."""
        return self.kind in (Role.MASTER, Role.ACTING)
