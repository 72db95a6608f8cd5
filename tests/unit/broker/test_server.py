"""A broker that cannot start says why, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, run, sent, settings

from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ConfigError, StoreError


def refused(root: Path, kind: type[Exception], match: str, **changes: Any) -> None:
    async def main() -> None:
        with pytest.raises(kind, match=match):
            async with broker(root, **changes):
                pass

    run(main())


def test_a_port_in_use_is_named_and_the_store_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path / "one") as server:
            port = int(server.address.split(":")[1])
            with pytest.raises(ConfigError, match=rf"port {port} on 127\.0\.0\.1 is in use"):
                async with broker(tmp_path / "two", listen_port=port):
                    pass
            assert not (tmp_path / "two").exists()

    run(main())


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "store", StoreError, "file/store")


def test_a_start_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Port and directory are free again: the next start works."""

    async def main() -> None:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "topics.json").write_text("{")
        failed = BrokerServer(settings(tmp_path))
        with pytest.raises(ConfigError, match=r"topics\.json"):
            await failed.start()
        (tmp_path / "config" / "topics.json").unlink()
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await sent(peer) == 0
        await failed.close()

    run(main())


def test_a_start_that_failed_late_leaves_no_thread_task_or_file(tmp_path: Path) -> None:
    """The last to begin is refused: what began before it ends."""

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("rocketspark-")}

    def files() -> set[str]:
        links = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"/proc/self/fd/{number}"))
        return {link for link in links if link.startswith((str(tmp_path), "socket:"))}

    async def main() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            # A cluster that other tests share may live in this process.
            threads_before, files_before, tasks_before = threads(), files(), asyncio.all_tasks()
            for _ in range(2):
                with pytest.raises(ConfigError, match="haListenPort"):
                    await BrokerServer(settings(tmp_path, ha_listen_port=other.getsockname()[1])).start()
                assert threads() - threads_before == set()
                assert files() - files_before == set()
                assert asyncio.all_tasks() == tasks_before

    run(main())
