"""What official masters and slaves said to each other: read, answered and said alike by ours."""

from __future__ import annotations

import pytest
from tests.support.ha_streams import Link, classic_frames, controller_frames, controller_reports, links, manifest
from tests.support.ha_streams import MasterHandshake as Greeting
from tests.support.ha_streams import SlaveHandshake as Hello
from tests.unit.broker.replication.link.memory_log import MemoryLog

from rocketspark.broker.replication.link.links import MasterLink, SlaveLink, SwitchMasterLink, SwitchSlaveLink
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol import ha
from rocketspark.store.files.epoch_file import EpochList

pytestmark = pytest.mark.shows(
    "the HA link, both protocols, as bytes: cut anywhere, any bytes at all, what official brokers said to each other"
)

CLASSIC, SWITCHING = links("classic"), links("controller")
FILE_BYTES = manifest()["settings"]["mappedFileSizeCommitLog"]
SETTINGS = BrokerSettings(ha_batch_bytes=manifest()["settings"]["haTransferBatchSize"])


def ids(found: list[Link]) -> list[str]:
    return [link.name for link in found]


@pytest.mark.parametrize("link", CLASSIC, ids=ids(CLASSIC))
def test_classic_streams_are_read_and_written_as_they_are(link: Link) -> None:
    reports = ha.ClassicReports().feed(link.slave)
    assert b"".join(ha.encode_report(report.position) for report in reports) == link.slave
    frames = ha.ClassicFrames().feed(link.master)
    assert b"".join(ha.encode_frame(frame.position, frame.body) for frame in frames) == link.master
    assert len(frames) == len(list(classic_frames(link.master)))


@pytest.mark.parametrize("link", SWITCHING, ids=ids(SWITCHING))
def test_switching_streams_are_read_and_written_as_they_are(link: Link) -> None:
    found = ha.SwitchReports().feed(link.slave)
    assert len(found) == len(list(controller_reports(link.slave)))
    told = [
        ha.encode_switch_report(piece.position) if isinstance(piece, ha.Report) else ha.encode_slave_handshake(piece)
        for piece in found
    ]
    assert b"".join(told) == link.slave
    sent = ha.SwitchFrames().feed(link.master)
    assert len(sent) == len(list(controller_frames(link.master)))
    told = [
        ha.encode_switch_frame(piece)
        if isinstance(piece, ha.Frame)
        else ha.encode_master_handshake(piece.end_position, piece.epochs)
        for piece in sent
    ]
    assert b"".join(told) == link.master


def masters_log(protocol: str) -> MemoryLog:
    """The master's whole log, from the captured frames."""
    log = MemoryLog(FILE_BYTES)
    pieces: dict[int, bytes] = {}
    for link in links(protocol):
        for frame in (classic_frames if protocol == "classic" else controller_frames)(link.master):
            if not isinstance(frame, Greeting) and frame.body:
                pieces[frame.offset] = max(pieces.get(frame.offset, b""), frame.body, key=len)
    for at in sorted(pieces):
        fresh = pieces[at][max(0, log.end_position - at) :]
        log.content += fresh
    assert log.end_position == manifest()["logs"][protocol]["end"]
    return log


@pytest.mark.parametrize("link", CLASSIC, ids=ids(CLASSIC))
@pytest.mark.parametrize("cut", [1, 7, 4096])
def test_a_slave_of_ours_takes_what_an_official_master_sent(link: Link, cut: int) -> None:
    whole = masters_log("classic")
    frames = list(classic_frames(link.master))
    begin = frames[0].offset
    log = MemoryLog(FILE_BYTES, begin - begin % FILE_BYTES)
    log.content += whole.content[log.min_position : begin]
    slave = SlaveLink(log, SETTINGS, 0.0)
    for at in range(0, len(link.master), cut):
        slave.received(link.master[at : at + cut], 0.0)
    assert log.end_position == frames[-1].offset + len(frames[-1].body)
    assert log.content == whole.content[log.min_position : log.end_position]


@pytest.mark.parametrize("link", SWITCHING, ids=ids(SWITCHING))
def test_a_slave_of_ours_follows_an_official_master_through_its_epochs(link: Link) -> None:
    whole = masters_log("controller")
    sent = list(controller_frames(link.master))
    frames = [piece for piece in sent if not isinstance(piece, Greeting)]
    greeting = sent[0]
    assert isinstance(greeting, Greeting)
    # A master whose log is empty sends signs of life from -1.
    begin = max(0, frames[0].offset)
    log, epochs, confirmed = MemoryLog(FILE_BYTES), EpochList(), []
    log.content += whole.content[:begin]
    for epoch, start in greeting.epochs:
        if start < begin:
            epochs.append(epoch, start)
    hello = next(piece for piece in controller_reports(link.slave) if isinstance(piece, Hello))
    slave = SwitchSlaveLink(log, SETTINGS, 0.0, epochs=epochs, replica_id=hello.broker_id, confirm=confirmed.append)
    assert slave.hello(0.0) == link.slave[:16]
    slave.received(link.master, 0.0)
    end = frames[-1].offset + len(frames[-1].body)
    assert (log.end_position, log.cuts) == (end, [])
    assert log.content == whole.content[:end]
    last = frames[-1]
    assert confirmed[-1] == min(last.confirm_offset, end)
    if end > last.epoch_start:
        assert epochs.starts[-1] == (last.epoch, last.epoch_start)


@pytest.mark.parametrize("link", [CLASSIC[1]], ids=["classic-2"])
def test_a_master_of_ours_sends_the_same_frames(link: Link) -> None:
    """Of a slave that comes again: one catch-up, cut as the official master cuts it."""
    log = masters_log("classic")
    frames = [frame for frame in classic_frames(link.master) if frame.body]
    end = frames[-1].offset + len(frames[-1].body)
    del log.content[end:]
    master = MasterLink(log, SETTINGS, 0.0)
    master.received(link.slave[:8], 0.0)
    sent = list(classic_frames(b"".join(iter(lambda: master.next_frame(0.0), b""))))
    assert sent == frames


def test_a_master_of_ours_goes_through_its_epochs_as_an_official_one() -> None:
    """Of a late slave, sent all of several epochs: the last frame of each epoch names the next one."""
    link = SWITCHING[-1]
    sent = list(controller_frames(link.master))
    greeting = sent[0]
    assert isinstance(greeting, Greeting)
    assert len(greeting.epochs) > 1
    frames = [piece for piece in sent if not isinstance(piece, Greeting) and piece.body]
    log, epochs = masters_log("controller"), EpochList()
    for epoch, start in greeting.epochs:
        epochs.append(epoch, start)
    master = SwitchMasterLink(log, SETTINGS, 0.0, epochs=epochs, confirmed=lambda: 0)
    reports = controller_reports(link.slave)
    hello = next(reports)
    assert isinstance(hello, Hello)
    master.received(ha.encode_slave_handshake(ha.SlaveHandshake(hello.broker_id)), 0.0)
    assert master.next_frame(0.0) == link.master[: 20 + 12 * len(greeting.epochs)]
    master.received(ha.encode_switch_report(next(r for r in reports if isinstance(r, int))), 0.0)
    mine = list(controller_frames(b"".join(iter(lambda: master.next_frame(0.0), b""))))
    shown = [(f.offset, len(f.body), f.epoch, f.epoch_start) for f in mine if not isinstance(f, Greeting)]
    assert shown == [(f.offset, len(f.body), f.epoch, f.epoch_start) for f in frames]
