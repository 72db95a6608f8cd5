"""What a broker keeps of a connection to take its sends many at a time: so much, however it sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.handlers.test_send_fast_path import codes, frame, with_broker
from tests.unit.broker.offline import Broker

from rocketspark.broker.handlers import send_fast_path

pytestmark = pytest.mark.shows("memory of a connection's sends: shapes of headers and tags are bounded in bytes")


def test_shapes_of_long_headers_and_tags_of_a_connection_are_bounded(tmp_path: Path) -> None:
    async def main(broker: Broker) -> None:
        peer, wire = broker.connect()
        known = 0
        for n in range(20):
            for _ in range(2):
                peer.data_received(frame(n, pairs={f"name{n:02}": "v" * 10_000}))
            learned = [form.header_bytes for forms in peer.notes.forms.values() for form in forms]
            assert sum(learned) == peer.notes.bytes <= send_fast_path.LEARNED_BYTES_MAX
            assert len(learned) == peer.notes.count
            known = max(known, len(learned))
        assert known == 6
        for n in range(2000):
            peer.data_received(frame(n, pairs={"TAGS": f"tag{n:04}"}))
        assert 100 < len(peer.notes.tag_codes) <= send_fast_path.TAGS_MAX
        assert codes(wire) == [0] * 2040

    with_broker(tmp_path, main)
