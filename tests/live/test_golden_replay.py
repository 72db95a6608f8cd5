"""Every captured request goes to our servers: what they answer is what RocketMQ's answered.

Rule: what may differ stands in golden_differences.py with its reason; a row that is not needed fails, as a difference
without a row does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live import golden_differences as differences
from tests.live import support
from tests.live.golden_replay import IN_VAIN_MS, Replay, Step, filled, scenarios, tapped
from tests.live.golden_values import ABSENT, Seen, pairs_of

from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties, record

HOUR_MS = 3_600_000
# As the captured broker was started, as far as it shows in the answers; what took it seconds takes ours less.
CONF: dict[str, Any] = {
    "property_filter": True,
    "trace_topic_enabled": True,
    "recall_enabled": True,
    "transaction_timeout_ms": HOUR_MS,
    "transaction_check_interval_ms": HOUR_MS,
    "delay_levels": " ".join(["1s"] * 18),
}


def heartbeat(
    client: str, group: str = "", topic: str = "", versions: tuple[int, int] = (0, 0), producer: str = ""
) -> bytes:
    """What a Java push consumer of one topic, or a producer, sends. `versions`: of its retry topic, of its topic."""
    subscriptions = [
        {"topic": name, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": version, "expressionType": "TAG"}
        for name, version in zip((f"%RETRY%{group}", topic), versions, strict=True)
    ]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }
    producers = [{"groupName": name} for name in (producer, "CLIENT_INNER_PRODUCER") if name]
    return json.dumps(
        {"clientID": client, "producerDataSet": producers, "consumerDataSet": [consumer] if group else []}
    ).encode()


def sending(topic: str, queue_id: int, born_ms: int = 0, pairs: str = "", group: str = "PG_gold") -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2."""
    where = {"a": group, "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id)}
    return where | {"f": "0", "g": str(born_ms), "h": "0", "i": pairs, "j": "0"}


async def settle(replay: Replay, **settings: int) -> None:
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    await (await replay.side()).ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def check_back_once(replay: Replay) -> None:
    await settle(replay, transactionTimeOut=0)
    replay.server._transactions._check_all()
    await settle(replay, transactionTimeOut=HOUR_MS)


async def delayed_is_there(replay: Replay) -> None:
    await filled(await replay.side(), "GoldTopic", 0, 4)
    await filled(await replay.side(), "GoldTopic", 3, 3)


async def timers_are_there(replay: Replay) -> None:
    for queue_id in (0, 2, 3):
        await filled(await replay.side(), "GoldTimer", queue_id, 1)


def stored(scenario: str, index: int) -> Step:
    """The messages of a captured pull were sent while nothing was captured."""

    async def step(replay: Replay) -> None:
        side = await replay.side()
        for one in record.decode_all(scenarios()[scenario][index].frame.body):
            pairs = properties.decode(one.properties.decode())
            marked = [pairs.pop(mark, None) for mark in ("CLUSTER", "MSG_REGION", "TRACE_ON")]
            sent = sending(one.topic.decode(), one.queue_id, one.born_time_ms, properties.encode(pairs))
            if any(marked):
                await side.ask(RequestCode.SEND_MESSAGE_V2, sent, one.body)
            else:
                # What came in a batch has no marks of the broker's.
                items = [batch.BatchItem(one.flag, one.body, one.properties)]
                await side.ask(RequestCode.SEND_BATCH_MESSAGE, sent | {"i": "", "m": "true"}, batch.encode(items))

    return step


async def a_consumer_waits_for_requests(replay: Replay) -> None:
    """The consumer CG_req, whose pull of queue 0 is held when the request comes."""
    scenario = scenarios()["request_reply"]
    link = await replay.connection(23)
    await link.ask(
        RequestCode.HEART_BEAT, body=heartbeat("192.0.2.2@CG_req", "CG_req", "GoldReq", (1795214819558, 1795214819558))
    )
    await link.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    pull = frames.decode(frames.encode(scenario[9].frame))
    assert pull.ext is not None
    pull.opaque = scenario[8].frame.opaque
    pull.ext["queueOffset"] = "0"
    replay.asked[23, pull.opaque] = scenario[9]
    link.send(pull)
    await link.served()


async def a_consumer_has_read_all(replay: Replay) -> None:
    """The topic GoldTopic with its messages, read to the end by the consumer CG_push, whose pulls are held."""
    scenario = scenarios()["client_side_reset_offset_by_timestamp"]
    side, link = await replay.side(), await replay.connection(6)
    where = {
        "topic": "GoldTopic",
        "defaultTopic": "TBW102",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    counts = {"readQueueNums": "4", "writeQueueNums": "4", "topicSysFlag": "0"}
    await side.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, where | counts)
    for index in (39, 40):
        await stored(scenario[index].scenario, index)(replay)
    for queue_id, others in ((1, 1), (2, 2), (3, 2)):
        for _ in range(others):
            await side.ask(RequestCode.SEND_MESSAGE_V2, sending("GoldTopic", queue_id), b"of no tag")
    await link.ask(RequestCode.HEART_BEAT, body=scenario[31].frame.body)
    await link.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    for queue_id, offset in enumerate((3, 1, 1, 2)):
        where = {"consumerGroup": "CG_push", "topic": "GoldTopic", "queueId": str(queue_id)}
        await link.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": str(offset)})
    for held, asked_again in ((9, 43), (10, 41), (11, 44), (12, 42)):
        pull = frames.decode(frames.encode(scenario[asked_again].frame))
        assert pull.ext is not None
        pull.opaque = scenario[held].frame.opaque
        pull.ext["suspendTimeoutMillis"] = IN_VAIN_MS
        replay.asked[6, pull.opaque] = scenario[asked_again]
        link.send(pull)
    await link.served()


async def groups_of_the_admin_scenarios(replay: Replay) -> None:
    """GG_raw, GG_pop; the consumer CG_admin, which has consumed GoldPull; the producer PG_admin, which sent to it."""
    side = await replay.side()
    for group in ("GG_raw", "GG_pop"):
        body = json.dumps({"groupName": group}).encode()
        await side.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    producer, consumer = await replay.connection(-2), await replay.connection(-3)
    await producer.ask(RequestCode.HEART_BEAT, body=heartbeat("192.0.2.2@PG_admin", producer="PG_admin"))
    await producer.ask(RequestCode.SEND_MESSAGE_V2, sending("GoldPull", 1, group="PG_admin"), b"admin")
    body = heartbeat("192.0.2.2@CG_admin", "CG_admin", "GoldPull", (1795214872289, 1795214876217))
    await consumer.ask(RequestCode.HEART_BEAT, body=body)
    for queue_id, offset in enumerate((6, 1, 0, 0)):
        where = {"consumerGroup": "CG_admin", "topic": "GoldPull", "queueId": str(queue_id)}
        if offset:
            pull = {"queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0", "commitOffset": "0"}
            await consumer.ask(
                RequestCode.PULL_MESSAGE,
                {**where, **pull, "suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG"},
            )
        await consumer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": str(offset)})


# What the capture did not catch: before which frame of which scenario it happened.
STEPS: dict[str, dict[int, Step]] = {
    "transaction_unknown_check_back": {5: check_back_once},
    "push_consumer_start_consume": {0: delayed_is_there},
    "pull_found": {0: stored("pull_found", 4)},
    "request_reply": {0: a_consumer_waits_for_requests},
    "admin_cluster_info": {0: groups_of_the_admin_scenarios},
    "pull_delivered_timer_messages": {0: timers_are_there},
    "client_side_reset_offset_by_timestamp": {0: a_consumer_has_read_all},
}


# What the captured broker told its NameServer: the scenario, the frame, and a text by which ours is known.
TOLD = (
    ("broker_register", 0, b""),
    ("create_topic", 1, b'"GoldTopic"'),
    ("broker_unregister", 0, b""),
)


async def play(replay: Replay, names: list[str]) -> None:
    """Play scenarios; connections end after their last one, as the captured clients did."""
    last = {c.connection: name for name in names for c in scenarios()[name] if c.link == "client-broker"}
    for name in names:
        await replay.play(scenarios()[name], STEPS.get(name))
        gone = {await replay.end(number) for number, at in last.items() if at == name}
        await support.until(lambda gone=gone: gone.isdisjoint(p.remote_port for p in replay.server._server.peers))


async def act(folder: Path, first: str, last: str, **conf: Any) -> list[Seen]:
    """Play the scenarios from `first` to `last`, which ran on one broker, on one of ours."""
    names = list(scenarios())
    names = [n for n in names[names.index(first) : names.index(last) + 1] if n not in differences.LEFT_OUT]
    async with support.name_server() as ns, support.name_server() as registry, tapped(ns.address) as tap:
        async with support.broker(folder, namesrv_addresses=tap.address, **conf) as broker:
            addresses = {"broker": broker.address, "namesrv": ns.address, "registry": registry.address}
            replay = Replay(broker, addresses)
            await play(replay, names)
            await replay.close()
        for name, index, text in TOLD:
            if name in names:
                told = scenarios()[name][index]
                replay.compare(told, ">" + RequestCode(told.frame.code).name, tap.first(told.frame.code, text))
    return replay.seen + [Seen(last, "", "", f"unasked.{text}", "absent", text) for text in replay.unasked()]


@pytest.mark.shows(
    "captured requests replayed against our servers; what may differ is a table with reasons",
    "mended: fresh clone: `make test` 42 min; the replay of captured requests fails by the date",
)
def test_every_captured_request_is_answered_as_rocketmq_answered_it(tmp_path: Path) -> None:
    async def main() -> list[Seen]:
        seen = await act(tmp_path / "main", "broker_register", "broker_unregister", **CONF)
        seen += await act(tmp_path / "raw", "raw_route_old_version", "raw_python_language_heartbeat", **CONF)
        by_clients = "client_side_reset_offset_by_timestamp"
        return seen + await act(tmp_path / "clients", by_clients, by_clients, **CONF, reset_offsets_here=False)

    seen = support.run(main(), limit_s=800)
    assert not (wrong := differences.judge(seen, differences.ROWS, differences.OVERTAKEN)), "\n".join(wrong)
    assert len({one.scenario for one in seen}) > 100
    assert sum(one.path in ("code", "frame") for one in seen) > 600


def test_what_is_left_out_is_there() -> None:
    assert differences.LEFT_OUT.keys() <= scenarios().keys()


def test_differences_and_needless_rows_are_found() -> None:
    seen = [Seen("s", "s[1]", "ASK", path, *values) for path, *values in pairs_of({"a": 1, "b": [3]}, {"a": 2}, "body")]
    assert [(one.path, one.captured, one.ours) for one in seen] == [("body.a", 1, 2), ("body.b", [3], ABSENT)]
    number = differences.Row("*", "ASK", "body.a", differences.number, "a figure")
    gone = differences.Row("s", "*", "body.b", differences.not_ours, "not there")
    assert differences.judge(seen, [number, gone], {}) == []
    assert differences.judge(seen, [number], {}) == ["s[1] ASK body.b: [3] captured, absent ours"]
    assert differences.judge(seen[1:], [number, gone], {}) == [f"not needed: {number}"]
    assert differences.judge(seen[:1], [gone._replace(path="*")], {})[0].startswith(
        "s[1] ASK body.a: 1 captured, 2 ours"
    )
    assert differences.judge(seen, [], {"s[1]": "late"}) == []
    assert differences.judge([], [], {"s[1]": "late"}) == ["not overtaken: s[1]"]
