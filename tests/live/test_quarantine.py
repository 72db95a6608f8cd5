"""What a broker set aside, seen and ended by an operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, name_server, run
from tests.support.cli_calls import call
from tests.unit.broker.offline import quarantine_in

from rocketspark.broker.messages.quarantine import ENTRIES_MAX, Quarantine
from rocketspark.client.connection import admin_api
from rocketspark.errors import ServerError, StoreFull
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import Quarantined


def test_an_operator_sees_retries_and_drops(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await admin_api.list_quarantine(peer) == []
            tried: list[str] = []

            def retry(entry: Quarantined) -> None:
                tried.append(entry.name)
                if len(tried) == 1:
                    raise StoreFull("no room")

            server._quarantine.retries("delay", retry)
            for position in (7, 9):
                server._quarantine.add("delay", "T", 1, 2, position, ValueError("odd\n"))
            first, second = await admin_api.list_quarantine(peer)
            assert (first.name, first.reason, first.attempts) == ("delay-7", "ValueError: odd\\n", 1)
            info = await peer.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert json.loads(info.body)["table"]["quarantinedMessages"] == "2"
            with pytest.raises(ServerError, match="no room"):
                await admin_api.end_quarantine(peer, "delay-7", retry=True)
            assert [e.attempts for e in await admin_api.list_quarantine(peer)] == [2, 1]
            await admin_api.end_quarantine(peer, "delay-7", retry=True)
            await admin_api.end_quarantine(peer, second.name, retry=False)
            assert await admin_api.list_quarantine(peer) == []
            for again in (True, False):
                with pytest.raises(ServerError, match="nothing named") as missing:
                    await admin_api.end_quarantine(peer, "delay-7", retry=again)
                assert missing.value.code == 22
            server._quarantine.add("half", "H", 0, 1, 11, "rotten")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert [e.name for e in await admin_api.list_quarantine(peer)] == ["half-11"]

    run(main())


@pytest.mark.shows(
    "a retry from the quarantine is on the disk before the item is gone: a power cut takes neither alone"
)
def test_what_a_retry_stored_is_on_the_disk_before_the_item_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_interval_ms=3_600_000) as server, connected(server.address) as peer:
            ends: list[tuple[int, int]] = []

            def retry(entry: Quarantined) -> None:
                _, end, _ = server._pops._put_message.accept_own("T", 0, b"again", {b"UNIQ_KEY": b"x"}, 0)
                ends.append((server.store.flushed_position, end))

            server._quarantine.retries("delay", retry)
            server._quarantine.add("delay", "T", 1, 2, 7, ValueError("odd"))
            await admin_api.end_quarantine(peer, "delay-7", retry=True)
            ((before, end),) = ends
            assert before < end <= server.store.flushed_position

    run(main())


def test_the_commands_show_retry_and_drop_what_a_broker_quarantined(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as namesrv,
            broker(tmp_path, namesrv_addresses=namesrv.address) as server,
        ):

            async def told(*arguments: str) -> Any:
                done = await asyncio.to_thread(call, "quarantine", *arguments, "--json", "--namesrv", namesrv.address)
                assert done.exit_code == 0, done.told
                return json.loads(done.stdout)

            tried: list[str] = []
            server._quarantine.retries("pop", lambda entry: tried.append(entry.name))
            for position in (7, 9):
                server._quarantine.add("pop", "T", 1, 2, position, "rotten").group = "shop"
            first, second = await told("list")
            assert {k: first[k] for k in ("name", "kind", "topic", "queue_id", "queue_offset", "group")} == {
                "name": "pop-7", "kind": "pop", "topic": "T", "queue_id": 1, "queue_offset": 2, "group": "shop",
            }  # fmt: skip
            assert (await told("retry", "pop-7"))["done"] == "retried"
            assert tried == ["pop-7"]
            assert (await told("drop", second["name"]))["done"] == "dropped"
            assert await told("list") == []

    run(main())


def test_it_is_bounded_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    quarantine: Quarantine = quarantine_in(tmp_path)
    for position in range(ENTRIES_MAX + 3):
        quarantine.add("delay", "T", 0, position, position, "rotten")
    names = [entry.name for entry in quarantine.entries()]
    assert (len(names), names[0], names[-1]) == (ENTRIES_MAX, "delay-3", f"delay-{ENTRIES_MAX + 2}")


def test_a_broken_table_is_no_reason_not_to_start(tmp_path: Path) -> None:
    path = tmp_path / "config" / "quarantine.json"
    path.parent.mkdir()
    path.write_text("{")
    assert quarantine_in(tmp_path).entries() == []
