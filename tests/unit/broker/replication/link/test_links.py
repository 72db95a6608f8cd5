"""The machines of both sides, without a socket: a link that is cut and chopped at any byte, sides that start again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.replication.link.memory_log import FILE_BYTES, MemoryLog

from rocketspark.broker.replication.link.links import (
    LinkState,
    MasterLink,
    SlaveLink,
    SwitchMasterLink,
    SwitchSlaveLink,
)
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import FrameError, ReplicationError
from rocketspark.protocol import ha
from rocketspark.store.files.epoch_file import EpochList

pytestmark = pytest.mark.shows(
    "any cuts of the link at any byte, kills of either side: equal logs, nothing doubled",
    "another file size, a log that diverges, is ahead or removed, foreign protocols, garbage, frames of any "
    "size, peers that stall or do not read",
    "heartbeats, housekeeping, flow control by all bytes, a new address at once",
)

SETTINGS = BrokerSettings(ha_batch_bytes=1000)


class Side:
    """A broker of either role: its log, its epochs, and what lasts from one connection to the next."""

    def __init__(self, *, switching: bool, replica_id: int = 1) -> None:
        self.log = MemoryLog()
        self.epochs = EpochList()
        self.switching = switching
        self.replica_id = replica_id
        self.confirmed = 0

    def restart(self) -> None:
        """What a kill leaves: whole records."""
        self.log.cut_partial_record()

    def as_master(self, settings: BrokerSettings = SETTINGS, now_s: float = 0.0) -> MasterLink:
        if not self.switching:
            return MasterLink(self.log, settings, now_s)
        return SwitchMasterLink(self.log, settings, now_s, epochs=self.epochs, confirmed=lambda: self.log.end_position)

    def as_slave(self, settings: BrokerSettings = SETTINGS, now_s: float = 0.0) -> SlaveLink:
        if not self.switching:
            return SlaveLink(self.log, settings, now_s)

        def confirm(position: int) -> None:
            self.confirmed = position

        return SwitchSlaveLink(
            self.log,
            settings,
            now_s,
            epochs=self.epochs,
            replica_id=self.replica_id,
            confirm=confirm,
        )


def pair(switching: bool) -> tuple[Side, Side]:
    master, slave = Side(switching=switching, replica_id=1), Side(switching=switching, replica_id=2)
    if switching:
        master.epochs.begin(1, 0)
    return master, slave


def run(master: MasterLink, slave: SlaveLink, now_s: float = 0.0, turns: int = 500) -> None:
    """Carry bytes until neither has anything to say."""
    to_master = slave.hello(now_s)
    for _ in range(turns):
        if to_master:
            master.received(to_master, now_s)
        to_slave = b"".join(iter(lambda: master.next_frame(now_s), b""))
        if not to_slave:
            return
        to_master = slave.received(to_slave, now_s)
    raise AssertionError("the two never come to rest")


def bodies(count: int, size: int = 700) -> list[bytes]:
    return [bytes([n % 251]) * (size + n % 13) for n in range(count)]


BOTH = pytest.mark.parametrize("switching", [False, True], ids=["classic", "switching"])


@BOTH
def test_an_empty_slave_gets_the_whole_log_and_is_counted(switching: bool) -> None:
    master, slave = pair(switching)
    master.log.put_all(bodies(30))
    one, other = master.as_master(), slave.as_slave()
    run(one, other)
    assert slave.log.content == master.log.content
    assert len(slave.log.content) > 5 * FILE_BYTES
    assert one.acked == master.log.end_position
    assert one.is_in_sync(master.log.end_position)
    assert one.caught_up_s == 0.0
    assert slave.epochs.starts == master.epochs.starts
    assert (one.replica_id, other.state) == (2 if switching else None, LinkState.TRANSFER)


@BOTH
def test_a_master_whose_first_files_are_gone_starts_at_the_first_it_has(switching: bool) -> None:
    master, slave = pair(switching)
    master.log.min_position = 3 * FILE_BYTES
    master.log.put_all(bodies(10))
    run(master.as_master(), slave.as_slave())
    assert (slave.log.min_position, slave.log.content) == (3 * FILE_BYTES, master.log.content)


def test_a_slave_may_begin_at_the_last_file() -> None:
    master, slave = pair(True)
    master.log.put_all(bodies(30))
    last = master.log.end_position - master.log.end_position % FILE_BYTES
    run(master.as_master(), slave.as_slave(BrokerSettings(sync_from_last_file=True)))
    assert slave.log.min_position == last
    assert slave.log.content == master.log.content[last:]


class Link:
    """A connection whose bytes come in pieces of any size, and whose rest is lost when it is cut."""

    def __init__(self, master: Side, slave: Side) -> None:
        self.one, self.other = master.as_master(), slave.as_slave()
        self.to_master = bytearray(self.other.hello(0.0))
        self.to_slave = bytearray()

    def carry(self, to_slave: bool, count: int) -> None:
        if to_slave:
            while len(self.to_slave) < count and (frame := self.one.next_frame(0.0)):
                self.to_slave += frame
            data, self.to_slave = bytes(self.to_slave[:count]), self.to_slave[count:]
            self.to_master += self.other.received(data, 0.0) if data else b""
        else:
            data, self.to_master = bytes(self.to_master[:count]), self.to_master[count:]
            if data:
                self.one.received(data, 0.0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 900)),
        st.tuples(st.just("down"), st.integers(1, 1500)),
        st.tuples(st.just("up"), st.integers(1, 20)),
        st.tuples(st.sampled_from(["cut", "kill slave", "kill master"]), st.just(0)),
    ),
    max_size=60,
)


@BOTH
@given(STEPS)
def test_whatever_happens_the_slave_holds_the_beginning_of_the_masters_log(switching: bool, steps: list[Any]) -> None:
    master, slave = pair(switching)
    link = Link(master, slave)
    for what, count in steps:
        if what == "put":
            master.log.put(bytes(count))
        elif what in ("down", "up"):
            link.carry(what == "down", count)
        else:
            if what == "kill slave":
                slave.restart()
            link = Link(master, slave)
        assert master.log.content.startswith(slave.log.content)
        assert link.one.acked <= slave.log.end_position
    run(master.as_master(), slave.as_slave())
    assert slave.log.content == master.log.content
    assert slave.epochs.starts in (master.epochs.starts, ())
    assert not slave.log.cuts


@pytest.mark.shows(
    "epoch file (byte for byte the official broker's), killed at any write; where two logs part; masters that "
    "take turns"
)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 3000)), min_size=1, max_size=8))
def test_masters_take_turns_and_the_other_follows(terms: list[tuple[int, int, int]]) -> None:
    """What the other got before it took office stays; what it did not get is cut from the old master, never more."""
    sides = [Side(switching=True, replica_id=1), Side(switching=True, replica_id=2)]
    sides[0].epochs.begin(1, 0)
    sides[0].log.put(b"first")
    run(sides[0].as_master(), sides[1].as_slave())
    written = 0
    for epoch, (who, count, carried) in enumerate(terms, 2):
        master, slave = sides[who], sides[1 - who]
        master.restart()
        before = bytes(master.log.content)
        master.epochs.begin(epoch, master.log.end_position)
        for _ in range(count):
            written += 1
            master.log.put(written.to_bytes(4, "big") * 60)
        link = Link(master, slave)
        for _ in range(20):
            link.carry(False, 100)
        link.carry(True, carried)
        link.carry(False, 100)
        assert master.log.content.startswith(before)
        assert link.one.acked <= slave.log.end_position
        slave.restart()
    master, slave = sides
    for epoch in (90, 91, 92):
        master, slave = slave, master
        master.epochs.begin(epoch, master.log.end_position)
        master.log.put(b"last")
        run(master.as_master(), slave.as_slave())
        assert slave.log.content == master.log.content


# -- what RocketMQ does not notice


def slave_of(log: MemoryLog, settings: BrokerSettings = SETTINGS) -> SlaveLink:
    return SlaveLink(log, settings, 0.0)


def refused(make: Any, reason: str) -> str:
    with pytest.raises(ReplicationError) as caught:
        make()
    assert caught.value.reason == reason
    return str(caught.value)


def test_a_slave_ahead_of_its_master_gets_signs_of_life_and_counts_for_nothing() -> None:
    master = MemoryLog()
    end = master.put_all(bodies(2))
    link = MasterLink(master, SETTINGS, 0.0)
    link.received(ha.encode_report(end + 500), 0.0)
    assert link.refused is not None
    assert link.refused.reason == "ahead"
    assert (link.acked, link.is_in_sync(end), link.next_frame(1.0)) == (-1, False, b"")
    # The master passes the slave's end: joining there would hide that the logs differ before.
    master.put_all(bodies(5))
    assert link.next_frame(5.0) == ha.encode_frame(end + 500)
    link.received(ha.encode_report(end + 500), 6.0)
    assert link.acked == -1


def test_a_slave_that_asks_for_what_is_gone_is_told_so() -> None:
    master = MemoryLog(start=2 * FILE_BYTES)
    master.put_all(bodies(5))
    link = MasterLink(master, SETTINGS, 0.0)
    link.received(ha.encode_report(FILE_BYTES), 0.0)
    assert link.refused is not None
    assert (link.refused.reason, link.next_frame(0.0)) == ("removed", b"")


def test_a_slave_too_slow_for_the_masters_cleaning_is_told_so() -> None:
    master = MemoryLog()
    master.put_all(bodies(20))
    link = MasterLink(master, SETTINGS, 0.0)
    link.received(ha.encode_report(0), 0.0)
    assert link.next_frame(0.0)
    master.min_position = 2 * FILE_BYTES
    assert link.next_frame(0.0) == b""
    assert link.refused is not None
    assert link.refused.reason == "removed"


def test_a_slave_that_reports_what_it_was_never_sent_is_closed() -> None:
    master = MemoryLog()
    master.put_all(bodies(20))
    link = MasterLink(master, SETTINGS, 0.0)
    link.received(ha.encode_report(0), 0.0)
    refused(lambda: link.received(ha.encode_report(5000), 0.0), "diverged")


def test_a_log_with_no_record_where_this_one_ends_is_not_joined() -> None:
    mine, masters = MemoryLog(), MemoryLog()
    mine.put_all(bodies(3, 100))
    masters.put_all(bodies(5, 333))
    before = bytes(mine.content)
    link = MasterLink(masters, SETTINGS, 0.0)
    slave = slave_of(mine)
    link.received(slave.hello(0.0), 0.0)
    refused(lambda: slave.received(link.next_frame(0.0), 0.0), "diverged")
    assert mine.content == before


def test_a_frame_of_another_position_is_not_appended() -> None:
    mine = MemoryLog()
    end = mine.put_all(bodies(3))
    slave = slave_of(mine)
    refused(lambda: slave.received(ha.encode_frame(end + 8, bytes(8)), 0.0), "diverged")
    refused(lambda: slave_of(mine).received(ha.encode_frame(end - 8), 0.0), "diverged")
    assert mine.end_position == end


@pytest.mark.parametrize(("mine", "theirs"), [(4096, 8192), (8192, 4096), (4096, 6000), (6000, 4096)])
def test_files_of_another_size_are_noticed(mine: int, theirs: int) -> None:
    master, own = MemoryLog(theirs), MemoryLog(mine)
    master.put_all(bodies(40))
    link, slave = MasterLink(master, SETTINGS, 0.0), slave_of(own)
    refused(lambda: run(link, slave), "file-size")
    # What was taken is whole and the master's.
    assert master.content.startswith(own.content)


def test_a_master_that_begins_within_a_file_has_others() -> None:
    slave = slave_of(MemoryLog(8192))
    refused(lambda: slave.received(ha.encode_frame(4096, bytes(200)), 0.0), "file-size")


def test_the_two_protocols_do_not_mix() -> None:
    hello = ha.encode_slave_handshake(ha.SlaveHandshake(7))
    refused(lambda: MasterLink(MemoryLog(), SETTINGS, 0.0).received(hello, 0.0), "protocol")
    master, _ = pair(True)
    with pytest.raises(FrameError, match="enableControllerMode"):
        master.as_master().received(ha.encode_report(77), 0.0)


def test_wrong_states_end_the_link() -> None:
    master, slave = pair(True)
    hello = ha.encode_slave_handshake(ha.SlaveHandshake(7))
    refused(lambda: master.as_master().received(ha.encode_switch_report(0), 0.0), "state")
    link = master.as_master()
    link.received(hello + ha.encode_switch_report(0), 0.0)
    refused(lambda: link.received(hello, 0.0), "state")
    frame = ha.encode_switch_frame(ha.Frame(0, b"", 1, 0, 0))
    refused(lambda: slave.as_slave().received(frame, 0.0), "state")
    answer = ha.encode_master_handshake(0, [(1, 0)])
    refused(lambda: slave.as_slave().received(answer + answer, 0.0), "state")


def test_logs_without_a_common_epoch_need_a_human() -> None:
    master, slave = pair(True)
    slave.epochs.begin(3, 0)
    slave.log.put(b"other")
    link, other = master.as_master(), slave.as_slave()
    link.received(other.hello(0.0), 0.0)
    assert "no epoch in common (3 from 0; 1 from 0)" in refused(
        lambda: other.received(link.next_frame(0.0), 0.0), "diverged"
    )
    assert slave.log.cuts == []


# -- frames and times


def test_frames_keep_to_files_to_the_batch_and_to_what_java_takes() -> None:
    log = MemoryLog(16 << 20)
    log.put_all([bytes(60_000)] * 100)
    for batch, largest in ((1000, 1012), (1 << 30, ha.FRAME_BYTES_MAX)):
        link = MasterLink(log, BrokerSettings(ha_batch_bytes=batch), 0.0)
        link.received(ha.encode_report(0), 0.0)
        assert len(link.next_frame(0.0)) == largest


def test_frames_end_with_their_epoch_and_name_the_next() -> None:
    """As RocketMQ cuts them: the last piece of an epoch, empty or not, carries the next one's number and start."""
    master, _ = pair(True)
    first = master.log.put(b"a")
    master.epochs.begin(4, first)
    master.log.put(b"b")
    link = master.as_master()
    link.received(ha.encode_slave_handshake(ha.SlaveHandshake(7)) + ha.encode_switch_report(0), 0.0)
    frames = ha.SwitchFrames().feed(b"".join(iter(lambda: link.next_frame(0.0), b"")))
    end = master.log.end_position
    assert [(f.position, len(f.body), f.epoch, f.epoch_start) for f in frames[1:] if isinstance(f, ha.Frame)] == [
        (0, first, 4, first),
        (first, end - first, 4, first),
    ]


def test_flow_control_counts_what_it_sends() -> None:
    log = MemoryLog(1 << 20)
    log.put_all([bytes(909)] * 50)
    link = MasterLink(log, BrokerSettings(ha_batch_bytes=700, ha_flow_control=True, ha_bytes_per_second_max=5000), 0.0)
    link.received(ha.encode_report(0), 0.0)
    sent = 0
    for second in range(5):
        now_s = second + 0.25
        part = sum(len(frame) for frame in iter(lambda now_s=now_s: link.next_frame(now_s), b""))
        assert part == 5000
        assert link.due_s() == second + 1
        sent += part
    assert link.window.rate(5.0) == 5000
    assert sent == 25_000


@pytest.mark.shows("a master that is frozen")
def test_signs_of_life_and_silence() -> None:
    master, slave = pair(False)
    settings = BrokerSettings(ha_heartbeat_interval_ms=500, ha_housekeeping_interval_ms=2000)
    link, other = master.as_master(settings), slave.as_slave(settings)
    # Before the slave asked, the master says nothing, and waits no longer than for any other word.
    assert (link.next_frame(1.0), link.due_s()) == (b"", 2.0)
    link.received(other.hello(1.0), 1.0)
    # Its first word is due at once. Until it comes the slave does not copy: a system takes connections for who hangs.
    assert other.state is LinkState.HANDSHAKE
    assert link.due_s() < 1.0
    word = link.next_frame(1.0)
    assert word == ha.encode_frame(0)
    assert (link.next_frame(1.4), link.due_s()) == (b"", pytest.approx(1.5))
    other.received(word, 1.0)
    assert other.state is LinkState.TRANSFER
    assert other.due_s() == 1.5
    assert (other.check(1.4), other.check(1.5)) == (b"", ha.encode_report(0))
    link.check(2.9)
    refused(lambda: link.check(3.0), "stalled")
    refused(lambda: other.check(3.0), "stalled")


@BOTH
def test_several_frames_in_one_read_are_one_report(switching: bool) -> None:
    master, slave = pair(switching)
    master.log.put_all(bodies(4))
    link, other = master.as_master(), slave.as_slave()
    if switching:
        link.received(other.hello(0.0), 0.0)
        link.received(other.received(link.next_frame(0.0), 0.0), 0.0)
    else:
        link.received(other.hello(0.0), 0.0)
    data = b"".join(iter(lambda: link.next_frame(0.0), b""))
    encode = ha.encode_switch_report if switching else ha.encode_report
    assert other.received(data, 0.0) == encode(master.log.end_position)


@pytest.mark.shows("mended: a slave that holds all that is flushed counted as behind for as long as more is written")
def test_who_holds_what_may_be_sent_is_behind_by_no_time() -> None:
    log, slave = MemoryLog(), Side(switching=False)
    flushed = 0
    link = MasterLink(log, SETTINGS, 0.0, sent_end=lambda: flushed)
    other = slave.as_slave()
    link.received(other.hello(0.0), 0.0)
    other.received(link.next_frame(0.0), 0.0)
    for second in (1.0, 2.0, 3.0):
        # More is written before each flush ends.
        flushed = log.end_position
        log.put(bytes(700))
        for frame in iter(lambda now_s=second: link.next_frame(now_s), b""):  # type: ignore[misc]
            link.received(other.received(frame, second), second)
        assert (slave.log.end_position, link.acked) == (flushed, flushed)
        assert link.caught_up_s == second
