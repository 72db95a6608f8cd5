"""Our controller over its wire: it answers as Apache's, keeps what it answered, and elects when a master goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests import controller_rows
from tests.live.support import run

from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings

QUICK = {"controllerDLegerGroup": "group1", "scanNotActiveBrokerInterval": "100", "scanInactiveMasterInterval": "100"}


async def started(folder: Path, **more: Any) -> ControllerServer:
    server = ControllerServer(ControllerSettings(QUICK | more, listen="127.0.0.1:0", folder=folder))
    await server.start()
    return server


def test_it_answers_row_by_row_as_apaches_controller(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        server = await started(tmp_path)
        try:
            return controller_rows.comparable(await asyncio.to_thread(controller_rows.play, server.address))
        finally:
            await server.close()

    found, recorded = run(main()), controller_rows.recorded()
    for label, row in recorded.items():
        assert (label, found.get(label)) == (label, row)
    assert found.keys() == recorded.keys()
