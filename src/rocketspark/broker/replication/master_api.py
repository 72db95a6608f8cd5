"""The requests that brokers of one name send each other, beside the link.

`MasterApi` asks a broker for its tables; a table that comes in pages is put together by `TableFetch`, whose pages are
all of one version or the fetch begins again. `ask_ha_info` and `tell_ha_info` ask or tell where a master's replication
port is (EXCHANGE_BROKER_HA_INFO, 906; rules of AdminBrokerProcessor and BrokerOuterAPI, 5.5.0: a broker takes the
address that it is told, whatever its role; asked for its own, a master answers with it and any other broker with
nothing).

Rule: an answer is returned whole and checked, or an error is raised. All is asked at the port that clients use, where
every broker serves these requests. Java's slave asks for topics and timers two ports below, where nobody may listen, or
another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rocketspark.access.policies import Acl
from rocketspark.access.tables import User
from rocketspark.access.wire_forms import acls_from, users_from
from rocketspark.errors import NoReply, ProtocolError, ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header, PullReply
from rocketspark.protocol.headers.messages import plain_pull
from rocketspark.protocol.headers.topics import (
    GroupPageHeader,
    GroupPageReply,
    HaInfoHeader,
    KnownStateHeader,
    StateHeader,
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

TIMEOUT_MS = 3000

T = TypeVar("T")

# Answers to a pull that say where to go on: found, nothing new, nothing that matches, the offset moved.
PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
TOOLS_GROUP = "TOOLS_CONSUMER"
PULLED_MAX = 32
PAGE_ROWS = 2000
ROWS_MAX = 200_000
# A table that changes with every page is left for the next time.
RESTARTS_MAX = 10

PAGE_TIMEOUT_MS = 30_000
PAGES_TIMEOUT_S = 60.0
# Some 10 ms.
LARGE_BYTES = 128 << 10


class HaInfo(NamedTuple):
    """A master's addresses, of replication and of requests. `flush_offset`: where its log ended when it started."""

    ha_address: str
    flush_offset: int
    master_address: str | None


@dataclass(slots=True)
class HaInfoExchange:
    """What a broker does when others exchange addresses with it. `own`: its own while it is the master, else None.

    `told`: called with a master's addresses; the answer waits for what it returns, and holds the resulting bytes;
    `reset_flush_offset`: called with the number an operator sets on a slave; `epoch`: of the master that this broker is
    or follows, 0 without a controller.
    """

    own: Callable[[], HaInfo | None]
    told: Callable[[HaInfo], Awaitable[bytes | None] | None] = lambda info: None
    reset_flush_offset: Callable[[int], None] = lambda offset: None
    epoch: Callable[[], int] = lambda: 0


def header_of(info: HaInfo | None) -> HaInfoHeader:
    """Return the fields of a request or reply; none of them for None."""
    if info is None:
        return HaInfoHeader()
    return HaInfoHeader(ha_address=info.ha_address, flush_offset=info.flush_offset, master_address=info.master_address)


def info_of(header: HaInfoHeader) -> HaInfo | None:
    """Return the addresses that a request or reply holds; None if it holds none."""
    if header.ha_address is None:
        return None
    return HaInfo(header.ha_address, header.flush_offset or 0, header.master_address)


async def ask_ha_info(connections: Connections, address: str) -> HaInfo | None:
    """Ask a broker for its addresses; None if it is no master now. Raises RocketSparkError."""
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfoHeader(), timeout_ms=TIMEOUT_MS)
    return info_of(reply.raise_for_code("ask for the address of replication").header(HaInfoHeader))


async def tell_ha_info(connections: Connections, address: str, info: HaInfo) -> bytes:
    """Tell a slave where its master is now. Raises RocketSparkError.

    Returns the slave's notes of messages that left it for other brokers while it acted; only slaves of ours have any.
    """
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.EXCHANGE_BROKER_HA_INFO, header_of(info), timeout_ms=TIMEOUT_MS)
    return bytes(reply.raise_for_code("tell the address of replication").body)


async def ask_source(connections: Connections, address: str) -> str | None:
    """Ask a slave from whose replication port it copies; None if it is not connected. Raises RocketSparkError."""
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.GET_BROKER_HA_STATUS, Header(), timeout_ms=TIMEOUT_MS)
    body = reply.raise_for_code("ask how a slave copies").body
    copies = java_json.decode(body, _HaStatus).ha_client_runtime_info
    return copies.master_addr if copies is not None and copies.activated else None


class ToldEpoch(Body):
    """The number of an epoch of a broker's log, as the broker tells it."""

    epoch: int = -1


class NamedBroker(Body):
    """What a broker under a controller reports about itself: name, number (0 as the master), epochs and log's end."""

    broker_name: str = ""
    broker_id: int = -1
    epoch_list: list[ToldEpoch] = []
    max_offset: int = -1

    @property
    def last_epoch(self) -> int:
        """The epoch in which the log ends; -1 for an empty log."""
        return self.epoch_list[-1].epoch if self.epoch_list else -1


async def ask_who(connections: Connections, address: str) -> NamedBroker:
    """Ask a broker under a controller for its name, number and epochs. Raises RocketSparkError."""
    peer = await connections.get(address)
    reply = await peer.request(RequestCode.GET_BROKER_EPOCH_CACHE, Header(), timeout_ms=TIMEOUT_MS)
    return java_json.decode(reply.raise_for_code("ask for a broker's number").body, NamedBroker)


class PageAsked(NamedTuple):
    """The next page to ask for: rows from number `start` on, of a version (None for the first page)."""

    start: int
    version: DataVersion | None
    count_max: int


class TableFetch(Generic[T]):
    """Puts a table together from its pages. `known`: the version that is here already, which is not fetched again."""

    def __init__(self, known: DataVersion | None = None) -> None:
        self._known = known
        self._restarts = 0
        self.rows: dict[str, T] = {}
        self.version: DataVersion | None = None
        # True at the end if the table has the known version; `rows` holds some of it at most.
        self.unchanged = False

    def ask(self) -> PageAsked:
        """Return the next page to ask for."""
        # One row tells the version.
        probe = self._known is not None and self.version is None
        return PageAsked(len(self.rows), self.version, 1 if probe else PAGE_ROWS)

    def take(self, rows: Mapping[str, T], version: DataVersion | None, total: int | None) -> bool:
        """Take a page; return True if that was the last. Raises ProtocolError for pages that no table can have."""
        if version is None:
            raise ProtocolError("the table came without a version")
        if max(total or 0, len(rows)) > ROWS_MAX:
            raise ProtocolError(f"the table has {max(total or 0, len(rows))} rows, at most {ROWS_MAX} are taken")
        if self.version is None:
            self.unchanged = version == self._known
            if self.unchanged:
                return True
        elif version != self.version:
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise ProtocolError(f"the table changed {self._restarts} times while it was fetched")
            # Of the new version the answer may be the first page, or not: it is not told.
            self.rows.clear()
            self.version = version
            return False
        before = len(self.rows)
        self.version = version
        self.rows.update(rows)
        if not self.rows:
            raise ProtocolError("the table came empty, which no broker's is")
        if total is None or len(self.rows) >= total:
            # A broker without pages sends all rows and no number of them.
            return True
        if len(self.rows) == before:
            raise ProtocolError(f"the table is told to have {total} rows, after {before} no other comes")
        return False


class MasterTopics(NamedTuple):
    """A master's table of topics, and the mappings of static topics; each with its version."""

    table: dict[str, TopicConfig]
    version: DataVersion
    mappings: dict[str, MappingDetail]
    mapping_version: DataVersion


class MasterGroups(NamedTuple):
    """A master's table of groups; `forbidden`: which topics they may not read, None if the broker does not tell."""

    table: dict[str, GroupConfig]
    forbidden: dict[str, dict[str, int]] | None
    version: DataVersion


class MasterOffsets(NamedTuple):
    """A master's table of consumer offsets.

    `state`: text for this state of the table; the next request sends it, and gets no table if it is unchanged. None
    from a broker that is not RocketSpark's.
    """

    table: PeerOffsets
    state: str | None


class MasterApi:
    """Asks one broker for its tables. All requests raise RocketSparkError."""

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
                reply = await self._ask_page(RequestCode.GET_ALL_TOPIC_CONFIG, TopicPageHeader, asked)
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

    async def groups(self, known: DataVersion | None) -> MasterGroups | None:
        """Return all groups and what is forbidden to them; None if their version is the known one."""
        fetch = TableFetch[GroupConfig](known)
        forbidden: dict[str, dict[str, int]] | None = None
        async with _limited("groups", self.address):
            while True:
                asked = fetch.ask()
                if not asked.start:
                    forbidden = None
                reply = await self._ask_page(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupPageHeader, asked)
                page = await _decode(reply.body, GroupPage)
                if page.forbidden_table is not None:
                    forbidden = (forbidden or {}) | page.forbidden_table
                total = reply.header(GroupPageReply).total
                if fetch.take(page.subscription_group_table, page.data_version, total):
                    break
        return None if fetch.version is None else MasterGroups(fetch.rows, forbidden, fetch.version)

    async def offsets(self, state: str = "") -> MasterOffsets | None:
        """Return the offsets of all groups; None if their state is the one given."""
        reply = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, KnownStateHeader(known=state))
        found = reply.header(StateReply).state
        if state and found == state and not reply.body:
            return None
        return MasterOffsets(await _decode(reply.body, PeerOffsets), found)

    async def delay_offsets(self) -> PeerDelayOffsets:
        """Return the next offset of each delay level."""
        return metadata.decode((await self._ask(RequestCode.GET_ALL_DELAY_OFFSET)).body, PeerDelayOffsets)

    async def request_modes(self) -> RequestModeTable:
        """Return which groups pull, and which pop, which topics."""
        return metadata.decode((await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body, RequestModeTable)

    async def timer_checkpoint(self) -> TimerCheckpoint:
        """Return how far the broker came with timer messages."""
        return decode_checkpoint((await self._ask(RequestCode.GET_TIMER_CHECK_POINT)).body)

    async def timer_counts(self) -> TimerCounts:
        """Return how many timer messages wait for each topic."""
        return metadata.decode((await self._ask(RequestCode.GET_TIMER_METRICS)).body, PeerTimerCounts)

    async def state(self, ends_after: str | None = None) -> BrokerState | None:
        """Return the tables that only RocketSpark's brokers have; None from another broker. `ends_after`: with the ends
        of queues that have no messages, of topics after this name.
        """
        try:
            reply = await self._ask(RequestCode.GET_BROKER_STATE, StateHeader(ends_after=ends_after))
            return metadata.decode(reply.body, BrokerState)
        except ServerError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    async def users(self) -> dict[str, User]:
        """Return the users that may sign requests."""
        return users_from(_listed((await self._ask(RequestCode.AUTH_LIST_USER)).body, list[UserInfo]))

    async def acls(self) -> dict[str, Acl]:
        """Return the access rules of users."""
        return acls_from(_listed((await self._ask(RequestCode.AUTH_LIST_ACL)).body, list[AclInfo]))

    async def log_end(self) -> int:
        """Return where the broker's log ends, whether it is a master or, by now, a slave."""
        reply = await self._ask(RequestCode.GET_BROKER_HA_STATUS)
        status = java_json.decode(reply.body, _HaStatus)
        copies = status.ha_client_runtime_info
        end = status.master_commit_log_max_offset or (copies.max_offset if copies is not None else 0)
        if end < 0:
            raise ProtocolError(f"{self.address} tells {end} as the end of its log")
        return end

    async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
        """Return records of a queue from an offset on, b"" if none is left, and the offset to go on from."""
        peer = await self._connections.get(self.address)
        header = plain_pull(TOOLS_GROUP, topic, queue_id, offset, PULLED_MAX)
        reply = await peer.request(RequestCode.PULL_MESSAGE, header, timeout_ms=PAGE_TIMEOUT_MS)
        if reply.code not in PULL_CODES:
            reply.raise_for_code(f"pull {topic} from {self.address}")
        return reply.body if reply.code == ResponseCode.SUCCESS else b"", reply.header(PullReply).next_offset

    async def _ask_page(
        self, code: RequestCode, kind: type[TopicPageHeader] | type[GroupPageHeader], asked: PageAsked
    ) -> Reply:
        version = metadata.encode_version(asked.version)
        header = kind(start=asked.start, version=version, count_max=asked.count_max)
        return await self._ask(code, header, timeout_ms=PAGE_TIMEOUT_MS)

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
    master_addr: str | None = None
    activated: bool = False


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
