"""SIGKILL under load: whatever `append` returned for is there afterwards, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketspark.protocol.message import record
from rocketspark.store import GetStatus

WRITER = """
import sys, threading
from rocketspark.store import Store, StoreSettings
root, first = sys.argv[1], int(sys.argv[2])
sizes = dict(log_file_bytes=1 << 18, queue_file_units=500, index_slots=64, index_entries=2000)
store = Store(StoreSettings(root=root, **sizes))
store.open()
def flush():
    while True:
        store.flush_log(); store.flush_queues(); store.flush_indexes(); store.write_checkpoint(); store.populate_ahead()
threading.Thread(target=flush, daemon=True).start()
born = bytes(8)
out = sys.stdout
for i in range(first, first + 1_000_000):
    key = b"k%d" % i
    body = b"n%d:" % i + b"x" * (i % 400)
    properties = b"KEYS\\x01" + key + b"\\x02"
    place = store.append(b"t%d" % (i % 2), i % 3, body, properties, 0, None, key, None, i, 0, 0, i, born)
    out.write(f"{i} {place[0]} {place[1]}\\n")
    if i % 16 == 0:
        out.flush()
"""


@pytest.mark.shows("SIGKILL under load loses nothing acknowledged")
@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_lost_or_doubled(seed: int, tmp_path: Path, make_store: Any) -> None:
    chance = random.Random(seed)
    acknowledged: dict[int, tuple[int, int]] = {}
    sizes = {"log_file_bytes": 1 << 18, "queue_file_units": 500, "index_entries": 2000}
    for _ in range(3):
        first = max(acknowledged, default=-1) + 10
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        wanted = chance.randrange(50, 3000)
        lines: list[str] = []
        for line in writer.stdout:
            lines.append(line)
            if len(lines) == wanted:
                os.kill(writer.pid, signal.SIGKILL)
        assert writer.wait(120) == -signal.SIGKILL
        for line in lines:
            # The last line may have been cut off by the kill.
            if line.endswith("\n"):
                i, position, offset = map(int, line.split())
                acknowledged[i] = (position, offset)
        store = make_store(tmp_path / "s", **sizes)
        found: dict[int, tuple[int, int]] = {}
        for topic, ids in store.queues().items():
            for queue_id in ids:
                at = 0
                while (read := store.read(topic, queue_id, at, 500, 1 << 20)).status is GetStatus.FOUND:
                    for piece in read.records:
                        for r in record.decode_all(piece):
                            i = int(r.body.split(b":")[0][1:])
                            assert i not in found
                            assert (r.topic, r.queue_id) == (b"t%d" % (i % 2), i % 3)
                            found[i] = (r.position, r.queue_offset)
                            assert r.queue_offset == at
                            at += 1
                assert at == store.queue_range(topic, queue_id)[1]
        assert {i: found.get(i) for i in acknowledged} == acknowledged
        for i in chance.sample(sorted(found), min(200, len(found))):
            hits = store.query(f"t{i % 2}", f"k{i}", 10, 0, 1 << 60)
            assert [record.decode(v).position for v in hits] == [found[i][0]]
        store.close()
