"""Every table that a peer without an account can make grow: what it may hold, what is told past it, and who goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import pop_header
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    pull,
    pull_header,
    records,
    run,
    send,
    send_header,
    sent,
    until,
)
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.broker.consumers import assignments, connected_clients, message_filters, rebalance_locks
from rocketspark.broker.consumers import subscription_groups as groups
from rocketspark.broker.consumers.rebalance_locks import RebalanceLocks
from rocketspark.broker.messages import send_rules
from rocketspark.errors import ServerError
from rocketspark.filters import sql92
from rocketspark.model import MessageQueue
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "tables that clients make grow: topics, groups, offsets, clients, subscriptions, locks, request modes, "
    "filters' time"
)


async def code_of(peer: Peer, code: int, body: dict[str, Any]) -> int:
    return (await peer.request(code, None, json.dumps(body).encode())).code


def consumers(*names: str, subscriptions: int = 0) -> list[dict[str, Any]]:
    wanted = [{"topic": f"t{n}"} for n in range(subscriptions)]
    return [{"groupName": name, "subscriptionDataSet": wanted} for name in names]


def heartbeat(client: str = "c", **data: Any) -> dict[str, Any]:
    return {"clientID": client, "consumerDataSet": [], "producerDataSet": []} | data


async def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int = 1) -> int:
    header = headers.UpdateConsumerOffsetHeader(group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    return (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code


def test_first_sends_and_first_uses_make_no_more_than_they_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            topics, named = server._topics.table, server._groups.table
            server.settings.auto_topics_max = len(topics) + 2
            server.settings.auto_groups_max = len(named) + 1
            codes = [(await peer.request(310, send_header(f"auto-{n}"), b"x")).code for n in range(3)]
            assert codes == [0, 0, 2]
            assert (await peer.request(310, send_header("%RETRY%nobody"), b"x")).code == 2
            assert await code_of(peer, 34, heartbeat(consumerDataSet=consumers("G1"))) == 0
            # Its retries go with the group; nothing is made by those that are refused.
            assert "%RETRY%G1" in topics
            assert await code_of(peer, 34, heartbeat(consumerDataSet=consumers("G2"))) == 2
            assert (await pull(peer, "auto-0", group="G3")).code == 2
            before = set(topics), set(named)
            assert not {"auto-2", "%RETRY%nobody", "%RETRY%G2", "G2", "G3"} & (before[0] | before[1])
            # What is there is used, and operators make more.
            assert (await peer.request(310, send_header("auto-0"), b"x")).code == 0
            await create(peer, "by-an-operator")
            await create_group(peer, "by-an-operator")
            server.settings.auto_topics_max = server.settings.auto_groups_max = 1000
            server.settings.auto_creations_per_minute = 3
            assert (await peer.request(310, send_header("auto-2"), b"x")).code == 2

    run(main())


def test_offsets_are_of_queues_groups_and_topics_that_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create(peer, "other")
            await create_group(peer, GROUP)
            queues = server._topics.table[TOPIC].read_queue_nums
            assert queues < 1023
            assert [await commit(peer, GROUP, TOPIC, n) for n in (0, queues, 1023, 1024, 65_535)] == [0, 0, 0, 1, 1]
            assert await commit(peer, "nobody", TOPIC, 0) == 26
            assert await commit(peer, GROUP, "nothing", 0) == 17
            server.settings.offset_rows_max = len(server._offsets.table)
            assert await commit(peer, GROUP, "other", 0) == 2
            committed = pull_header("other", 0, 0, group=GROUP, sys_flag=5, commit_offset=1)
            assert (await peer.request(RequestCode.PULL_MESSAGE, committed)).code == 2
            assert await commit(peer, GROUP, TOPIC, 1) == 0
            assert list(server._offsets.table) == [f"{TOPIC}@{GROUP}"]

    run(main())


def test_a_heartbeat_has_a_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            fat = [{"groupName": "p" * (1 << 20)} for _ in range(4)]
            answer = await peer.request(34, None, json.dumps(heartbeat(producerDataSet=fat)).encode())
            assert answer.code == 1
            assert answer.remark is not None
            assert "is over the limit of 4194304" in answer.remark
            assert server._clients.weight == 0

    run(main())


def test_clients_and_subscriptions_of_a_host_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "HOST_WEIGHT_MAX", 100)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            clients = server._clients
            async with connected(server.address) as other:
                producers = [{"groupName": f"p{n}"} for n in range(40)]
                assert await code_of(other, 34, heartbeat(producerDataSet=producers)) == 0
                assert await code_of(peer, 34, heartbeat(consumerDataSet=consumers("G", subscriptions=58))) == 0
                assert clients.weight == 99
                assert await code_of(peer, 34, heartbeat(producerDataSet=producers[:2])) == 2
                assert await code_of(peer, 34, heartbeat("i" * 1000, producerDataSet=producers[:1])) == 2
                # Who is there beats on, also with less.
                for _ in range(3):
                    assert await code_of(other, 34, heartbeat(producerDataSet=producers)) == 0
                    assert await code_of(peer, 34, heartbeat(consumerDataSet=consumers("G", subscriptions=58))) == 0
                assert clients.weight == 99
                assert await code_of(peer, 34, heartbeat(consumerDataSet=consumers("G", subscriptions=3))) == 0
                assert clients.weight == 44
            await until(lambda: clients.weight == 4)
            header = headers.UnregisterClientHeader(client_id="c", consumer_group="G")
            (await peer.request(RequestCode.UNREGISTER_CLIENT, header)).raise_for_code("unregister")
            await beat(peer, producer="P")
            list(clients.expire_steps(1 << 60))
            assert (clients.weight, clients._host_weights) == (0, {})

    run(main())


# Of 25,600 characters each, as many as a weight of 100.
LONG = "n" * 25_600
SAID_AT_LENGTH = [
    {"producerDataSet": [{"groupName": LONG}]},
    *({"consumerDataSet": [{"groupName": "G", f: LONG}]} for f in ("consumeType", "messageModel", "consumeFromWhere")),
    *(
        {"consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "t"} | told]}]}
        for told in (
            *({"topic": LONG}, {"expressionType": LONG}, {"tagsSet": [LONG]}),
            *({"tagsSet": [f"{n}" for n in range(800)]}, {"codeSet": [*range(800)]}),
        )
    ),
]


def test_what_a_heartbeat_says_at_length_counts_as_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server:
            clients = server._clients
            for groups in SAID_AT_LENGTH:
                monkeypatch.setattr(connected_clients, "HOST_WEIGHT_MAX", 99)
                async with connected(server.address) as peer:
                    assert await code_of(peer, 34, heartbeat(**groups)) == 2, groups
                    assert clients.weight == 0
                    monkeypatch.setattr(connected_clients, "HOST_WEIGHT_MAX", 250)
                    for _ in range(2):
                        assert await code_of(peer, 34, heartbeat(**groups)) == 0
                        assert 100 < clients.weight < 250
                await until(lambda: (clients.weight, clients._host_weights) == (0, {}))

    run(main())


def test_long_names_of_locks_count_as_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_locks, "LOCKS_MAX", 103)
    locks, queue = RebalanceLocks(expiry_ms=100), MessageQueue("T", "b", 0)
    for long in (MessageQueue(LONG, "b", 0), MessageQueue("T", LONG, 0)):
        assert locks.lock("A", "c", [long, queue], 0) == [long, queue]
        assert locks.lock("A", LONG, [MessageQueue("T", "b", 1)], 0) == []
        locks.unlock("A", "c", [long, queue])
        assert locks.count == 0
    assert locks.lock("A", LONG, [queue], 0) == locks.lock("A", LONG, [queue], 50) == [queue]
    assert locks.lock("A", "c", [queue, MessageQueue("T", "b", 1), MessageQueue("T", "b", 2)], 60) == [
        MessageQueue("T", "b", 1),
        MessageQueue("T", "b", 2),
    ]
    # Once it is over the next one has it, under its own name.
    assert locks.lock("A", "c", [queue], 200) == [queue]
    assert locks.count == 3
    list(locks.expire_steps(1000))
    assert (locks.count, locks._held) == (0, {})


def test_light_queues_and_their_groups_have_names_of_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, lmq=True, multi_dispatch=True) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"x")
            for length, codes in ((255, [0, 0]), (256, [26, 17])):
                name = "%LMQ%" + "n" * (length - 5)
                assert [await commit(peer, name, TOPIC, 0), await commit(peer, "%LMQ%g", name, 0)] == codes
            assert (await pull(peer, group=name)).code == 29

    run(main())


def test_what_pops_and_lite_subscriptions_leave_has_no_long_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, lmq=True, multi_dispatch=True) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"x")
            for length, code in ((512, 0), (513, 29)):
                asked = pop_header(TOPIC, 0, order=True, invisible_time_ms=0, attempt_id="a" * length)
                assert (await peer.request(RequestCode.POP_MESSAGE, asked)).code == code
            lite = headers.PopLiteHeader(
                client_id="c", group="g", topic="t", count_max=1, invisible_time_ms=1, poll_time_ms=0, attempt_id=LONG
            )
            assert (await peer.request(RequestCode.POP_LITE_MESSAGE, lite)).code == 29

            async def subscribe(group: str, topic: str) -> int:
                change = {"action": "COMPLETE_ADD", "clientId": "c", "group": group, "topic": topic}
                return await code_of(peer, RequestCode.LITE_SUBSCRIPTION_CTL, {"subscriptionSet": [change]})

            assert [await subscribe("g", LONG), await subscribe("%LMQ%" + "n" * 120, "t")] == [29, 29]
            assert await subscribe("g", "t") == 0

    run(main())


def test_names_of_half_messages_are_bounded_alone_and_in_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for length, code in ((1000, 0), (1025, 13)):
                pairs = {"UNIQ_KEY": "u" * 20, "PGROUP": "p" * length, "TRAN_MSG": "true"}
                assert (await send(peer, b"x", TOPIC, 0, sys_flag=4, pairs=pairs)).code == code
                items = [
                    batch.BatchItem(0, b"x", properties.encode(pairs | {"UNIQ_KEY": f"{n}"}).encode()) for n in "ab"
                ]
                halves = {"sys_flag": 4, "code": RequestCode.SEND_HALF_BATCH}
                assert (await send(peer, batch.encode(items), TOPIC, 0, **halves)).code == code
            assert server._transactions.open_count == 3

    run(main())


def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_locks, "LOCKS_MAX", 5)
    monkeypatch.setattr(rebalance_locks, "GROUP_LOCKS_MAX", 3)
    locks, queues = RebalanceLocks(expiry_ms=100), [MessageQueue("T", "b", n) for n in range(9)]
    assert locks.lock("A", "c", queues, 0) == queues[:3]
    assert locks.lock("B", "c", queues, 50) == queues[:2]
    assert locks.lock("C", "c", queues, 50) == []
    assert locks.lock("A", "c", queues, 60) == queues[:3]
    locks.unlock("A", "c", queues[:1])
    assert locks.lock("C", "c", queues, 60) == queues[:1]
    assert locks.count == 5
    list(locks.expire_steps(155))
    assert (locks.count, locks._held.keys()) == (3, {"A", "C"})
    list(locks.expire_steps(1000))
    assert (locks.count, locks._held) == (0, {})


def test_request_modes_and_forbidden_pairs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "MODES_MAX", 1)
    monkeypatch.setattr(groups, "FORBIDDEN_MAX", 1)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for name in ("G", "H"):
                await create_group(peer, name)

            async def mode(group: str) -> int:
                return await code_of(peer, 401, {"topic": TOPIC, "consumerGroup": group, "mode": "PULL"})

            assert [await mode(name) for name in ("G", "H", "G")] == [0, 2, 0]

            async def forbid(group: str, readable: bool = False) -> int:
                header = headers.ForbiddenHeader(group=group, topic=TOPIC, readable=readable)
                return (await peer.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)).code

            assert [await forbid(name) for name in ("G", "H", "G")] == [0, 2, 0]
            assert [await forbid("H", True), await forbid("G", True), await forbid("H")] == [0, 0, 0]

    run(main())


def test_counters_are_of_topics_that_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer, GROUP)
            for n in range(5):
                await sent(peer, b"x", pairs={"RETRY_TOPIC": f"made-up-{n}"})
                position = records(await pull(peer, TOPIC, 0, n))[0].position
                header = headers.SendBackHeader(group=GROUP, physical_offset=position, delay_level=-1)
                (await peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)).raise_for_code("send back")
            assert not [key for key in server._stats._items if "made-up" in key[1]]
            assert list(server._stats.dead) == [(f"%DLQ%{GROUP}", GROUP)]

    run(main())


def test_parked_messages_go_to_a_bounded_number_of_queues_of_no_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_rules, "STRAY_QUEUES_MAX", 2)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            rules = server._send._rules
            rules.admit_parked(TOPIC, 0, 0)
            for _ in range(3):
                rules.admit_parked("deleted", 0, 0)
                rules.admit_parked(TOPIC, 99_999, 0)
            with pytest.raises(ServerError, match="too many are already"):
                rules.admit_parked("deleted", 1, 0)
            rules.admit_parked(TOPIC, 0, 0)

    run(main())


def test_a_crowd_of_filters_is_looked_at_over_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New pulls share one turn's time: those beyond it look at nothing, and compile nothing, before their own turn."""
    looked: list[float] = []
    tick = 0.0

    def clock() -> float:
        # Each look at it is 10 ms later: two pulls use a turn up.
        nonlocal tick
        tick += 0.01
        return tick

    monkeypatch.setattr(message_filters, "machine", like(machine, perf_counter=clock))

    async def main() -> None:
        async with broker(tmp_path, property_filter=True) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"x", pairs={"n": "1"})
            assert len(sql92.compile("n = 1").names) == 1
            turn = message_filters.FilterTurn()
            assert [turn.is_over() for _ in range(4)] == [False, False, True, True]
            await asyncio.sleep(0)
            assert not turn.is_over()
            sieve = message_filters.PullFilter(sql92.compile("n = 1"), server._filters)
            sieve.begin(in_own_turn=False)
            assert (sieve(memoryview(b"")), sieve.cut) == (None, True)
            async with connected(server.address) as other:
                asked = [
                    each.ask(
                        RequestCode.PULL_MESSAGE,
                        pull_header(TOPIC, 0, 0, subscription=f"n = 1 OR n = {n}", expression_type="SQL92"),
                    )
                    for n in range(20)
                    for each in (peer, other)
                ]
                for answer in asked:
                    looked.append(len(records(await answer)))
            assert looked == [1] * 40

    run(main())


def test_a_body_that_nests_deep_or_holds_much_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for body in (
                b'{"clientID":"c","x":' + b"[" * 200_000,
                b'{"clientID":"c","x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
                b'{"clientID":"c","x":{' + b'{"a":1}:' * 20_000 + b"1}}",
                b'{"clientID":' + b"9" * 100_000 + b"}",
            ):
                reply = await peer.request(34, None, body)
                assert reply.code == 1, body[:30]
                assert "Traceback" not in (reply.remark or "")
                assert len(reply.remark or "") < 1000
            assert (await send(peer, b"x")).code in (0, 17)

    run(main())
