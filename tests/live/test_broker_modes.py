"""Modes that an operator sets: those that are there are taken, others refused by what they are."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live.support import GROUP, TOPIC, broker, connected, create, create_group, pull, records, run, sent

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.admin import ReadAheadHeader, TimerEngineHeader


def test_modes_that_an_operator_sets(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)

            async def read_ahead(mode: int) -> tuple[int, str | None]:
                reply = await peer.request(RequestCode.SET_COMMITLOG_READ_MODE, ReadAheadHeader(mode=mode))
                return reply.code, reply.remark

            mapped_files = server.store.log.mapped_files
            assert await read_ahead(1) == (0, "set commitlog readahead mode success, mode: 1")
            assert mapped_files.scattered
            assert len(records(await pull(peer, TOPIC, 0, 0))) == 1
            assert await read_ahead(0) == (0, "set commitlog readahead mode success, mode: 0")
            assert not mapped_files.scattered
            assert await read_ahead(2) == (29, "set commitlog readahead mode param value error")

            async def engine(name: str) -> tuple[int, str | None]:
                reply = await peer.request(RequestCode.SWITCH_TIMER_ENGINE, TimerEngineHeader(engine=name))
                return reply.code, reply.remark

            assert await engine("F") == (0, None)
            assert await engine("R") == (29, "timerRocksDBEnable must be configured true when broker start")
            assert await engine("X") == (29, "timer engine 'X': F is needed")

            async def consume_mode(**changes: str) -> tuple[int, str | None]:
                wanted = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0} | changes
                body = json.dumps(wanted).encode()
                reply = await peer.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)
                return reply.code, reply.remark

            await create_group(peer)
            assert await consume_mode() == (0, None)
            assert await consume_mode(mode="POP") == (0, None)
            assert await consume_mode(mode="PUSH") == (29, "mode 'PUSH' is not one of PULL, POP")
            assert await consume_mode(topic="Nowhere") == (17, "topic[Nowhere] not exist")
            assert await consume_mode(topic=f"%RETRY%{GROUP}") == (16, "retry topic is not allowed to set mode")

    run(main())
