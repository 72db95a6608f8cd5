"""Transactions: half messages stay invisible, end once, are asked for when left open, and outlive a kill."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.support import TOPIC, broker, connected, create, pull, records, run, send, until
from tests.support.patience import LIMIT_S

from rocketspark.client.connection import admin_api, client_api
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, half_ranges, record
from rocketspark.protocol.message.properties import decode
from rocketspark.protocol.message.record import Record
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes

pytestmark = pytest.mark.shows(
    "commit, rollback, told again, check-back, restart, kill",
    "ends of transactions apply once over kills; nothing is given up while nobody can be asked",
    "hooks, logs, fault table, attempt time, a dropped broker, routes and NameServers in the log, `check`'s "
    "topic, remarks",
    "MULTI_TAGS; TRANS_CHECK_MAX_TIME_TOPIC",
)

GROUP = "PG"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
QUICK = {"transaction_timeout_ms": 100, "transaction_check_interval_ms": 50}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


class Half:
    """Where a half message was stored, as its reply says."""

    def __init__(self, reply: headers.SendReply) -> None:
        self.offset = reply.queue_offset
        self.position = int(reply.message_id[-16:], 16)


async def half(peer: Peer, number: int, **changes: Any) -> Half:
    pairs = {"KEYS": f"k{number}", "TRAN_MSG": "true", "UNIQ_KEY": f"U{number}", "PGROUP": GROUP, "TAGS": "A"}
    reply = await send(peer, b"tx %d" % number, TOPIC, 1, pairs=pairs | changes.pop("pairs", {}), sys_flag=4, **changes)
    return Half(reply.raise_for_code("send").header(headers.SendReply))


async def end(peer: Peer, message: Half, outcome: int, **changes: Any) -> tuple[int, str | None]:
    values: dict[str, Any] = {
        "topic": TOPIC,
        "producer_group": GROUP,
        "half_offset": message.offset,
        "physical_offset": message.position,
        "outcome": outcome,
    }
    reply = await peer.request(RequestCode.END_TRANSACTION, headers.EndTransactionHeader(**values | changes))
    return reply.code, reply.remark


async def visible(peer: Peer) -> list[Record]:
    return records(await pull(peer, TOPIC, 1, 0))


def test_a_commit_shows_the_message_and_a_rollback_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, second = await half(peer, 1), await half(peer, 2)
            assert await visible(peer) == []
            assert (first.offset, second.offset) == (0, 1)
            assert await end(peer, first, COMMIT) == (0, None)
            assert await end(peer, second, ROLLBACK) == (0, None)
            (message,) = await visible(peer)
            assert (message.body, message.sys_flag, message.prepared_position) == (b"tx 1", 8, first.position)
            found = decode(message.properties.decode())
            assert {k: found[k] for k in ("KEYS", "TAGS", "PGROUP", "UNIQ_KEY", "TRAN_MSG", "__transactionId__")} == {
                "KEYS": "k1",
                "TAGS": "A",
                "PGROUP": GROUP,
                "UNIQ_KEY": "U1",
                "TRAN_MSG": "true",
                "__transactionId__": "U1",
            }
            assert not {"REAL_TOPIC", "REAL_QID"} & set(found)

    run(main())


def test_an_end_told_again_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, second = await half(peer, 1), await half(peer, 2)
            for outcome in (COMMIT, COMMIT, ROLLBACK, COMMIT):
                assert (await end(peer, first, outcome))[0] == 0
            for outcome, code in ((ROLLBACK, 0), (ROLLBACK, 0), (COMMIT, 1)):
                assert (await end(peer, second, outcome))[0] == code
            assert [m.body for m in await visible(peer)] == [b"tx 1"]

    run(main())


def test_an_end_that_does_not_fit_its_half_message_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            message = await half(peer, 1)
            assert await end(peer, message, COMMIT, producer_group="other") == (1, "The producer group wrong")
            assert (await end(peer, message, COMMIT, half_offset=7))[0] == 1
            assert (await end(peer, message, COMMIT, physical_offset=10**9))[0] == 1
            assert await end(peer, message, UNKNOWN) == (0, None)
            assert await visible(peer) == []
            assert await end(peer, message, COMMIT) == (0, None)
            assert len(await visible(peer)) == 1

    run(main())


@pytest.mark.shows("an end of a half message that was lost with a master ends no other that lies at its place now")
@pytest.mark.parametrize("in_batch", [False, True])
def test_an_end_of_a_lost_half_message_ends_no_other_at_its_place(tmp_path: Path, in_batch: bool) -> None:
    async def place(peer: Peer, number: int) -> tuple[Half, dict[str, Any]]:
        unique_id = f"7F0000010AB5D716{number:016X}"
        if not in_batch:
            ids = {"message_id": unique_id, "transaction_id": unique_id}
            return await half(peer, number, pairs={"UNIQ_KEY": unique_id}), ids
        pairs = f"UNIQ_KEY\x01{unique_id}\x02PGROUP\x01{GROUP}\x02"
        body = batch.encode([batch.BatchItem(0, b"tx %d" % number, pairs.encode())])
        reply = await send(peer, body, TOPIC, 1, pairs={"UNIQ_KEY": "B"}, sys_flag=4, code=RequestCode.SEND_HALF_BATCH)
        return Half(reply.raise_for_code("send").header(headers.SendReply)), {"message_id": unique_id}

    async def commit(peer: Peer, there: Half, ids: dict[str, Any]) -> tuple[int, str | None]:
        if not in_batch:
            return await end(peer, there, COMMIT, **ids)
        header = headers.EndHalfRangesHeader(topic=TOPIC, producer_group=GROUP, outcome=COMMIT, **ids)
        body = half_ranges.encode([(there.offset, np.array([there.position]))])
        reply = await peer.request(RequestCode.END_HALF_RANGES, header, body)
        return reply.code, reply.remark

    async def main() -> None:
        async with broker(tmp_path / "first") as server, connected(server.address) as peer:
            await create(peer)
            lost, ids_of_lost = await place(peer, 1)
        # The new master never had it.
        async with broker(tmp_path / "second") as server, connected(server.address) as peer:
            await create(peer)
            other, ids = await place(peer, 2)
            assert (other.offset, other.position) == (lost.offset, lost.position)
            assert await commit(peer, lost, ids_of_lost) == (1, "The half message there is another one")
            assert await visible(peer) == []
            assert await commit(peer, other, ids) == (0, None)
            assert [m.body for m in await visible(peer)] == [b"tx 2"]

    run(main())


@pytest.mark.parametrize("told", ["U", "", f"7F00000100002A9F{0:016X}"])
def test_an_end_that_tells_no_unique_id_counts_by_its_place(tmp_path: Path, told: str) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            there = await half(peer, 1, pairs={"UNIQ_KEY": f"7F0000010AB5D716{1:016X}"})
            # Texts of the client's own, or the broker's id of the message, which ends with its place.
            assert there.position == 0
            assert await end(peer, there, COMMIT, message_id=told, transaction_id=told) == (0, None)
            assert [m.body for m in await visible(peer)] == [b"tx 1"]

    run(main())


def test_a_half_message_sent_again_is_one_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, again = await half(peer, 1), await half(peer, 1)
            await end(peer, again, COMMIT)
            await end(peer, first, COMMIT)
            assert [m.body for m in await visible(peer)] == [b"tx 1"]

    run(main())


class Asked:
    """A producer that notes what it is asked."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[tuple[headers.CheckTransactionHeader, Record]] = asyncio.Queue()
        self.routes = Routes()
        self.routes.add(RequestCode.CHECK_TRANSACTION_STATE, self._take)

    def _take(self, peer: Peer, request: Any, body: bytes) -> None:
        self.questions.put_nowait((request.ext, record.decode(body)))

    async def join(self, peer: Peer) -> None:
        beat = b'{"clientID":"c1","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[]}'
        (await peer.request(RequestCode.HEART_BEAT, None, beat)).raise_for_code("heartbeat")


def test_a_producer_is_asked_for_what_it_left_open_and_its_answer_counts(tmp_path: Path) -> None:
    async def main() -> None:
        asked = Asked()
        async with broker(tmp_path, **QUICK) as server, connected(server.address, asked.routes) as peer:
            await create(peer)
            await asked.join(peer)
            message = await half(peer, 1)
            header, stored = await asyncio.wait_for(asked.questions.get(), LIMIT_S)
            assert (stored.topic, stored.queue_id, stored.body, stored.sys_flag) == (b"T", 1, b"tx 1", 0)
            assert (header.topic, header.message_id, header.transaction_id) == (HALF, "U1", "U1")
            assert decode(stored.properties.decode())["TRANSACTION_CHECK_TIMES"] == "1"
            assert header.half_offset > message.offset
            copy = Half.__new__(Half)
            copy.offset, copy.position = header.half_offset, header.physical_offset
            assert await end(peer, copy, COMMIT, topic=HALF, from_check=True) == (0, None)
            assert await end(peer, message, COMMIT) == (0, None)
            assert [m.body for m in await visible(peer)] == [b"tx 1"]

    run(main())


def test_a_half_message_nobody_ends_is_given_up_after_its_checks(tmp_path: Path) -> None:
    async def main() -> None:
        asked = Asked()
        changes = QUICK | {"transaction_checks_max": 2}
        async with broker(tmp_path, **changes) as server, connected(server.address, asked.routes) as peer:
            await create(peer)
            await asked.join(peer)
            await half(peer, 1)
            await until(lambda: server.store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1] == 1)
            assert asked.questions.qsize() == 2
            assert await visible(peer) == []
            # It is a topic like others: told to NameServers, pulled, kept over a restart.
            config = await admin_api.topic_config(peer, "TRANS_CHECK_MAX_TIME_TOPIC")
            assert config is not None
            assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
            (given_up,) = records(await pull(peer, "TRANS_CHECK_MAX_TIME_TOPIC", 0, 0))
            assert given_up.body == b"tx 1"

    run(main())


def test_why_a_state_is_unknown_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            message = await half(peer, 1)
            header = headers.EndTransactionHeader(
                topic=TOPIC,
                producer_group=GROUP,
                half_offset=message.offset,
                physical_offset=message.position,
                outcome=UNKNOWN,
                message_id="U1",
            )
            client_api.end_transaction(peer, header, "execute raised OSError: the bank\nis away")
            assert (await end(peer, message, COMMIT))[0] == 0

    caplog.set_level(logging.INFO, "rocketspark.broker")
    run(main())
    (line,) = [r.getMessage() for r in caplog.records if "is unknown to" in r.getMessage()]
    assert line.startswith("the state of transaction U1 of group PG is unknown to 127.0.0.1:")
    assert line.endswith(r", which will be asked: execute raised OSError: the bank\nis away")


def test_immunity_keeps_a_half_message_from_being_checked(tmp_path: Path) -> None:
    async def main() -> None:
        asked = Asked()
        async with broker(tmp_path, **QUICK) as server, connected(server.address, asked.routes) as peer:
            await create(peer)
            await asked.join(peer)
            await half(peer, 1, pairs={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
            await half(peer, 2)
            header, _ = await asyncio.wait_for(asked.questions.get(), LIMIT_S)
            assert header.message_id == "U2"
            header, _ = await asyncio.wait_for(asked.questions.get(), LIMIT_S)
            assert header.message_id == "U2"

    run(main())


def test_open_and_ended_transactions_are_known_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            done, undone, open_one = [await half(peer, n) for n in (1, 2, 3)]
            await end(peer, done, COMMIT)
            await end(peer, undone, ROLLBACK)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for message, code in ((done, 0), (undone, 1), (open_one, 0), (open_one, 0)):
                assert (await end(peer, message, COMMIT))[0] == code
            assert [m.body for m in await visible(peer)] == [b"tx 1", b"tx 3"]

    run(main())


def test_a_kill_between_commit_and_its_mark_does_not_commit_twice(tmp_path: Path) -> None:
    async def main() -> None:
        copy = tmp_path / "copy"
        async with broker(tmp_path / "store") as server, connected(server.address) as peer:
            await create(peer)
            before, message, later = [await half(peer, n) for n in (1, 2, 3)]
            await end(peer, before, COMMIT)
            server._transactions._op_messages.add = lambda offset: None  # type: ignore[method-assign]
            await end(peer, message, COMMIT)
            # What a SIGKILL leaves: the files as they are now.
            shutil.copytree(tmp_path / "store", copy)
        async with broker(copy) as server, connected(server.address) as peer:
            for told in (message, before, later):
                assert (await end(peer, told, COMMIT))[0] == 0
            assert [m.body for m in await visible(peer)] == [b"tx 1", b"tx 2", b"tx 3"]

    run(main())


def test_a_committed_message_keeps_its_delay(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, delay_levels="1s 2s") as server, connected(server.address) as peer:
            await create(peer)
            message = await half(peer, 1, pairs={"DELAY": "1"})
            await end(peer, message, COMMIT)
            assert await visible(peer) == []
            await until(lambda: server.store.queue_range(TOPIC, 1)[1] == 1)
            assert [m.body for m in await visible(peer)] == [b"tx 1"]

    run(main())


def test_half_messages_are_refused_where_they_are_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, reject_transactions=True) as server, connected(server.address) as peer:
            await create(peer)
            reply = await send(peer, b"x", TOPIC, 1, sys_flag=4)
            assert reply.code == 16
            assert "transaction message is forbidden" in (reply.remark or "")

    run(main())
