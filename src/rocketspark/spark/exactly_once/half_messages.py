"""A task's rows, sent as half messages, and the manifest that names them. Rule: a manifest is written once its half
messages are stored, and names no other.

A row sent twice, after a reply that was lost, is one row: only the copy that was acknowledged is in the manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.send_many import BATCH_BYTES_LEAST, less_than
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, ConnectionLost, MessageIllegal, RocketSparkError, SendFailed, ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.route import is_logical
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import half_ranges, properties, sysflags
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.spark.exactly_once import commit_records
from rocketspark.spark.exactly_once.broker_abilities import BrokerAbilities
from rocketspark.spark.exactly_once.commit_records import AttemptPart, HandleHead, HandleManifest
from rocketspark.spark.exactly_once.commit_topic import DEDUPE_KEY, CommitTopic, safely_stored
from rocketspark.spark.exactly_once.failpoints import passing
from rocketspark.spark.write.batch_encoding import BatchItems
from rocketspark.spark.write.bounded_flow import SendsInFlight
from rocketspark.spark.write.queue_choice import QueueTarget
from rocketspark.spark.write.row_sender import RowSend, RowSender
from rocketspark.spark.write.rows import CheckedRows, Text, parts
from rocketspark.tables.options import WriteOptions

# No question about a half message for so long: a batch is ended, or its rows are known to its successor, before.
IMMUNITY_S = 600
# Half messages in flight, each with its row in memory.
IN_FLIGHT_MAX = 512
IN_FLIGHT_BYTES_MAX = 4 << 20
# Of an id with IPv4 and with IPv6.
_ID_LENGTHS = (32, 56)
_NOWHERE = np.empty((3, 0), np.int64)
PREPARED = sysflags.TRANSACTION_PREPARED


# Half messages of one batch: their places come back in one reply.
BATCH_ROWS_MAX = 4096
# Batches of this size are taken by a broker that takes no larger ones, for its limits of messages or files.
SMALL_BATCH_BYTES = 256 << 10
# Where half messages are stored: the numbers of their queues, their offsets in the half queue, physical offsets.
Places = NDArray[np.int64]


class HalfMessageSender:
    """Sends the rows of one task attempt as half messages, and writes its manifest."""

    def __init__(
        self, log: CommitTopic, options: WriteOptions, *, attempt: str, query: str, batch: int, partition: int
    ) -> None:
        self._log = log
        self._options = options
        self._sender = RowSender(log.producer, options)
        self._attempt, self._query, self._batch = attempt, query, batch
        self._prefix = f"{log.name}/{batch}/{partition}/"
        self._queues: dict[MessageQueue, int] = {}
        self._ordered = False
        self._abilities = BrokerAbilities(log, options.timeout_ms)
        self._bytes_max = options.batch_bytes_max
        # Handles that no manifest has yet.
        self._found: list[Places] = []
        self._found_count = 0
        self._rows = 0
        self._sequence = 0
        self._first, self._last = 0, -1
        self.in_flight = SendsInFlight(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        # Those that go alone and have no task.
        self._singles: dict[int, RowSend] = {}
        self._begun = 0
        self._numbers: dict[MessageQueue, int] = {}

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that the rows sent so far go to."""
        return tuple(self._queues)

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send rows as half messages. Returns once all of them are stored, or in flight within the bound on that."""
        for part in parts(batch):
            await self._send_part(part)
            if self._found_count > commit_records.MANIFEST_ROWS_MAX - part.num_rows:
                await self._write_manifest()

    async def finish(self) -> AttemptPart:
        """Write the rest of the manifest; returns where it is."""
        if self._rows:
            passing("halves sent")
        await self._write_manifest()
        return AttemptPart(self._attempt, self._rows, self._first, self._last)

    async def _send_part(self, part: pa.RecordBatch) -> None:
        rows = CheckedRows(part, self._options.topic, leave_out=(DEDUPE_KEY,))
        if rows.delayed is not None:
            raise MessageIllegal(
                "a row asks for a later delivery, which a message in a transaction cannot have: leave delayLevel,"
                " delayMs and deliverTime out, or write with delivery at-least-once"
            )
        numbers = pa.array(np.arange(self._rows, self._rows + rows.count)).cast(pa.string())
        rows.texts |= {
            properties.TRANSACTION: Text("true"),
            properties.PRODUCER_GROUP: Text(self._log.topic),
            properties.CHECK_IMMUNITY_S: Text(str(IMMUNITY_S)),
            DEDUPE_KEY: Text(self._prefix, numbers),
        }
        items = self._sender.encode(rows)
        await self._send_all(items, await self._sender.targets(rows))
        self._found_count += rows.count
        self._rows += rows.count

    async def close(self) -> None:
        """Give up the sends that are under way, and wait until they have ended."""
        for send in list(self._singles.values()):
            send.give_up()
        await self.in_flight.end()

    async def _submit(self, send: Awaitable[Places], size: int) -> None:
        """Start a send that tells where its rows are stored, when there is room. Raises the error of an earlier one."""
        number = len(self._found)
        self._found.append(_NOWHERE)

        async def run() -> None:
            try:
                self._found[number] = await send
            except Exception as e:
                self.in_flight.fail(e)
            finally:
                self.in_flight.leave(size)

        await self.in_flight.room(size)
        self.in_flight.start(size, run())

    async def _submit_singles(
        self, items: BatchItems, rows: range, target: QueueTarget, queue: MessageQueue | None
    ) -> None:
        """Start the sends of rows one by one, each when there is room. Raises the error of an earlier one."""
        places = np.empty((3, len(rows)), np.int64)
        self._found.append(places)
        for at, row in enumerate(rows):
            if at or queue is None:
                queue = await self._sender.queues.next(target)
            out = self._sender.message(items, row, target, PREPARED)
            if not self.in_flight.has_room(len(out.body)):
                await self.in_flight.room(len(out.body))
            self._begin_single(out, target, queue, places, at)

    def _begin_single(
        self, out: PreparedMessage, target: QueueTarget, queue: MessageQueue | None, places: Places, at: int
    ) -> None:
        size = len(out.body)
        number = self._begun = self._begun + 1

        def told(sent: SendResult | None, error: BaseException | None) -> None:
            self._singles.pop(number, None)
            try:
                if sent is None:
                    assert error is not None
                    raise error
                places[0, at] = self._number_of(safely_stored(sent).queue)
                places[1, at] = sent.queue_offset
                places[2, at] = _position_of(sent.offset_message_id)
            except Exception as e:
                self.in_flight.fail(e)
            except asyncio.CancelledError:
                pass
            finally:
                self.in_flight.leave(size)

        self.in_flight.enter(size)
        send = self._sender.begin(out, target, queue, told, self.in_flight.go_on)
        if not send.done():
            self._singles[number] = send

    async def _send_all(
        self, items: BatchItems, groups: Sequence[tuple[QueueTarget, NDArray[np.int64] | None]]
    ) -> None:
        """Send all items to their targets, and note where they are stored, those of a target in the order of its rows.

        Raises the error of one that failed.
        """
        for target, group in groups:
            if target.queue is not None:
                self._ordered = True
            mine = items if group is None else items.take(group)
            large = self._alone(mine)
            at = 0
            while at < mine.count:
                queue = await self._sender.queues.next(target)
                if queue is not None and is_logical(queue):
                    # An end goes to the broker of the half message, which no logical queue names once it has moved.
                    raise ConfigError(
                        f"topic {target.topic!r} is a static topic, whose queues may move between a half message and"
                        " its end: write it with delivery at-least-once, or exactly once to a topic without a mapping"
                    )
                end = self._batch_end(mine, large, at)
                if queue is None or end == at or not (await self._abilities.of(queue)).batches:
                    # One by one; the queue that was found for it is that of the first.
                    end = max(end, at + 1)
                    await self._submit_singles(mine, range(at, end), target, queue)
                else:
                    out = self._sender.halves(mine, at, end, target)
                    await self._submit(self._send_batch(out, mine, at, end, target, queue), len(out.body))
                at = end
        await asyncio.sleep(0)
        passing("halves under way")

    def _alone(self, items: BatchItems) -> NDArray[np.int64]:
        """Return the items that no batch may hold: they are large, or compressed."""
        alone = np.diff(items.starts) > self._bytes_max
        if self._options.compression:
            alone |= items.body_bytes() > self._options.compress_over_bytes
        return np.flatnonzero(alone)

    def _batch_end(self, items: BatchItems, alone: NDArray[np.int64], at: int) -> int:
        """Return the end of the batch that begins at an item; `at` if this one goes alone."""
        end = int(np.searchsorted(items.starts, int(items.starts[at]) + self._bytes_max, "right")) - 1
        end = min(end, at + BATCH_ROWS_MAX, items.count)
        next_alone = int(np.searchsorted(alone, at))
        return min(end, int(alone[next_alone])) if next_alone < len(alone) else end

    async def _send_one(self, out: PreparedMessage, target: QueueTarget, queue: MessageQueue | None) -> Places:
        sent = safely_stored(await self._sender.send(out, target, queue))
        return self._places(sent, [_position_of(sent.offset_message_id)])

    async def _send_batch(
        self, out: PreparedMessage, items: BatchItems, at: int, end: int, target: QueueTarget, queue: MessageQueue
    ) -> Places:
        one_by_one = False
        try:
            sent = safely_stored(await self._sender.send(out, target, queue))
        except (SendFailed, ServerError) as e:
            if e.code == ResponseCode.MESSAGE_ILLEGAL and len(out.body) > BATCH_BYTES_LEAST:
                self._bytes_max = less_than(out, min(self._bytes_max, SMALL_BATCH_BYTES))
            elif one_by_one := e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or _is_cut(e):
                # Its topic needs them one by one, a broker of another kind took over, or what stands before it ends
                # the connection at a request that it does not know.
                self._abilities.no_batches(queue)
            else:
                raise
        else:
            return self._places(sent, half_ranges.positions_of(sent.offset_message_id, end - at))
        # An attempt whose reply was lost may have stored it: no manifest names that one, it is rolled back when it is
        # asked for. With ids of its own, so that no end of these is taken for one of it.
        items, at, end = self._sender.anew(items, at, end), 0, end - at
        found = []
        alone = np.arange(at, end) if one_by_one else self._alone(items)
        while at < end:
            stop = min(self._batch_end(items, alone, at), end)
            if stop > at:
                part = self._sender.halves(items, at, stop, target)
                found.append(await self._send_batch(part, items, at, stop, target, queue))
            else:
                stop = at + 1
                found.append(await self._send_one(self._sender.message(items, at, target, PREPARED), target, queue))
            at = stop
        return np.concatenate(found, axis=1)

    def _places(self, sent: SendResult, positions: Sequence[int] | NDArray[np.int64]) -> Places:
        number = self._number_of(sent.queue)
        count = len(positions)
        return np.array(
            (np.full(count, number), np.arange(sent.queue_offset, sent.queue_offset + count), positions), np.int64
        )

    def _number_of(self, queue: MessageQueue) -> int:
        """Return the number that the manifest has for a queue."""
        number = self._numbers.get(queue)
        if number is None:
            wire = self._options.access.wire_queue(queue)
            number = self._numbers[queue] = self._queues.setdefault(wire, len(self._queues))
        return number

    async def _write_manifest(self) -> None:
        await self.in_flight.settle()
        if not self._found_count:
            return
        every = np.concatenate(self._found, axis=1)
        self._found, self._found_count = [], 0
        for at in range(0, every.shape[1], commit_records.MANIFEST_ROWS_MAX):
            queues, half_offsets, positions = every[:, at : at + commit_records.MANIFEST_ROWS_MAX]
            count = len(positions)
            head = HandleHead(
                attempt=self._attempt,
                sequence=self._sequence,
                rows=count,
                query=self._query,
                batch=self._batch,
                ordered=self._ordered,
                queues=tuple((q.topic, q.broker_name, q.queue_id) for q in self._queues),
            )
            manifest = HandleManifest(head, queues.astype(np.int32), half_offsets, positions)
            offset = await self._log.append_manifest(manifest)
            if not self._sequence:
                self._first = offset
            self._last = offset
            self._sequence += 1


def _is_cut(error: RocketSparkError) -> bool:
    """Tell whether the connection ended at the last attempt too; of a broker that went away there is none any more."""
    return isinstance(error.__cause__, ConnectionLost)


def _position_of(message_id: str) -> int:
    """Return the physical offset in a broker's id. Raises UsageError for anything else."""
    try:
        if len(message_id) in _ID_LENGTHS:
            return int(message_id[-half_ranges.POSITION_DIGITS :], 16)
    except ValueError:
        pass
    return parse_offset_message_id(message_id)[2]
