"""Consumer offsets: each group's next offset, per queue. Kept in memory, written every few seconds and at the end.

Rule: an offset is the next to consume; a message may be delivered again after a kill, never skipped: none lies beyond
its queue's end when a broker begins, and an operator is answered once its change is on the disk. The version rises once
in so many commits (consumerOffsetUpdateVersionStep), as in RocketMQ: a master compares it with its slaves'. ReadersAnew
keeps the readers whose next pull names a wrong offset: their topic was deleted and made anew, or their offset was set
by hand. Rule: a consumer is told where to go on until it pulls there, as an answer may be lost."""

from __future__ import annotations

import itertools
import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableSet,
)
from functools import partial
from types import MappingProxyType

import msgspec

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.automatic_creation import AutomaticCreation, Made
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.storage.json_tables import JsonFile, next_version
from rocketspark.broker.storage.table_saving import SMALL_ROWS, UnsavedChanges, pieces
from rocketspark.errors import StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import DataVersion, OffsetTable, ReadersTable
from rocketspark.store.store import Store

FILE_NAME = "readersAnew.json"
# Readers that are remembered, each queue of a group as one; beyond, the oldest are forgotten.
READERS_MAX = 100_000

# Group, topic, queue id.
Reader = tuple[str, str, int]
# Client ids by group.
Members = Mapping[str, Collection[str]]
NO_MEMBERS: Members = MappingProxyType({})


class ReadersAnew:
    """The readers (group, topic, queue) of one broker that are sent to another offset at their next pull.

    `file`: None keeps them in memory alone; `changes`: how often they changed; `readers`: those of deleted topics,
    which begin at 0 if the topic is made anew; `resets`: the offset of each reader whose offset was set by hand.
    """

    def __init__(self, file: JsonFile[ReadersTable] | None = None) -> None:
        found = (file.load() if file is not None else None) or ReadersTable()
        self.readers: dict[Reader, None] = dict.fromkeys(_readers(found.readers))
        self.resets: dict[Reader, int] = {
            (group, topic, queue_id): found.resets[f"{topic}@{group}"][queue_id]
            for group, topic, queue_id in _readers(found.resets)
        }
        # Those that were told, and did not pull there yet.
        self._told: set[Reader] = set()
        # Of broadcasting groups the ids of the members that did not pull there yet: each has an offset of its own. In
        # memory alone; without it the first member that asks is told.
        self._members: dict[Reader, set[str]] = {}
        self.changes = self._noted = 0
        self.unsaved = UnsavedChanges(
            FILE_NAME,
            lambda: range(len(self.readers) + len(self.resets)),
            self._snapshot,
            lambda text: None if file is None else file.write(text),
        )

    def __bool__(self) -> bool:
        return bool(self.readers or self.resets)

    def add(self, readers: Iterable[Reader], broadcasting: Members = NO_MEMBERS) -> None:
        """Remember readers of a deleted topic, READERS_MAX at most. `broadcasting`: client ids by group."""
        readers = list(readers)
        self._members |= {reader: set(broadcasting[reader[0]]) for reader in readers if reader[0] in broadcasting}
        added = [reader for reader in readers if reader not in self.readers]
        self.readers |= dict.fromkeys(added)
        for oldest in list(self.readers)[: max(len(self.readers) - READERS_MAX, 0)]:
            del self.readers[oldest]
            self._members.pop(oldest, None)
        self.changes += bool(added)

    def take(self, reader: Reader) -> bool:
        """Forget a reader, because it asks where to begin or was told; return False if it is not known here."""
        self._told.discard(reader)
        self._members.pop(reader, None)
        if reader not in self.readers:
            return False
        del self.readers[reader]
        self.changes += 1
        return True

    def set(self, reader: Reader, offset: int) -> None:
        """Note that a reader's offset was set by hand."""
        self.resets[reader] = offset
        self.changes += 1

    def take_reset(self, reader: Reader) -> int | None:
        """Forget that an offset was set by hand, and return it; None if none was. It is saved soon."""
        offset = self.resets.pop(reader, None)
        if offset is not None:
            self._told.discard(reader)
            self.changes += 1
            self.save()
        return offset

    def sent_to(self, reader: Reader, at: int, *, follows: bool, member: Callable[[], str] = str) -> int | None:
        """Return the offset at which a reader that pulls at `at` must go on; None if it may go on at `at`.

        `follows`: it is a consumer that reads on, which is told until it pulls there. Others are told once of offsets
        set by hand, and never of a topic made anew. `member`: returns the client id.
        """
        # What an operator said since is for all, also where some member never came.
        if reader not in self.resets and (members := self._members.get(reader)) is not None:
            return self._member_sent_to(reader, members, at, member()) if follows else None
        is_anew = reader in self.readers
        wanted = self.resets.get(reader, 0 if is_anew else None)
        if wanted is None or (is_anew and not follows and reader not in self.resets and reader not in self._told):
            return None
        if at == wanted or not follows:
            self.take(reader)
            self.take_reset(reader)
            return None if at == wanted else wanted
        self._told.add(reader)
        return wanted

    def _member_sent_to(self, reader: Reader, members: MutableSet[str], at: int, member: str) -> int | None:
        if member not in members:
            return None
        if at:
            return 0
        members.discard(member)
        if not members:
            self.take(reader)
        return None

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the readers of a group, or of a topic."""
        for reader in [r for r in (*self.readers, *self.resets) if r[0] == group or r[1] == topic]:
            self.take(reader)
            self.take_reset(reader)

    def table(self) -> dict[str, list[int]]:
        """Return the queue ids of all readers, by "topic@group"."""
        return _queues_of(self.readers)

    def replace(self, table: Mapping[str, Iterable[int]]) -> None:
        """Replace the readers of deleted topics by those of a master's table."""
        readers = dict.fromkeys(itertools.islice(_readers(table), READERS_MAX))
        if readers.keys() != self.readers.keys():
            self.readers = readers
            self._members.clear()
            self.changes += 1

    def replace_resets(self, resets: Mapping[Reader, int]) -> None:
        """Replace the offsets that were set by hand by those that a master knows."""
        if resets != self.resets:
            self.resets = dict(resets)
            self.changes += 1

    def _snapshot(self) -> Iterator[bytes]:
        return _readers_json(self.readers.copy(), self.resets.copy())

    def save(self) -> None:
        """Write the file if readers changed since it was written."""
        if self.changes != self._noted:
            self._noted = self.changes
            self.unsaved.changed()

    def finish(self) -> None:
        """Write what is not on disk. Raises StoreError."""
        if self.changes != self._noted:
            self._noted = self.changes
            self.unsaved.note()
        self.unsaved.flush()


def _readers(table: Mapping[str, Iterable[int]]) -> Iterator[Reader]:
    for key, queue_ids in table.items():
        topic, _, group = key.rpartition("@")
        for queue_id in queue_ids:
            yield group, topic, queue_id


log = LimitedLog("rocketspark.broker")
VERSION_STEP = 500
_LOWERED_SHOWN = 5
# Topics of Spark's exactly-once writes. What a group of that name commits are no offsets: the last batch, its query and
# rows, which must outlive the messages that told of them.
KEPT_NUMBERS = re.compile(r"(.+%)?SPARK_TX_[A-Za-z0-9_-]+")
# Pairs of a topic and a group that are looked through in one turn of the loop: some ms.
PAIRS_IN_TURN = 32_768
# As many of one pair take as long to write as a pair with a few.
OFFSETS_OF_ROW = 16


def encode_offsets(table: OffsetTable) -> bytes:
    """Return consumerOffset.json, with queue ids as bare number keys."""
    return b'{"dataVersion":%b,"offsetTable":{%b}}' % (
        bodies.encode(table.data_version),
        encode_rows(list(table.offset_table.items())),
    )


def _queues_of(readers: Iterable[Reader]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for group, topic, queue_id in readers:
        found.setdefault(f"{topic}@{group}", []).append(queue_id)
    return found


def _readers_json(readers: Iterable[Reader], resets: Mapping[Reader, int]) -> Iterator[bytes]:
    """Yield readersAnew.json in pieces, all made where they are read: 65,536 offsets at once take 30 ms."""
    offsets: dict[str, dict[int, int]] = {}
    for (group, topic, queue_id), offset in resets.items():
        offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
    # Each of the two has the other one's field empty: the second takes the place of the first one's end.
    first, second = (
        pieces(ReadersTable(), "readers", _queues_of(readers)),
        pieces(ReadersTable(), "resets", offsets, lambda rows: msgspec.json.encode(dict(rows))[1:-1]),
    )
    part = next(first)
    for following in first:
        yield part
        part = following
    yield next(second).partition(b'"readers":{')[2]
    yield from second


def encode_rows(rows: list[tuple[str, dict[int, int]]]) -> bytes:
    """Return the JSON of some rows; each row is copied first, as offsets may be committed meanwhile."""
    # Python writes a dictionary of whole numbers as RocketMQ does but for blanks, ten times as quickly as we could.
    return b",".join(bodies.encode(key) + b":" + repr(dict(row)).replace(" ", "").encode() for key, row in rows)


def is_kept_number(topic: str, group: str) -> bool:
    """Tell whether what a group commits in a topic is a number that an exactly-once write keeps there."""
    return topic == group and KEPT_NUMBERS.fullmatch(topic) is not None


def is_of_before(store: Store, group: str, topic: str, queue_id: int, offset: int) -> bool:
    """Tell whether an offset lies beyond the end of a topic made anew, as it counts messages of the deleted topic."""
    if store.made_at(topic) is None or is_kept_number(topic, group):
        return False
    return offset > store.stored_range(topic, queue_id)[1]


# A row's key is "topic@group"; no name holds an @.
def _topics_of(group: str, keys: Iterable[str]) -> list[str]:
    return [key[: -len(group) - 1] for key in keys if key.endswith(f"@{group}")]


def _groups_of(topic: str, keys: Iterable[str]) -> list[str]:
    return [key[len(topic) + 1 :] for key in keys if key.startswith(f"{topic}@")]


class ConsumerOffsets:
    """The offsets of all groups on one broker."""

    def __init__(
        self,
        file: JsonFile[OffsetTable],
        version_step: Callable[[], int] = lambda: VERSION_STEP,
        anew: JsonFile[ReadersTable] | None = None,
    ) -> None:
        self._run = machine.token_bytes(8).hex()
        self._version_step = version_step
        self._commits_left = version_step()
        table = file.load() or OffsetTable()
        self.version: DataVersion = table.data_version
        self.table: dict[str, dict[int, int]] = dict(table.offset_table)
        # Who bounds what clients' commits may make, in a broker.
        self.creation: AutomaticCreation | None = None
        self.changes = self._noted = 0
        self.unsaved = UnsavedChanges("consumerOffset.json", self.rows, self.snapshot, lambda text: file.write(text))
        self._pulled: dict[Reader, int] = {}
        self.anew = ReadersAnew(anew)
        # Where another offset stands by now a broker that knows of no such file served meanwhile.
        self.anew.replace_resets({r: offset for r, offset in self.anew.resets.items() if self.get(*r) == offset})
        # Called with an operator's change and waited for; what it returns is called once all offsets are on the disk.
        self.set_by_hand: Callable[[], Awaitable[Callable[[], None]]] | None = None

    def admit(self, group: str, topic: str, address: str) -> None:
        """Allow a client's first commit of a group in a topic, and count it.

        Raises ServerError 2 if the broker already keeps offsets for as many pairs of topic and group as it may
        (maxConsumerOffsets), or if this address has added too many of them within a minute.
        """
        if self.creation is not None and f"{topic}@{group}" not in self.table:
            self.creation.admit(Made.OFFSETS, self.table, address)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset to consume."""
        key = f"{topic}@{group}"
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.changes += 1
        self._commits_left -= 1
        if self._commits_left <= 0:
            self._commits_left = self._version_step()
            self.version = next_version(self.version)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to consume, None if the group never committed one."""
        return self.table.get(f"{topic}@{group}", {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return all committed offsets of a group in a topic."""
        return dict(self.table.get(f"{topic}@{group}", {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics a group has offsets in."""
        return _topics_of(group, self.table)

    def topics_of_steps(self, group: str) -> Generator[None, None, list[str]]:
        """Do what `topics_of` does, in pieces: a broker may keep half a million pairs of topic and group."""
        return self._scan(partial(_topics_of, group))

    def groups_of_steps(self, topic: str) -> Generator[None, None, list[str]]:
        """Do what `groups_of` does, in pieces."""
        return self._scan(partial(_groups_of, topic))

    def _scan(self, pick: Callable[[list[str]], list[str]]) -> Generator[None, None, list[str]]:
        keys, found = list(self.table), list[str]()
        for at in range(0, len(keys), PAIRS_IN_TURN):
            if at:
                yield
            found += pick(keys[at : at + PAIRS_IN_TURN])
        return found

    def rows(self) -> range:
        """Return one number for each row of the table, or more if rows are long: as many as its JSON is large."""
        count = len(self.table)
        return range(count if count > SMALL_ROWS else max(count, sum(map(len, self.table.values())) // OFFSETS_OF_ROW))

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return `topics_of` for all groups, in one pass."""
        found: dict[str, list[str]] = {}
        for key in self.table:
            topic, _, group = key.rpartition("@")
            found.setdefault(group, []).append(topic)
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return _groups_of(topic, self.table)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset by hand; commits of the group's consumers are ignored until they pull there."""
        self.commit(group, topic, queue_id, offset)
        self.anew.set((group, topic, queue_id), offset)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether an offset set by hand waits for the consumer."""
        return bool(self.anew.resets) and (group, topic, queue_id) in self.anew.resets

    def drop_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Forget that an offset was set by hand, as another one was committed by hand since."""
        self.anew.take_reset((group, topic, queue_id))

    def went_to(self, group: str, topic: str, queue_id: int, at: int) -> None:
        """Note that a consumer pulls at an offset; if that was set by hand, the consumer has followed."""
        if self.anew.resets and self.anew.resets.get((group, topic, queue_id)) == at:
            self.drop_reset(group, topic, queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return, once, the offset set by hand, or 0 in a queue of a topic made anew; None if neither is so."""
        if not self.anew:
            return None
        is_anew = self.anew.take((group, topic, queue_id))
        offset = self.anew.take_reset((group, topic, queue_id))
        return 0 if offset is None and is_anew else offset

    def sent_to(
        self, group: str, topic: str, queue_id: int, at: int, *, follows: bool, member: Callable[[], str] = str
    ) -> int | None:
        """Return the offset at which a pull at `at` must go on instead; see `ReadersAnew.sent_to`."""
        return self.anew.sent_to((group, topic, queue_id), at, follows=follows, member=member)

    def asked(self, group: str, topic: str, queue_id: int) -> None:
        """Note that a consumer asked where to begin, or was told by hand: its offsets are of the present topic."""
        if self.anew.readers:
            self.anew.take((group, topic, queue_id))

    def is_unheard(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether an offset is of a deleted topic, as its reader was not sent to the start of the new one yet.

        A reader that chose its offset in the new topic is not sent there: what it was given counts.
        """
        if not self.anew.readers or is_kept_number(topic, group):
            return False
        reader = (group, topic, queue_id)
        return reader in self.anew.readers and offset > self._pulled.get(reader, 0)

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note that a consumer was given the messages before `offset`."""
        self._pulled[(group, topic, queue_id)] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which the group pulled since the broker started; 0 if it did not."""
        return self._pulled.get((group, topic, queue_id), 0)

    def keep_only(self, group: str, topic: str, queue_ids: Container[int]) -> list[int]:
        """Forget a group's offsets in other queues of a topic than these; returns those queues' ids."""
        queues = self.table.get(f"{topic}@{group}", {})
        others = [queue_id for queue_id in queues if queue_id not in queue_ids]
        for queue_id in others:
            del queues[queue_id]
            self.drop_reset(group, topic, queue_id)
        self.changes += bool(others)
        return others

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group, and those set by hand."""
        self.drop_resets(group=group)
        for topic in self.topics_of(group):
            del self.table[f"{topic}@{group}"]
            self.changes += 1

    def drop_resets(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget offsets set by hand for a group or a topic that is deleted."""
        for key in [k for k in self._pulled if k[0] == group or k[1] == topic]:
            del self._pulled[key]
        self.anew.forget(group=group, topic=topic)

    # -- from another broker of the name ---------------------------------------------------------------------------

    def take(self, table: dict[str, dict[int, int]], version: DataVersion | None) -> None:
        """Replace the table and version by the master's, even where the master's offsets are lower or missing."""
        changed = {key: queues for key, queues in table.items() if self.table.get(key) != queues}
        gone = [key for key in self.table if key not in table]
        if changed or gone or (version is not None and version != self.version):
            # In place: others hold the table.
            for key in gone:
                del self.table[key]
            self.table.update(changed)
            self._took(version)

    def take_back(self, table: dict[str, dict[int, int]], version: DataVersion) -> None:
        """Take the higher offset of each queue, and the version, from a slave that served consumers meanwhile."""
        for key, offsets in table.items():
            queues = self.table.setdefault(key, {})
            for queue_id, offset in offsets.items():
                queues[queue_id] = max(offset, queues.get(queue_id, offset))
        self._took(version)

    def _took(self, version: DataVersion | None) -> None:
        if version is not None:
            self.version = version
        self.changes += 1
        self.save()

    def resets(self) -> list[tuple[str, str, int, int]]:
        """Return (group, topic, queue id, offset) of each offset set by hand that waits for its consumer."""
        return [(*reader, offset) for reader, offset in self.anew.resets.items()]

    def take_resets(self, resets: Iterable[tuple[str, str, int, int]]) -> None:
        """Replace the offsets set by hand that wait for their consumers by the master's."""
        self.anew.replace_resets({(group, topic, queue_id): offset for group, topic, queue_id, offset in resets})

    def state(self) -> tuple[int, int, DataVersion]:
        """Return a value that differs whenever `snapshot` or `anew` differs."""
        return self.changes, self.anew.changes, self.version

    def mark(self) -> str:
        """Return the state as text that no other broker or run has; take it before the table is read."""
        return f"{self._run}-{self.changes}-{self.anew.changes}-{self.version.counter}"

    def snapshot(self) -> Iterator[bytes]:
        """Yield consumerOffset.json in pieces: the rows of now, with offsets as of when their piece is made.

        The offsets of the half queue and the op queue are taken at one moment, as they belong together.
        """
        now = dict(self.table)
        for topic in (topic_names.HALF_TOPIC, topic_names.OP_HALF_TOPIC):
            key = f"{topic}@{topic_names.TRANSACTION_GROUP}"
            if key in now:
                now[key] = now[key].copy()
        return pieces(OffsetTable(data_version=self.version), "offsetTable", now, encode_rows)

    def reply_snapshot(self) -> Iterator[bytes]:
        """Yield the reply to GET_ALL_CONSUMER_OFFSET: `snapshot` between RocketMQ's two other tables."""
        return _around(self.snapshot(), list(self.table), dict(self._pulled), self.anew.table())

    def delete_topic(self, topic: str, broadcasting: Members = NO_MEMBERS) -> None:
        """Forget all offsets in a topic, also those set by hand; its readers begin a new topic of the name at 0.

        `broadcasting`: the client ids of the members of each broadcasting group.
        """
        anew = [key for key in (*self.anew.readers, *self._pulled) if key[1] == topic]
        self.drop_resets(topic=topic)
        for group in self.groups_of(topic):
            anew += [(group, topic, queue_id) for queue_id in self.table.pop(f"{topic}@{group}")]
            self.changes += 1
        self.anew.add(anew, broadcasting)

    def save(self) -> None:
        """Write consumerOffset.json if an offset changed since, in a thread if it is large."""
        # First: what is gone from the offsets is known by these alone.
        self.anew.save()
        if self.changes == self._noted:
            return
        self._noted = self.changes
        self.unsaved.changed()

    async def saved(self) -> None:
        """Wait until what an operator changed is on the disk. Raises StoreFull or StoreUnwritable."""
        done = None if self.set_by_hand is None else await self.set_by_hand()
        self.save()
        await self.anew.unsaved.saved()
        await self.unsaved.saved()
        if done is not None:
            done()

    def keep_within(self, end: Callable[[str, int], int], has_topic: Callable[[str], bool] | None = None) -> None:
        """Lower offsets beyond their queue's end, as a power cut took messages, also those set by hand; save at once.

        `has_topic`: offsets in a topic that it denies go, as a kill fell into its deletion. KEPT_NUMBERS all stay.
        """
        lowered = []
        for key, queues in list(self.table.items()):
            topic, _, group = key.rpartition("@")
            if has_topic is not None and not has_topic(topic):
                self.anew.add((group, topic, queue_id) for queue_id in queues)
                del self.table[key]
                self.changes += 1
                continue
            if is_kept_number(topic, group):
                continue
            for queue_id, offset in queues.items():
                if offset > (last := max(end(topic, queue_id), 0)):
                    lowered.append(f"{group} in {topic}:{queue_id} from {offset} to {last}")
                    queues[queue_id] = last
                    self.changes += 1
        for (group, topic, queue_id), offset in self.anew.resets.items():
            if offset > (last := max(end(topic, queue_id), 0)):
                self.anew.set((group, topic, queue_id), last)
        if lowered:
            shown = ", ".join(lowered[:_LOWERED_SHOWN])
            log.warning("offsets beyond the ends of their queues are lowered, %d in all: %s", len(lowered), shown)
        try:
            self.finish()
        except StoreError:
            pass  # The file tells of it, and is written with the next change.

    def begin(self, call_soon: Callable[[Callable[[], None]], object], beside: BackgroundThread) -> None:
        """Save changes on the loop from now on, a large table in the thread `beside`."""
        self.anew.unsaved.begin(call_soon, beside)
        self.unsaved.begin(call_soon, beside)

    def finish(self) -> None:
        """Write what is not on disk."""
        try:
            self.anew.finish()
        finally:
            if self.changes != self._noted:
                self._noted = self.changes
                self.unsaved.note()
            self.unsaved.flush()


def _around(
    snapshot: Iterator[bytes], keys: list[str], pulled: dict[tuple[str, str, int], int], anew: dict[str, list[int]]
) -> Iterator[bytes]:
    topics: dict[str, list[str]] = {}
    for key in keys:
        topic, _, group = key.rpartition("@")
        topics.setdefault(group, []).append(topic)
    mark = b',"offsetTable":{'
    head, _, rest = next(snapshot).partition(mark)
    yield head + b',"groupTopicMap":' + bodies.encode(topics) + mark + rest
    part = next(snapshot)
    for following in snapshot:
        yield part
        part = following
    assert part == b"}}"
    pulls: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), offset in pulled.items():
        pulls.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    # Quoted: Java's brokers skip this table, and fail over names that are bare numbers.
    yield b'},"pullOffsetTable":' + bodies.encode(pulls)
    if anew:
        firsts = {key: {str(queue_id): 0 for queue_id in queue_ids} for key, queue_ids in anew.items()}
        yield b',"readersAnew":' + bodies.encode(firsts)
    yield b"}"
