"""Ids and hashes against values the official classes computed."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.stand_ins import like
from tests.unit.protocol.golden import hashes

from rocketspark import machine
from rocketspark.errors import UsageError
from rocketspark.model.text import string_hash
from rocketspark.protocol.message import message_ids
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.store.index import key_hashes

GOLDEN = hashes()


@pytest.mark.parametrize("sample", GOLDEN["string_hash"], ids=lambda s: repr(s["s"])[:20])
def test_string_hash(sample: dict[str, Any]) -> None:
    assert string_hash(sample["s"]) == sample["hash"]


@pytest.mark.parametrize("sample", GOLDEN["index_key_hash"], ids=lambda s: s["index_key"][:20])
def test_index_key_hash(sample: dict[str, Any]) -> None:
    assert string_hash(sample["index_key"]) == sample["hash"]
    assert key_hashes.key_hash(sample["index_key"]) == sample["index_hash"]


@given(st.lists(st.tuples(st.text(max_size=10), st.text(max_size=40)), min_size=1, max_size=20))
def test_many_hashes_at_once_are_the_single_ones(pairs: list[tuple[str, str]]) -> None:
    found = key_hashes.hashes(
        [string_hash(p) & 0xFFFFFFFF for p, _ in pairs], [k.encode("utf-8", "replace") for _, k in pairs]
    )
    wanted = [string_hash(p + k.encode("utf-8", "replace").decode()) for p, k in pairs]
    assert found.view(np.int32).tolist() == wanted


# As long together as if all were as long as the first, and one of them holds no word.
@pytest.mark.shows("the words of all keys by one pass")
@example([("", "Z"), ("", "ZZ"), ("", "")])
@given(st.lists(st.tuples(st.text(max_size=5), st.text("ab é Z~", max_size=30)), min_size=1, max_size=20))
def test_the_hashes_of_all_words_are_the_single_ones(pairs: list[tuple[str, str]]) -> None:
    texts = [text.encode() for _, text in pairs]
    numbers, found = key_hashes.word_hashes(np.array([string_hash(p) & 0xFFFFFFFF for p, _ in pairs], np.uint32), texts)
    words = [(i, string_hash(p + word)) for i, (p, text) in enumerate(pairs) for word in text.split(" ") if word]
    assert list(zip(numbers.tolist(), found.view(np.int32).tolist(), strict=True)) == words


def test_words_of_more_texts_than_are_hashed_together() -> None:
    texts = [b"k%d " % i * 2000 for i in range(40)]
    numbers, found = key_hashes.word_hashes(np.zeros(40, np.uint32), texts)
    assert numbers.tolist() == [i for i in range(40) for _ in range(2000)]
    assert found[::2000].view(np.int32).tolist() == [string_hash(f"k{i}") for i in range(40)]


@pytest.mark.parametrize("sample", GOLDEN["offset_message_id"], ids=lambda s: s["id"])
def test_offset_message_ids(sample: dict[str, Any]) -> None:
    host = message_ids.pack_host(sample["ip"], sample["port"])
    assert message_ids.offset_message_id(host, sample["offset"]) == sample["id"]
    assert message_ids.parse_offset_message_id(sample["id"]) == (sample["ip"], sample["port"], sample["offset"])


@pytest.mark.parametrize("wrong", ["", "7F", "Z" * 32, "7F000001" * 5, "é" * 32])
def test_what_is_no_offset_message_id(wrong: str) -> None:
    with pytest.raises(UsageError, match="32 or 56 hex digits"):
        message_ids.parse_offset_message_id(wrong)


@pytest.mark.parametrize("sample", GOLDEN["unique_id"], ids=lambda s: s["id"])
def test_the_parts_of_unique_ids(sample: dict[str, Any]) -> None:
    parts = ("ip_hex", "class_loader_hash_hex", "ms_since_month_start_hex", "counter_hex")
    ip, loader, since, counter = (sample[p] for p in parts)
    pid = f"{sample['pid'] & 0xFFFF:04X}"
    assert sample["id"] == ip + pid + loader + since + counter
    made = message_ids.UniqueIds(bytes.fromhex(ip), sample["pid"]).next()
    assert len(made) == len(sample["id"])
    assert made.startswith(ip + pid)


def test_unique_ids_count_and_tell_the_time() -> None:
    ids = message_ids.UniqueIds(pid=0x12345)
    first, second = ids.next(), ids.next()
    assert first[:20] == second[:20]
    assert first[8:12] == "2345"
    assert (first[28:], second[28:]) == ("0000", "0001")
    month = datetime.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    made_at = month.timestamp() + int(second[20:28], 16) / 1000
    assert abs(made_at - datetime.now().timestamp()) < 5
    assert len({ids.next() for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3"])
def test_hosts(host: str) -> None:
    packed = message_ids.pack_host(host, 10911)
    assert len(packed) == 8
    assert message_ids.unpack_host(packed) == f"{host}:10911"
    assert message_ids.unpack_host(message_ids.pack_host("fe80::1", 77)) == "[fe80::1]:77"


@pytest.mark.parametrize("sample", GOLDEN["body_crc"], ids=lambda s: s["s"])
def test_body_crc(sample: dict[str, Any]) -> None:
    assert zlib.crc32(sample["s"].encode()) & 0x7FFFFFFF == sample["crc"]


def test_ids_by_the_block_are_unique_and_say_when(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 2, 3, 4, 5, 6).timestamp()
    monkeypatch.setattr(message_ids, "machine", like(machine, time=lambda: now))
    ids = UniqueIdBlocks()
    since_month_ms = ((2 * 24 + 4) * 3600 + 5 * 60 + 6) * 1000
    prefix, first = ids.take(3)
    # As `UniqueIds` makes them: 20 digits, 8 of the time, 4 of a counter.
    assert (len(prefix), first) == (20, since_month_ms << 16)
    assert prefix[:8] == "7F000001"
    # A block that the counter cannot number goes on into the next ms; the next block goes on behind it.
    assert ids.take(100_000) == (prefix, first + 3)
    assert ids.take(1) == (prefix, first + 100_003)
    now += 10
    assert ids.take(1) == (prefix, (since_month_ms + 10_000) << 16)
    # Another month begins anew; another object has its own prefix.
    now = datetime(2026, 3, 1).timestamp()
    assert ids.take(2) == (prefix, 0)
    assert ids.take(1) == (prefix, 2)
    assert UniqueIdBlocks().take(1)[0] != prefix
