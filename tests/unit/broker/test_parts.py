"""The broker's small parts on their own: who waits, who holds a lock, who flushes, names, offsets."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.live.support import run, until
from tests.unit.broker.offline import quarantine_in

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.consumers.rebalance_locks import RebalanceLocks
from rocketspark.broker.messages.put_message import pairs_of
from rocketspark.broker.messages.schedule_messages import ScheduleMessages, encode_delay_offsets
from rocketspark.broker.messages.send_rules import any_queue
from rocketspark.broker.storage.flush import FlushService
from rocketspark.broker.storage.json_tables import JsonFile, next_version
from rocketspark.errors import ConfigError, ServerError, StoreFull, StoreUnwritable
from rocketspark.model import MessageQueue
from rocketspark.protocol.json.bodies import DataVersion, DelayOffsetTable, OffsetTable
from rocketspark.protocol.message import properties

QUEUES = [MessageQueue("T", "a", i) for i in range(4)]


def test_locks_by_time() -> None:
    locks = RebalanceLocks(expiry_ms=100)
    assert locks.lock("G", "c1", QUEUES[:2], 1000) == QUEUES[:2]
    assert locks.lock("G", "c2", QUEUES[:3], 1050) == QUEUES[2:3]
    assert locks.lock("H", "c2", QUEUES[:2], 1050) == QUEUES[:2], "another group's locks are its own"
    assert locks.lock("G", "c1", QUEUES[:1], 1080) == QUEUES[:1], "renewed"
    assert locks.lock("G", "c2", QUEUES[:2], 1100) == [], "60 s are over only when they are over"
    assert locks.lock("G", "c2", QUEUES[:2], 1101) == QUEUES[1:2]
    assert locks.lock("G", "c2", QUEUES[:2], 1181) == QUEUES[:2]


def test_only_the_holder_gives_a_lock_back() -> None:
    locks = RebalanceLocks()
    locks.lock("G", "c1", QUEUES, 0)
    locks.unlock("G", "c2", QUEUES)
    assert locks.lock("G", "c2", QUEUES, 1) == []
    locks.unlock("G", "c1", QUEUES[1:])
    assert locks.lock("G", "c2", QUEUES, 2) == QUEUES[1:]
    locks.unlock("Unknown", "c1", QUEUES)


class Asked:
    """A waiter that says what it was asked and answers on demand."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[bool] = []

    def __call__(self, final: bool) -> bool:
        self.asked.append(final)
        return self.answers.pop(0) if self.answers else final


def test_a_waiter_is_asked_once_for_a_burst_and_until_it_answers() -> None:
    async def main() -> None:
        long_polling = LongPolling()
        waiter, other = Asked(False, True), Asked()
        long_polling.wait(("T", 0), 60, waiter)
        long_polling.wait(("T", 1), 60, other)
        for _ in range(100):
            long_polling.mark("T", 0)
        assert waiter.asked == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiter.asked == [False]
        assert long_polling.waiting == 2
        long_polling.mark("T", 0)
        long_polling.mark("U", 0)
        await until(lambda: long_polling.waiting == 1)
        assert (waiter.asked, other.asked) == ([False, False], [])
        long_polling.mark("T", 0)
        long_polling.close()
        assert (waiter.asked, other.asked, long_polling.waiting) == ([False, False], [True], 0)

    run(main())


def test_a_waiter_is_asked_a_last_time_when_its_time_is_over() -> None:
    async def main() -> None:
        long_polling = LongPolling()
        waiter, dropped = Asked(), Asked()
        long_polling.wait(("T", 0), 0.02, waiter)
        long_polling.drop(long_polling.wait(("T", 0), 0.02, dropped))
        await until(lambda: waiter.asked)
        await asyncio.sleep(0.03)
        assert (waiter.asked, dropped.asked, long_polling.waiting) == ([True], [], 0)

    run(main())


def test_a_waiter_that_waits_again_while_it_is_asked() -> None:
    async def main() -> None:
        long_polling = LongPolling()
        second = Asked()
        answered = []

        def first(final: bool) -> bool:
            long_polling.wait(("T", 0), 60, second)
            answered.append(final)
            return True

        long_polling.wait(("T", 0), 60, first)
        long_polling.mark("T", 0)
        await until(lambda: answered)
        assert long_polling.waiting == 1
        assert second.asked == []
        long_polling.mark("T", 0)
        await until(lambda: second.asked)
        long_polling.close()

    run(main())


class Disk:
    """A store of which only the flushing is there."""

    def __init__(self) -> None:
        self.written_position = 0
        self.flushes = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.queues_gate = threading.Event()
        self.queues_gate.set()
        self.queue_errors: list[Exception] = []
        self.calls: list[str] = []
        # The ends of what readers see, one after another.
        self.shown: list[int | None] = []
        self.flushed_position = 0

    @property
    def shown_end(self) -> int:
        return self.shown[-1] if self.shown and self.shown[-1] is not None else self.written_position

    def show_flushed(self, position: int | None) -> None:
        if [position] != self.shown[-1:]:
            self.shown.append(position)

    def flush_each(self, on: bool) -> None: ...

    def flush_log(self) -> int:
        upto = self.written_position
        self.gate.wait(120)
        if self.error:
            raise self.error
        self.flushes += 1
        return upto

    def flush_queues(self) -> None:
        self.calls.append("queues")
        self.queues_gate.wait(120)
        if self.queue_errors:
            raise self.queue_errors.pop()

    def flush_indexes(self) -> None:
        self.calls.append("indexes")

    def write_checkpoint(self) -> None:
        self.calls.append("checkpoint")

    def remove_deleted(self) -> None: ...

    def populate_ahead(self) -> None: ...

    def stop_writes(self, reason: Exception) -> None:
        self.calls.append("stopped")


def flush_service(
    disk: Disk, timeout_ms: int = 5000, queue_interval_ms: int = 60_000, arrivals: LongPolling | None = None
) -> FlushService:
    store: Any = disk
    made = FlushService(
        store, interval_ms=60_000, queue_interval_ms=queue_interval_ms, timeout_ms=timeout_ms, arrivals=arrivals
    )
    made.start()
    return made


def test_one_flush_serves_all_who_wait() -> None:
    async def main() -> None:
        disk = Disk()
        made = flush_service(disk)
        told: list[tuple[int, bool]] = []
        disk.gate.clear()
        for position in range(1, 101):
            disk.written_position = position
            made.reached(position, lambda done, p=position: told.append((p, done)))  # type: ignore[misc]
        assert told == []
        disk.gate.set()
        await until(lambda: len(told) == 100)
        assert told == [(p, True) for p in range(1, 101)]
        assert disk.flushes <= 3
        made.stop_threads()
        made.finish()

    run(main())


def test_a_flush_that_takes_too_long_or_fails_is_told_as_such() -> None:
    async def main() -> None:
        disk = Disk()
        disk.written_position = 1
        made = flush_service(disk, timeout_ms=50)
        told: list[bool] = []
        disk.gate.clear()
        started = time.monotonic()
        made.reached(1, told.append)
        await until(lambda: told)
        assert told == [False]
        assert time.monotonic() - started < 50
        disk.error = StoreUnwritable("gone")
        disk.written_position = 2
        made.reached(2, told.append)
        disk.gate.set()
        await until(lambda: len(told) == 2)
        assert told == [False, False]
        await until(lambda: made.failed)
        made.reached(3, told.append)
        assert told == [False] * 3
        made.stop_threads()
        made.finish()

    run(main())


@pytest.mark.shows("mended: under SYNC_FLUSH readers are not shown what the next power cut would take")
def test_readers_are_shown_what_is_flushed_before_it_is_acknowledged() -> None:
    async def main() -> None:
        disk = Disk()
        arrivals = LongPolling(log_end=lambda: disk.written_position)
        service = flush_service(disk, arrivals=arrivals)
        service.show_flushed(True)
        assert disk.shown == [0]
        waiter = Asked()
        arrivals.wait(("T", 0), 60, waiter)
        disk.gate.clear()
        disk.written_position = 7
        arrivals.mark("T", 0)
        await asyncio.sleep(0)
        assert waiter.asked == [False]  # Its look finds nothing yet.
        disk.gate.set()
        await until(lambda: len(waiter.asked) == 2)
        assert disk.shown == [0, 7], "nobody waited for the flush, and it was made"
        disk.written_position = 9
        seen: list[list[int | None]] = []
        service.reached(9, lambda done: seen.append([*disk.shown]))
        await until(lambda: seen)
        assert seen == [[0, 7, 9]]
        service.show_flushed(False)
        assert (disk.shown[-1], arrivals.keeps_recent) == (None, False)
        service.stop_threads()
        service.finish()

    run(main())


@pytest.mark.shows("no acknowledgement waits for queue or index flushes")
def test_nobody_waits_for_queues_and_indexes() -> None:
    async def main() -> None:
        disk = Disk()
        disk.queues_gate.clear()
        made = flush_service(disk, queue_interval_ms=1)
        await until(lambda: disk.calls)
        told: list[bool] = []
        for position in (1, 2):
            disk.written_position = position
            made.reached(position, told.append)
            await until(lambda: len(told) == position)  # noqa: B023
        assert (told, disk.calls) == ([True, True], ["queues"])
        disk.queues_gate.set()
        await until(lambda: len(disk.calls) >= 6)
        assert disk.calls[:6] == ["queues", "indexes", "checkpoint"] * 2
        made.stop_threads()
        made.finish()

    run(main())


@pytest.mark.shows("mended: a failed flush of a queue (EMFILE) does not stop appends")
def test_a_failed_flush_of_queues_fails_all() -> None:
    async def main() -> None:
        disk = Disk()
        told: list[bool] = []
        disk.gate.clear()
        disk.queues_gate.clear()
        disk.queue_errors = [StoreUnwritable("gone")]
        made = flush_service(disk, queue_interval_ms=1)
        made.reached(1, told.append)
        disk.queues_gate.set()
        await until(lambda: told)
        made.reached(2, told.append)
        assert told == [False, False]
        assert str(made.failed) == "gone"
        assert "stopped" in disk.calls, "what waits for no flush is not taken either"
        assert "checkpoint" not in disk.calls
        disk.gate.set()
        made.stop_threads()
        made.finish()

    run(main())


def test_queues_without_room_are_flushed_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = Disk()
        disk.queue_errors = [StoreUnwritable("no descriptor", retriable=True), StoreFull("full"), StoreFull("full")]
        made = flush_service(disk, queue_interval_ms=1)
        await until(lambda: "checkpoint" in disk.calls)
        assert disk.calls[:6] == [*["queues"] * 4, "indexes", "checkpoint"]
        assert made.failed is None
        assert [r.getMessage().split(":")[1] for r in caplog.records if r.levelname == "WARNING"] == [
            " full",
            " no descriptor",
        ]
        made.stop_threads()
        made.finish()

    run(main())


@pytest.mark.shows("mended: a failed flush of a queue (EMFILE) does not stop appends")
@pytest.mark.parametrize("part", ["log", "queues"])
def test_whatever_ends_a_flush_ends_the_sends(part: str) -> None:
    async def main() -> None:
        disk = Disk()
        told: list[bool] = []
        if part == "log":
            disk.error = ValueError("unforeseen")
        else:
            disk.queue_errors = [ValueError("unforeseen")]
            disk.gate.clear()
        made = flush_service(disk, queue_interval_ms=1)
        made.reached(1, told.append)
        await until(lambda: told)
        assert told == [False]
        assert "stopped" in disk.calls
        assert "unforeseen" in str(made.failed)
        disk.gate.set()
        made.stop_threads()
        made.finish()

    run(main())


@pytest.mark.shows("mended: a failed flush of a queue (EMFILE) does not stop appends")
def test_a_log_that_can_be_flushed_again_is(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = Disk()
        told: list[bool] = []
        disk.written_position = 1
        disk.error = StoreUnwritable("no descriptor", retriable=True)
        made = flush_service(disk)
        made.reached(1, told.append)
        await until(lambda: "no descriptor" in caplog.text)
        disk.error = None
        made._wanted.set()
        await until(lambda: told)
        assert told == [True]
        assert made.failed is None
        assert "stopped" not in disk.calls
        made.stop_threads()
        made.finish()

    run(main())


def test_one_who_cannot_be_told_keeps_nobody_waiting() -> None:
    async def main() -> None:
        disk = Disk()
        told: list[bool] = []
        disk.written_position = 1
        made = flush_service(disk)

        def broken(durable: bool) -> None:
            raise ValueError("broken")

        for tell in (broken, told.append):
            made.reached(1, tell)
        await until(lambda: told)
        assert told == [True]
        made.stop_threads()
        made.finish()

    run(main())


def test_those_who_wait_at_the_end_are_told_by_the_last_flush() -> None:
    async def main() -> None:
        disk = Disk()
        made = flush_service(disk)
        made.stop_threads()
        told: list[bool] = []
        disk.written_position = 5
        made.reached(5, told.append)
        made.reached(9, told.append)
        made.finish()
        assert told == [True, False]

    run(main())


@pytest.mark.parametrize("name", ["T", "a-b_c%d|e", "0", "T" * 127, "%RETRY%G"])
def test_topics_that_may_be(name: str) -> None:
    topic_names.check_topic(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a/b", "ü", "T\n", "\nT", "T\x00", "T" * 128, "a\u0661"])
def test_topics_that_may_not_be(name: str) -> None:
    with pytest.raises(ServerError) as e:
        topic_names.check_topic(name)
    assert e.value.code == 29


@pytest.mark.shows("mended: a group name of 249-255 bytes ends both flush threads, no start succeeds")
@pytest.mark.parametrize("name", ["", " ", "a b", "G\n", "G" * 121, "../G"])
def test_groups_that_may_not_be(name: str) -> None:
    with pytest.raises(ServerError) as e:
        topic_names.check_group(name)
    assert e.value.code == 29


@pytest.mark.shows("mended: a group name of 249-255 bytes ends both flush threads, no start succeeds")
def test_the_topics_of_the_longest_group_may_be() -> None:
    group = "G" * topic_names.GROUP_LENGTH_MAX
    topic_names.check_group(group)
    for topic in (topic_names.retry_topic(group), topic_names.dead_letter_topic(group)):
        topic_names.check_topic(topic)


def test_names_the_broker_makes() -> None:
    assert (topic_names.retry_topic("G"), topic_names.dead_letter_topic("G")) == ("%RETRY%G", "%DLQ%G")
    assert topic_names.is_system_topic("rmq_sys_anything")
    assert topic_names.is_system_topic("TBW102")
    assert not topic_names.is_system_topic("%RETRY%G")


def test_properties_as_they_were_sent() -> None:
    assert pairs_of(b"a\x01b\x02c\x01d") == {b"a": b"b", b"c": b"d"}
    assert pairs_of(b"a\x01\x02\x01x\x02noise\x02c\x01d\x02") == {b"c": b"d"}
    assert pairs_of(b"") == {}
    assert pairs_of(b"a\x011\x02a\x012\x02") == {b"a": b"2"}
    # A name stands at the start or after 0x02; a value may hold 0x01.
    assert pairs_of(b"\x01x\x01y\x02a\x01b\x01c") == {b"a": b"b\x01c"}


@given(st.text("\x01\x02ab", max_size=30))
def test_properties_as_bytes_are_those_of_the_text(text: str) -> None:
    assert pairs_of(text.encode()) == {k.encode(): v.encode() for k, v in properties.decode(text).items()}


@pytest.mark.parametrize(
    "text", [b"k" * 10**6, b"k\x02" * 10**6, b"k\x01" * 10**6, b"k" * 10**6 + b"\x01", b"\x01" * 10**6]
)
def test_properties_cost_no_more_than_their_length(text: bytes) -> None:
    started = time.process_time()
    pairs_of(text)
    assert time.process_time() - started < 4


def test_any_queue_is_one_of_them() -> None:
    assert {any_queue(3) for _ in range(200)} == {0, 1, 2}
    assert any_queue(0) == any_queue(-1) == 0


def offsets_file(tmp_path: Path) -> JsonFile[OffsetTable]:
    return JsonFile(tmp_path / "consumerOffset.json", OffsetTable, encode_offsets)


def test_offsets_are_written_in_rocketmq_s_form_and_read_again(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(offsets_file(tmp_path))
    offsets.save()
    assert not (tmp_path / "consumerOffset.json").exists(), "nothing changed"
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "T", 10, 7)
    offsets.commit("H", "%RETRY%H", 0, 1)
    offsets.save()
    text = (tmp_path / "consumerOffset.json").read_bytes()
    assert b'"offsetTable":{"T@G":{0:5,10:7},"%RETRY%H@H":{0:1}}' in text
    again = ConsumerOffsets(offsets_file(tmp_path))
    assert again.of("G", "T") == {0: 5, 10: 7}
    assert (again.get("G", "T", 10), again.get("G", "T", 1), again.get("X", "T", 0)) == (7, None, None)
    assert (again.topics_of("G"), again.groups_of("T")) == (["T"], ["G"])
    assert again.version.counter == 0
    again.delete_topic("T")
    again.save()
    assert ConsumerOffsets(offsets_file(tmp_path)).of("G", "T") == {}


@pytest.mark.shows("the last batch of an exactly-once write over a broker's restart, after its records expired")
@pytest.mark.parametrize("topic", ["SPARK_TX_totals", "INST1%SPARK_TX_totals"])
def test_numbers_that_exactly_once_writes_keep_are_no_offsets(topic: str, tmp_path: Path) -> None:
    """The last batch of a writer, its query and rows: lowered at a start, its next batch would be written twice."""
    offsets = ConsumerOffsets(offsets_file(tmp_path))
    kept = {0: 40, 1: 17, 2: 1 << 61, 3: (1 << 62) - 1}
    for queue_id, number in kept.items():
        offsets.commit(topic, topic, queue_id, number)
        offsets.commit("reader", topic, queue_id, number)
        offsets.commit("orders", "orders", queue_id, number)
    offsets.keep_within(lambda topic, queue_id: (40, 5)[queue_id] if queue_id < 2 else 0)
    again = ConsumerOffsets(offsets_file(tmp_path))
    assert again.of(topic, topic) == kept
    assert again.of("reader", topic) == again.of("orders", "orders") == {0: 40, 1: 5, 2: 0, 3: 0}


@pytest.mark.shows(
    "`consumerOffsetUpdateVersionStep`, `delayOffsetUpdateVersionStep`, `enableSplitMetadata`, `splitMetadataSize`"
)
def test_the_version_of_offsets_rises_once_in_so_many_commits(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(offsets_file(tmp_path), lambda: 3)
    for number in range(8):
        offsets.commit("G", "T", 0, number // 2)
        assert offsets.version.counter == (number + 1) // 3
    offsets.save()
    assert ConsumerOffsets(offsets_file(tmp_path)).version == offsets.version
    usual = ConsumerOffsets(offsets_file(tmp_path))
    for number in range(1000):
        usual.commit("G", "T", 0, number)
    assert usual.version.counter == offsets.version.counter + 2


def test_offsets_of_a_broker_that_quotes_its_keys_are_read(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{"0":"5"}},"groupTopicMap":{}}')
    assert ConsumerOffsets(offsets_file(tmp_path)).of("G", "T") == {0: 5}


def test_delay_offsets_are_written_in_rocketmq_s_form() -> None:
    table = DelayOffsetTable(offset_table={1: 7, 18: 2}, data_version=DataVersion(counter=3))
    assert encode_delay_offsets(table) == (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":0},"offsetTable":{1:7,18:2}}'
    )


def test_delay_levels_and_due_times(tmp_path: Path) -> None:
    store: Any = None
    file = JsonFile(tmp_path / "delayOffset.json", DelayOffsetTable, encode_delay_offsets)
    delays = ScheduleMessages(store, (1000, 5000, 60_000), file, quarantine_in(tmp_path))
    assert [delays.level(text) for text in (b"1", b"3", b"4", b"999999999999", b"0", b"-2", b"x", b"", b"1.5")] == [
        *(1, 3, 3, 3, 0, 0, 0, 0, 0),
    ]
    assert [delays.due_ms(level, 100) for level in (1, 2, 3)] == [1100, 5100, 60_100]


def test_a_version_grows_with_each_change() -> None:
    before = DataVersion(state_version=2, timestamp=5, counter=9)
    after = next_version(before)
    assert (after.state_version, after.counter) == (2, 10)
    assert after.timestamp >= int(time.time() * 1000) - 1000
    assert after != before


def test_a_config_file_that_was_cut_off_is_read_from_its_bak(tmp_path: Path) -> None:
    file = offsets_file(tmp_path)
    assert file.load() is None
    for offset in (1, 2):
        file.save(OffsetTable(offset_table={"T@G": {0: offset}}))
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@')
    found = file.load()
    assert found is not None
    assert found.offset_table == {"T@G": {0: 1}}
    path.with_suffix(".json.bak").write_text("[]")
    with pytest.raises(ConfigError, match="mend or remove them"):
        file.load()
    path.unlink()
    path.with_suffix(".json.bak").unlink()
    assert file.load() is None


def test_offsets_told_to_brokers_have_their_more_tables(tmp_path: Path) -> None:
    """Java's brokers skip the last, and their JSON reader fails over bare numbers in what it skips."""
    offsets = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json", OffsetTable))
    offsets.commit("G", "T", 2, 7)
    offsets.note_pull("G", "T", 2, 9)
    told = b"".join(offsets.reply_snapshot())
    assert b'"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{2:7}},"pullOffsetTable":{"T@G":{"2":9}}}' in told
    offsets.delete_topic("T")
    assert b"".join(offsets.reply_snapshot()).endswith(b',"pullOffsetTable":{},"readersAnew":{"T@G":{"2":0}}}')
