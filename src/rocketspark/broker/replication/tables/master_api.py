"""What brokers of a name ask each other. Rule: an answer is returned whole and checked, or an error is raised.

All is asked at the port that clients use, where every broker serves these requests. Java's asks for topics and timers
two ports below, where there may be none, or another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from rocketspark.access.policies import Acl
from rocketspark.access.users import User
from rocketspark.access.wire_forms import acls_from, users_from
from rocketspark.broker.replication.tables.table_fetch import TableFetch
from rocketspark.errors import NoReply, ProtocolError, ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.headers.topics import (
    GroupPageHeader,
    GroupPageReply,
    KnownStateHeader,
    StateReply,
    TopicPageHeader,
    TopicPageReply,
)
from rocketspark.protocol.json import java_json, metadata
from rocketspark.protocol.json.bodies import Body, DataVersion, GroupConfig, TopicConfig
from rocketspark.protocol.json.metadata import (
    BrokerState,
    GroupPage,
    PeerDelayOffsets,
    PeerOffsets,
    PeerTimerCounts,
    RequestModeTable,
    TopicPage,
)
from rocketspark.protocol.json.operator_bodies import AclInfo, UserInfo
from rocketspark.protocol.json.static_topics import MappingDetail
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store.timers.timer_files import TimerCheckpoint, decode_checkpoint
from rocketspark.transport.connections import Connections
from rocketspark.transport.request_frames import Reply

T = TypeVar("T")

TIMEOUT_MS = 3000
PAGE_TIMEOUT_MS = 30_000
PAGES_TIMEOUT_S = 60.0
# Some 10 ms.
LARGE_BYTES = 128 << 10


class MasterTopics(NamedTuple):
    """A table of topics, and the mappings of static ones; each with its version."""

    table: dict[str, TopicConfig]
    version: DataVersion
    mappings: dict[str, MappingDetail]
    mapping_version: DataVersion


class Groups(NamedTuple):
    """A table of groups; `forbidden` is None from a broker that does not tell."""

    table: dict[str, GroupConfig]
    forbidden: dict[str, dict[str, int]] | None
    version: DataVersion


class Offsets(NamedTuple):
    """A table of offsets. `state`: what to ask with the next time, None from a broker that is not ours."""

    table: PeerOffsets
    state: str | None


class MasterApi:
    """The requests to one broker. All raise RocketSparkError."""

    def __init__(self, connections: Connections, address: str) -> None:
        self._connections = connections
        self.address = address

    async def topics(self, known: DataVersion | None) -> MasterTopics | None:
        """Return all topics and their version, with the mappings of static ones; None if that is the known one."""
        fetch = TableFetch[TopicConfig](known)
        mappings: dict[str, MappingDetail] = {}
        async with _limited("topics", self.address):
            while True:
                asked = fetch.ask()
                header = TopicPageHeader(
                    start=asked.start, version=metadata.encode_version(asked.version), count_max=asked.count_max
                )
                reply = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, header, timeout_ms=PAGE_TIMEOUT_MS)
                page = await _decode(reply.body, TopicPage)
                if not asked.start:
                    mappings = {}
                mappings.update(page.topic_queue_mapping_detail_map or {})
                if fetch.take(page.topic_config_table, page.data_version, reply.header(TopicPageReply).total):
                    break
        assert fetch.version is not None or fetch.unchanged
        if fetch.version is None:
            return None
        return MasterTopics(fetch.rows, fetch.version, mappings, page.mapping_data_version or DataVersion())

    async def groups(self, known: DataVersion | None) -> Groups | None:
        """Return all groups and what is forbidden to them; None if their version is the known one."""
        fetch = TableFetch[GroupConfig](known)
        forbidden: dict[str, dict[str, int]] | None = None
        async with _limited("groups", self.address):
            while True:
                asked = fetch.ask()
                if not asked.start:
                    forbidden = None
                header = GroupPageHeader(
                    start=asked.start, version=metadata.encode_version(asked.version), count_max=asked.count_max
                )
                reply = await self._ask(
                    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header, timeout_ms=PAGE_TIMEOUT_MS
                )
                page = await _decode(reply.body, GroupPage)
                if page.forbidden_table is not None:
                    forbidden = (forbidden or {}) | page.forbidden_table
                total = reply.header(GroupPageReply).total
                if fetch.take(page.subscription_group_table, page.data_version, total):
                    break
        return None if fetch.version is None else Groups(fetch.rows, forbidden, fetch.version)

    async def offsets(self, state: str = "") -> Offsets | None:
        """Return the offsets of all groups; None if their state is the one given."""
        reply = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, KnownStateHeader(known=state))
        found = reply.header(StateReply).state
        if state and found == state and not reply.body:
            return None
        return Offsets(await _decode(reply.body, PeerOffsets), found)

    async def delay_offsets(self) -> PeerDelayOffsets:
        """Return the next offset of each delay level."""
        return metadata.decode((await self._ask(RequestCode.GET_ALL_DELAY_OFFSET)).body, PeerDelayOffsets)

    async def request_modes(self) -> RequestModeTable:
        """Return how groups are given topics' messages."""
        return metadata.decode((await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body, RequestModeTable)

    async def timer_checkpoint(self) -> TimerCheckpoint:
        """Return how far the broker came with timer messages."""
        return decode_checkpoint((await self._ask(RequestCode.GET_TIMER_CHECK_POINT)).body)

    async def timer_counts(self) -> TimerCounts:
        """Return how many timer messages wait for each topic."""
        return metadata.decode((await self._ask(RequestCode.GET_TIMER_METRICS)).body, PeerTimerCounts)

    async def state(self) -> BrokerState | None:
        """Return what only brokers of ours keep; None from one that is not."""
        try:
            return metadata.decode((await self._ask(RequestCode.GET_BROKER_STATE)).body, BrokerState)
        except ServerError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    async def users(self) -> dict[str, User]:
        """Return the users that may sign requests."""
        return users_from(_listed((await self._ask(RequestCode.AUTH_LIST_USER)).body, list[UserInfo]))

    async def acls(self) -> dict[str, Acl]:
        """Return what they may do."""
        return acls_from(_listed((await self._ask(RequestCode.AUTH_LIST_ACL)).body, list[AclInfo]))

    async def log_end(self) -> int:
        """Return the end of the broker's log; of one that is master no more it is told as a slave's."""
        reply = await self._ask(RequestCode.GET_BROKER_HA_STATUS)
        status = java_json.decode(reply.body, _HaStatus)
        copies = status.ha_client_runtime_info
        end = status.master_commit_log_max_offset or (copies.max_offset if copies is not None else 0)
        if end < 0:
            raise ProtocolError(f"{self.address} tells {end} as the end of its log")
        return end

    async def _ask(self, code: RequestCode, header: Header | None = None, *, timeout_ms: float = TIMEOUT_MS) -> Reply:
        peer = await self._connections.get(self.address)
        reply = await peer.request(code, header, timeout_ms=timeout_ms)
        return reply.raise_for_code(f"ask {self.address} for {code.name}")


def _listed(body: bytes, kind: type[list[T]]) -> list[T]:
    """Return a list; without rows it comes without a body."""
    return java_json.decode(body, kind) if body else []


async def _decode(body: bytes, kind: type[T]) -> T:
    """Return a table; a large one is read beside the loop, as it takes a microsecond a row."""
    if len(body) < LARGE_BYTES:
        return metadata.decode(body, kind)
    return await asyncio.get_running_loop().run_in_executor(None, metadata.decode, body, kind)


class _ClientStatus(Body):
    max_offset: int = 0


class _HaStatus(Body):
    master_commit_log_max_offset: int = -1
    ha_client_runtime_info: _ClientStatus | None = None


@asynccontextmanager
async def _limited(what: str, address: str) -> AsyncIterator[None]:
    """Bound the time for all pages of a table together. Raises NoReply."""
    try:
        async with asyncio.timeout(PAGES_TIMEOUT_S):
            yield
    except TimeoutError:
        raise NoReply(
            f"{address} did not send all its {what} within {PAGES_TIMEOUT_S:.0f} s", address=address
        ) from None
