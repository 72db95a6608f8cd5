"""The benchmarks' load tool: every reply counts once, however the stream is chopped up."""

from __future__ import annotations

import pytest
from bench.load import Refused, Replies, Stream

from rocketspark.transport.request_frames import reply


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 9, 10, 11, 64, 1000])
def test_replies_are_counted_however_the_stream_is_chopped_up(chunk_bytes: int) -> None:
    notice = b'\x00\x00\x00\x20\x00\x00\x00\x1c{"code":40,"flag":2,"opaque":7}'
    busy = reply(3, 2, remark="[TIMEOUT_CLEAN_QUEUE]")
    data = reply(1) + busy + reply(2, 0, {"msgId": "7F"}) + notice + reply(4, body=b"x" * 50) + busy
    replies = Replies()
    found = sum(replies.feed(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes))
    assert (found, replies.done, replies.busy) == (5, 3, 2)


@pytest.mark.parametrize("chunk_bytes", [1, 8, 13, 1000])
def test_any_other_code_ends_the_load(chunk_bytes: int) -> None:
    data = reply(1) + reply(2, 14, remark="not writable")
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    with pytest.raises(Refused, match=r'\{"code":14'):
        list(map(Replies().feed, chunks))


def test_a_part_of_a_stream_is_whole_frames() -> None:
    stream = Stream([b"a", b"bb", b"ccc", b"dddd"])
    assert stream.count == 4
    assert bytes(stream.part(1, 2)) == b"bbccc"
    assert bytes(stream.part(3, 5)) == b"dddd"
