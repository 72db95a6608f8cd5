"""Consumer offsets: each group's next offset, per queue. Kept in memory, written every few seconds and at the end.

Rule: an offset is the next to consume; a message may be delivered again after a kill, never skipped: none lies beyond
its queue's end when a broker begins, and an operator is answered once its change is on the disk. The version rises once
in so many commits (consumerOffsetUpdateVersionStep), as in RocketMQ: a master compares it with its slaves'."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Iterator
from functools import partial

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.automatic_creation import AutomaticCreation, Made
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.readers_anew import NO_MEMBERS, Members, Reader, ReadersAnew
from rocketspark.broker.storage.json_tables import JsonFile, next_version
from rocketspark.broker.storage.table_saving import SMALL_ROWS, UnsavedChanges, all_but_last, pieces
from rocketspark.errors import StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import DataVersion, OffsetTable, ReadersTable
from rocketspark.protocol.light_queues import topic_and_group
from rocketspark.store.store import Store

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


# A row's key is "topic@group".
def _topics_of(group: str, keys: Iterable[str]) -> list[str]:
    ends = [key for key in keys if key.endswith(f"@{group}")]
    return [topic for topic, found in map(topic_and_group, ends) if found == group]


def _groups_of(topic: str, keys: Iterable[str]) -> list[str]:
    begins = [key for key in keys if key.startswith(f"{topic}@")]
    return [group for found, group in map(topic_and_group, begins) if found == topic]


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
            topic, group = topic_and_group(key)
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
        """Note that a consumer asked where to begin, or was sent there: its offsets now count messages of the present
        topic, and not of a deleted one of the same name.
        """
        if self.anew.readers:
            self.anew.take((group, topic, queue_id))

    def is_unheard(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether an offset counts messages of a deleted topic, as its reader was not yet sent to the start of the
        new topic of the same name.

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
        """Forget all offsets in a topic, also those set by hand; its readers begin a new topic of that name at 0.

        `broadcasting`: the client ids of the members of each broadcasting group.
        """
        anew = [key for key in (*self.anew.readers, *self._pulled) if key[1] == topic]
        self.drop_resets(topic=topic)
        for group in self.groups_of(topic):
            anew += [(group, topic, queue_id) for queue_id in self.table.pop(f"{topic}@{group}")]
            self.changes += 1
        self.anew.add(anew, broadcasting)

    def delete_light(self, topics: Container[str]) -> None:
        """Forget all offsets in light queues that are removed, in one pass; their readers go on at the first message
        of a new one.
        """
        for key in [key for key in self.table if topic_and_group(key)[0] in topics]:
            topic, group = topic_and_group(key)
            self.anew.add((group, topic, queue_id) for queue_id in self.table.pop(key))
            self.changes += 1

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
            topic, group = topic_and_group(key)
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
        topic, group = topic_and_group(key)
        topics.setdefault(group, []).append(topic)
    mark = b',"offsetTable":{'
    head, _, rest = next(snapshot).partition(mark)
    yield head + b',"groupTopicMap":' + bodies.encode(topics) + mark + rest
    last = yield from all_but_last(snapshot)
    assert last == b"}}"
    pulls: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), offset in pulled.items():
        pulls.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    # Quoted: Java's brokers skip this table, and fail over names that are bare numbers.
    yield b'},"pullOffsetTable":' + bodies.encode(pulls)
    if anew:
        firsts = {key: {str(queue_id): 0 for queue_id in queue_ids} for key, queue_ids in anew.items()}
        yield b',"readersAnew":' + bodies.encode(firsts)
    yield b"}"
