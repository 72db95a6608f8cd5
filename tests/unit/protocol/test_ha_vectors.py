"""The captured HA links are as the layouts say: frames in a row, reports at their ends, the log byte for byte."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from tests.support.ha_streams import (
    Frame,
    Link,
    MasterHandshake,
    SlaveHandshake,
    body_of,
    classic_frames,
    classic_reports,
    controller_frames,
    controller_reports,
    links,
    manifest,
)

from rocketspark.protocol.message import record

pytestmark = pytest.mark.shows("the HA link of 5.5.0, both protocols, both directions, as bytes")

FILE_BYTES = manifest()["settings"]["mappedFileSizeCommitLog"]
BATCH_BYTES = manifest()["settings"]["haTransferBatchSize"]
BLANK = 0xCBD43194
CLASSIC = links("classic")
CONTROLLER = links("controller")


def frames_of(link: Link) -> list[Frame]:
    if link.protocol == "classic":
        return list(classic_frames(link.master))
    handshake, *frames = controller_frames(link.master)
    assert isinstance(handshake, MasterHandshake)
    found = [frame for frame in frames if isinstance(frame, Frame)]
    assert len(found) == len(frames)
    return found


def reports_of(link: Link) -> list[int]:
    if link.protocol == "classic":
        return classic_reports(link.slave)
    handshake, *reports = controller_reports(link.slave)
    assert isinstance(handshake, SlaveHandshake)
    found = [report for report in reports if isinstance(report, int)]
    assert len(found) == len(reports)
    return found


def log_of(found: list[Link]) -> bytes:
    return b"".join(frame.body for link in found for frame in frames_of(link))


@pytest.mark.parametrize("link", [*CLASSIC, *CONTROLLER], ids=lambda link: link.name)
def test_frames_follow_each_other_and_are_reported(link: Link) -> None:
    for side, data in (("master", link.master), ("slave", link.slave)):
        assert sum(size for who, size, _ in link.order if who == side) == len(data)
    frames, reports = frames_of(link), reports_of(link)
    # A master whose log is empty says -1.
    known = [frame for frame in frames if frame.offset >= 0]
    assert all(frame.body == b"" for frame in frames if frame.offset < 0)
    for frame, after in pairwise(known):
        assert frame.offset + len(frame.body) == after.offset
    for frame in known:
        assert len(frame.body) <= BATCH_BYTES
        if frame.body:
            assert frame.offset // FILE_BYTES == (frame.offset + len(frame.body) - 1) // FILE_BYTES
    ends = {frame.offset + len(frame.body) for frame in known}
    assert set(reports[1:]) <= ends
    assert reports[0] in (0, known[0].offset)
    assert reports[-1] == known[-1].offset
    assert sum(frame.body == b"" for frame in frames) >= 2
    assert reports.count(reports[-1]) >= 2


def test_classic_links_begin_where_they_should() -> None:
    assert [reports_of(link)[0] for link in CLASSIC] == [0, frames_of(CLASSIC[1])[0].offset, 0]
    end = manifest()["logs"]["classic"]["end"]
    assert [frames_of(link)[0].offset for link in CLASSIC] == [
        0,
        reports_of(CLASSIC[0])[-1],
        (end - 1) // FILE_BYTES * FILE_BYTES,
    ]


@pytest.mark.parametrize(
    ("protocol", "parts"),
    [("classic", CLASSIC[:2]), ("controller", CONTROLLER[:3]), ("controller", CONTROLLER[3:])],
    ids=["classic-1-2", "controller-1-2-3", "controller-4"],
)
def test_what_came_is_the_masters_log(protocol: str, parts: list[Link]) -> None:
    data = log_of(parts)
    log = manifest()["logs"][protocol]
    assert len(data) == log["end"]
    for file in log["files"]:
        part = data[file["offset"] : file["offset"] + file["size"]]
        assert hashlib.sha256(part).hexdigest() == file["sha256"]
    assert bodies_in(data) == [body_of(number) for number in range(log["messages"])]


def test_a_late_slave_gets_the_end_of_the_same_log() -> None:
    whole = log_of(CLASSIC[:2])
    assert log_of(CLASSIC[2:]) == whole[frames_of(CLASSIC[2])[0].offset :]


def bodies_in(data: bytes) -> list[bytes]:
    """Of the records, which a blank one may end in each file."""
    found, at = [], 0
    while at < len(data):
        size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        if magic == BLANK:
            assert (at + size) % FILE_BYTES == 0
        else:
            message = record.to_message(record.decode(data, at))
            assert message.physical_offset == at
            assert message.queue_offset == len(found)
            found.append(message.body)
        at += size
    assert at == len(data)
    return found


def test_handshakes_name_the_members_and_the_epochs() -> None:
    slaves = [next(iter(controller_reports(link.slave))) for link in CONTROLLER]
    assert slaves == [SlaveHandshake(False, False, number) for number in (2, 1, 2, 3)]
    masters = [next(iter(controller_frames(link.master))) for link in CONTROLLER]
    lists = [master.epochs for master in masters if isinstance(master, MasterHandshake)]
    third = lists[2]
    assert lists == [third[:1], third[:2], third, third]
    assert third[0] == (1, 0)
    assert [master.epoch for master in masters if isinstance(master, MasterHandshake)] == [e[-1][0] for e in lists]


@pytest.mark.parametrize("link", CONTROLLER, ids=lambda link: link.name)
def test_frames_end_with_their_epoch_and_name_that_of_their_end(link: Link) -> None:
    """The last piece of an epoch carries the next one's number already."""
    handshake = next(iter(controller_frames(link.master)))
    assert isinstance(handshake, MasterHandshake)
    starts = dict(handshake.epochs)
    for frame in frames_of(link):
        end = max(frame.offset, 0) + len(frame.body)
        assert starts[frame.epoch] == frame.epoch_start
        assert frame.epoch == max(epoch for epoch, start in starts.items() if start <= end)
        assert not any(frame.offset < start < end for start in starts.values())
        assert 0 <= frame.confirm_offset <= manifest()["logs"]["controller"]["end"]


def test_a_slave_with_a_log_of_its_own_reports_where_it_cut() -> None:
    second, third = CONTROLLER[1], CONTROLLER[2]
    handshake = next(iter(controller_frames(third.master)))
    assert isinstance(handshake, MasterHandshake)
    assert reports_of(third)[0] == handshake.epochs[-1][1] == reports_of(second)[-1]
