"""JSON bodies of operators' requests and of controllers: users and what they may do (access control 2.0), and what
controllers and brokers tell each other. Rule: nothing shows a password by itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from rocketspark.model.text import LONG_MAX
from rocketspark.protocol.json.bodies import Body


class UserInfo(Body, omit_defaults=True):
    """A user, as requests carry it. In an update, a field that is None keeps its value.

    `user_type`: Super or Normal; `user_status`: enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        hidden = None if self.password is None else "…"
        return (
            f"UserInfo(username={self.username!r}, password={hidden!r}, user_type={self.user_type!r},"
            f" user_status={self.user_status!r})"
        )


class PolicyEntryInfo(Body, omit_defaults=True):
    """One rule of a policy.

    `resource`: Topic:x, Group:x, Cluster:x or *, where x may end in *, or be * for all; `actions`: All, Pub, Sub,
    Create, Update, Delete, Get, List; `source_ips`: addresses or networks, none for any; `decision`: Allow or Deny.
    """

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body, omit_defaults=True):
    """Rules of one type: Custom ones, and Default ones, which count where no Custom one fits."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, omit_defaults=True):
    """The rules of a subject, "User:name"."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


# More are no replicas of one broker.
MEMBERS_MAX = 1000
Id = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
Ids = Annotated[list[Id], msgspec.Meta(max_length=MEMBERS_MAX)]


class SyncStateSet(Body):
    """The in-sync set: the replicas that have every acknowledged message. The epoch is the number of this set."""

    sync_state_set: Ids = []
    sync_state_set_epoch: Id = 0


class MemberGroup(Body):
    """The addresses of one set of replicas, by id."""

    cluster: str = ""
    broker_name: str = ""
    # By id.
    broker_addrs: dict[str, str] = {}


class ElectMasterBody(Body, kw_only=True, omit_defaults=True):
    """Body of the reply to CONTROLLER_ELECT_MASTER (1002); the members are there only if a new master was elected."""

    broker_member_group: MemberGroup | None = None
    sync_state_set: Annotated[list[Id], msgspec.Meta(max_length=MEMBERS_MAX)]


class ReplicaIdentity(Body):
    """One replica, as operators are shown it."""

    broker_name: str = ""
    broker_id: Id = 0
    broker_address: str = ""
    alive: bool = False


class ReplicasOfSet(Body, kw_only=True, omit_defaults=True):
    """One set of replicas, as operators are shown it."""

    master_broker_id: Id | None = None
    master_address: str | None = None
    master_epoch: Id
    sync_state_set_epoch: Id
    in_sync_replicas: list[ReplicaIdentity]
    not_in_sync_replicas: list[ReplicaIdentity]


class ReplicasInfo(Body):
    """Reply to CONTROLLER_GET_SYNC_STATE_DATA (1006)."""

    replicas_info_table: dict[str, ReplicasOfSet] = {}


class DirectConsumption(Body):
    """Reply to CONSUME_MESSAGE_DIRECTLY (309): what a consumer made of a message that it was given by hand."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
