"""A Java slave beside a master of ours: it takes every table, at the times at which it does (60 s after its start)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ask
from tests.java.apache_pair import PairBroker
from tests.java.test_slave_synchronize import GROUP, TOPIC, commit, done, fill, table
from tests.live.support import broker, name_server, run, until
from tests.support.ports import free_ports

from rocketspark.broker.storage.json_tables import sorted_json
from rocketspark.store.timers.timer_files import decode_checkpoint

pytestmark = pytest.mark.shows(
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing"
)


def same(value: Any) -> Any:
    return json.loads(sorted_json(value))


def test_a_java_slave_takes_all_tables_of_a_master_of_ours(java_tools: None, tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports(-2, 0, 1)
        async with (
            name_server() as namesrv,
            broker(
                tmp_path / "m",
                listen_port=port,
                log_file_bytes=16 << 20,
                delay_levels="1s 1h",
                namesrv_addresses=namesrv.address,
            ) as server,
        ):
            config = {"messageDelayLevel": "1s 1h"}
            made = asyncio.to_thread(
                PairBroker, tmp_path / "j", namesrv.address, tmp_path / "s", "classic", 1, config=config
            )
            slave = await made
            try:
                await asyncio.to_thread(fill, server.address)
                await until(lambda: server._delays.table().offset_table.get(1) == 1)
                await until(lambda: TOPIC in server._wheel.statistics.table().counts)
                await asyncio.to_thread(commit, server.address, 0, 2)

                def asked(code: int) -> Any:
                    return table(ask(slave.broker, code))

                async def has(code: int, wanted: Any) -> None:
                    """Wait until the slave answers so; it looks every 3 s, and takes all once a minute."""
                    for _ in range(240):
                        if wanted(await asyncio.to_thread(asked, code)):
                            return
                        await asyncio.sleep(0.5)
                    raise AssertionError((code, await asyncio.to_thread(asked, code)))

                await has(21, lambda t: t["topicConfigTable"] == same(server._topics.table))
                await has(21, lambda t: t["dataVersion"] == same(server._topics.version))
                await has(201, lambda t: t["subscriptionGroupTable"] == same(server._groups.table))
                await has(201, lambda t: t["dataVersion"] == same(server._groups.version))
                await has(43, lambda t: t["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 2, "1": 6}})
                await has(43, lambda t: t["dataVersion"] == same(server._offsets.version))
                await has(45, lambda t: t["offsetTable"] == {"1": 1})
                await has(402, lambda t: t == same(server._modes.table))
                await has(61, lambda t: t == same(server._wheel.statistics.table()))
                theirs = decode_checkpoint(done(await asyncio.to_thread(ask, slave.broker, 60)).body)
                assert theirs.master_queue_offset == server._wheel.checkpoint().master_queue_offset == 1
                assert theirs.version_counter > 0
                end = server.store.written_position
                log = (tmp_path / "s" / "commitlog" / f"{0:020}").read_bytes()[:end]
                assert bytes(server.store.log_bytes(0, end)) == log
            finally:
                await asyncio.to_thread(slave.kill)

    run(main(), 240)
