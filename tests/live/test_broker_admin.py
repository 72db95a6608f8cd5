"""What `mqadmin` asks of a broker and a NameServer: the same keys and types as captured, values of our own state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    name_server,
    pull,
    pulled,
    run,
    send,
    send_header,
    sent,
    until,
)
from tests.support.patience import in_time
from tests.unit.broker.test_settings_table import OURS_ALONE
from tests.unit.protocol.golden import frames

from rocketspark.errors import ServerError
from rocketspark.model.conf_lines import parse_properties
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    ConsumerStatsHeader,
    EndTransactionHeader,
    Header,
    RouteHeader,
    SendReply,
    UpdateConsumerOffsetHeader,
)
from rocketspark.protocol.headers.admin import (
    BrokerConsumeStatsHeader,
    ConfigReply,
    QueueUnitsHeader,
    ResumeCheckHeader,
    StatsHeader,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("limits of topic, group, properties, body; permissions; automatic creation off")

CONF = "# by hand\nbrokerName=broker-a\n\nmaxMessageSize = 1000\ntraceOn=true\n"


def captured(scenario: str, code: int) -> Any:
    """The JSON that the 5.5.0 servers answered."""
    for frame in frames():
        if frame.scenario == scenario and frame.request_code == code and frame.is_reply:
            return json.loads(java_json.standardize(frame.body))
    raise AssertionError(f"{scenario} has no reply to {code}")


def shape(value: Any) -> Any:
    """Keys and types of a document; lists by their first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value)


async def ask(peer: Peer, code: int, header: Header | None = None, body: bytes = b"") -> Reply:
    return (await peer.request(code, header, body)).raise_for_code(f"request {code}")


async def document(peer: Peer, code: int, header: Header | None = None) -> Any:
    return json.loads(java_json.standardize((await ask(peer, code, header)).body))


async def update(peer: Peer, text: str) -> Reply:
    return await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, text.encode())


async def config(peer: Peer) -> dict[str, str]:
    reply = await ask(peer, RequestCode.GET_BROKER_CONFIG)
    return parse_properties(reply.body.decode(), "the reply")


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_settings_are_all_those_of_the_official_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address, store_commit_log=f"{tmp_path}/log") as server,
            connected(server.address) as peer,
        ):
            reply = await ask(peer, RequestCode.GET_BROKER_CONFIG)
            official = next(f for f in frames() if f.scenario == "admin_broker_config_get" and f.is_reply)
            shown = parse_properties(reply.body.decode(), "the reply")
            captured = parse_properties(official.body.decode(), "the capture")
            assert shown.keys() - OURS_ALONE == captured.keys() - OURS_ALONE
            assert shown["listenPort"] == server.address.rpartition(":")[2]
            assert shown["namesrvAddr"] == names.address
            version = json.loads(reply.header(ConfigReply).version)
            assert shape(version) == shape(json.loads(official.ext["version"]))
            assert version["counter"] == 0
            (await update(peer, "traceOn=false")).raise_for_code("update")
            again = await ask(peer, RequestCode.GET_BROKER_CONFIG)
            assert json.loads(again.header(ConfigReply).version)["counter"] == 1

    run(main())


def test_a_changed_limit_holds_for_the_next_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"x" * 200)
            (await update(peer, "maxMessageSize=100\n")).raise_for_code("update")
            assert (await send(peer, b"x" * 101)).code == ResponseCode.MESSAGE_ILLEGAL
            await sent(peer, b"x" * 100)
            (await update(peer, "maxMessageSize=6000000\n")).raise_for_code("update")
            await sent(peer, b"x" * 5_000_000)

    run(main())


def test_permission_is_changed_for_senders_readers_and_routes(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as route_peer,
        ):
            await create(peer)
            await sent(peer)
            (await update(peer, "brokerPermission=4")).raise_for_code("update")
            assert (await send(peer)).code == ResponseCode.NO_PERMISSION
            assert len(await pulled(peer)) == 1
            route = await document(route_peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=TOPIC))
            assert [q["perm"] for q in route["queueDatas"]] == [4]
            (await update(peer, "brokerPermission=2")).raise_for_code("update")
            assert (await pull(peer)).code == ResponseCode.NO_PERMISSION
            (await update(peer, "brokerPermission=6")).raise_for_code("update")
            await sent(peer)
            route = await document(route_peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=TOPIC))
            assert [q["perm"] for q in route["queueDatas"]] == [6]

    run(main())


def test_switches_take_effect_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, auto_create_topic=False) as server, connected(server.address) as peer:
            assert (await send(peer, b"x", "New", default_topic="TBW102")).code == ResponseCode.TOPIC_NOT_EXIST
            (await update(peer, "autoCreateTopicEnable=true")).raise_for_code("update")
            await sent(peer, b"x", "New")
            (await update(peer, "autoCreateTopicEnable=false")).raise_for_code("update")
            assert (await send(peer, b"x", "Newer")).code == ResponseCode.TOPIC_NOT_EXIST
            await pulled(peer, "New")
            (await update(peer, "autoCreateSubscriptionGroup=false")).raise_for_code("update")
            reply = await pull(peer, "New", group="Unknown")
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            (await update(peer, "maxTransferCountOnMessageInMemory=1\ntraceOn=false\nregionId=South")).raise_for_code(
                "u"
            )
            reply = await send(peer, b"y", "New")
            assert (reply.header(SendReply).region, reply.header(SendReply).trace_on) == ("South", False)
            found = await pulled(peer, "New")
            assert len(found) == 1
            assert b"MSG_REGION\x01South" in (await pulled(peer, "New", 0, 1))[0].properties
            half = await peer.request(310, send_header("New", 0, sys_flag=4, pairs={"PGROUP": "P"}), b"half")
            half.raise_for_code("half")
            (await update(peer, "rejectTransactionMessage=true")).raise_for_code("update")
            half = await peer.request(310, send_header("New", 0, sys_flag=4, pairs={"PGROUP": "P"}), b"half")
            assert half.code == ResponseCode.NO_PERMISSION
            (await update(peer, "longPollingEnable=false")).raise_for_code("update")
            reply = await pull(peer, "New", 0, 2, sys_flag=6, suspend_ms=20_000)
            assert reply.code == ResponseCode.PULL_NOT_FOUND

    run(main())


def test_times_take_effect_at_once(tmp_path: Path) -> None:
    """An interval of an hour is cut short: the check of a transaction comes, the flush comes."""

    async def main() -> None:
        slow = 3_600_000
        async with (
            broker(
                tmp_path,
                transaction_timeout_ms=slow,
                transaction_check_interval_ms=slow,
                flush_interval_ms=200,
                flush_queue_interval_ms=slow,
            ) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            await beat(peer, group=None, producer="P")
            await peer.request(310, send_header(TOPIC, 0, sys_flag=4, pairs={"PGROUP": "P"}), b"half")
            text = (
                "transactionTimeOut=1\ntransactionCheckInterval=20\ntransactionCheckMax=1\nflushIntervalConsumeQueue=20"
            )
            (await update(peer, text)).raise_for_code("update")
            await until(lambda: server.store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1] == 1)
            shown = await config(peer)
            assert [shown[line.split("=")[0]] for line in text.splitlines()] == ["1", "20", "1", "20"]

    run(main())


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("configBlackList=x", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        ("brokerConfigPath=/x", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        ("maxMessageSize=abc", ResponseCode.INVALID_PARAMETER, "maxMessageSize='abc': a whole number is needed"),
        ("listenPort=1", ResponseCode.INVALID_PARAMETER, "listenPort cannot change while the broker runs"),
        ("flushDiskType=SYNC_FLUSH", ResponseCode.INVALID_PARAMETER, "flushDiskType cannot change"),
        ("brokerRole=SYNC_MASTER", ResponseCode.INVALID_PARAMETER, "brokerRole"),
        ("tls.server.mode=disabled", ResponseCode.INVALID_PARAMETER, "tls.server.mode cannot change while the broker"),
        ("useTLS=true", ResponseCode.INVALID_PARAMETER, "useTLS cannot change while the broker runs"),
        (
            "tieredStorageLevel=FORCE",
            ResponseCode.INVALID_PARAMETER,
            "tieredStorageLevel cannot change while the broker",
        ),
        ("nothing", ResponseCode.INVALID_PARAMETER, "line 3: 'nothing' is no key=value"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path: Path, text: str, code: int, remark: str) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            before = await config(peer)
            reply = await update(peer, f"traceOn=false\nsendMessageThreadPoolNums=9\n{text}\n")
            assert reply.code == code
            assert remark in (reply.remark or "")
            assert await config(peer) == before

    run(main())


def test_unknown_keys_are_passed_over_and_ignored_ones_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            before = await config(peer)
            port = server.address.rpartition(":")[2]
            (await update(peer, f"noSuchKey=1\nwaitTimeMillsInSendQueue=5\nlistenPort={port}")).raise_for_code("update")
            assert await config(peer) == before | {"waitTimeMillsInSendQueue": "5"}

    run(main())


@pytest.mark.shows("a live setting made empty")
def test_a_change_is_written_into_broker_conf(tmp_path: Path) -> None:
    from rocketspark.broker.broker_conf import read_broker_conf

    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    conf.chmod(0o600)
    conf.with_name("broker.conf.tmp").write_text("left by a kill, for all to read")

    async def main() -> None:
        async with broker(tmp_path / "store", conf_path=str(conf)) as server, connected(server.address) as peer:
            (
                await update(peer, "maxMessageSize=2000\nbrokerPermission=4\nackThreadPoolQueueCapacity=7")
            ).raise_for_code("u")
            # One made empty is the default or nothing after a restart as well.
            (await update(peer, "deleteWhen=05\nregionId=R")).raise_for_code("u")
            (await update(peer, "deleteWhen=\nregionId=")).raise_for_code("u")

    run(main())
    assert conf.stat().st_mode & 0o777 == 0o600
    assert conf.read_text() == (
        "# by hand\nbrokerName=broker-a\n\nmaxMessageSize=2000\ntraceOn=true\n"
        "brokerPermission=4\nackThreadPoolQueueCapacity=7\nregionId=\ndeleteWhen=\n"
    )
    after, warnings = read_broker_conf(conf)
    assert warnings == []
    assert (after.message_bytes_max, after.broker_permission, after.trace_on) == (2000, 4, True)
    assert after.ignored == {"ackThreadPoolQueueCapacity": "7"}


def test_a_change_is_written_into_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    conf, link = tmp_path / "kept" / "broker.conf", tmp_path / "broker.conf"
    conf.parent.mkdir()
    conf.write_text("brokerName=broker-a\n")
    link.symlink_to(conf)

    async def main() -> None:
        async with broker(tmp_path / "store", conf_path=str(link)) as server, connected(server.address) as peer:
            (await update(peer, "maxMessageSize=2000")).raise_for_code("u")

    run(main())
    assert link.is_symlink()
    assert conf.read_text() == "brokerName=broker-a\nmaxMessageSize=2000\n"


# -- state and statistics ----------------------------------------------------------------------------------------------


def test_runtime_info_has_the_captured_keys_and_our_values(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, delay_levels="1h 2h") as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for _ in range(3):
                await sent(peer, b"x" * 100)
            await sent(peer, b"later", pairs={"DELAY": "2"})
            assert (await send(peer, b"x" * 5_000_000)).code == ResponseCode.MESSAGE_ILLEGAL
            await pulled(peer)
            table = (await document(peer, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            official = captured("admin_broker_runtime_info", 28)["table"]
            path = f"commitLogDiskRatio_{tmp_path}/commitlog"
            assert table.keys() == official.keys() - {"commitLogDiskRatio_store/commitlog"} | {path}
            # The same kind of number, by the form of the text; rates are not known yet.
            for key in official.keys() & table.keys() - {"putTps", "getFoundTps", "getMissTps", "getTransferredTps"}:
                assert _form(table[key]) == _form(official[key]), key
            expected = {
                "brokerActive": "true",
                "brokerVersionDesc": "V5_5_0",
                "commitLogMaxOffset": str(server.store.written_position),
                "commitLogMinOffset": "0",
                "putMessageTimesTotal": "4",
                "putMessageSizeTotal": str(server.store.written_position),
                "putMessageAverageSize": str(server.store.written_position / 4),
                "msgPutTotalTodayNow": "3",
                "msgGetTotalTodayNow": "3",
                "scheduleMessageOffset_2": "0,1",
                "earliestMessageTimeStamp": str(server.store.store_time_at(TOPIC, 0, 0)),
                "sendThreadPoolQueueCapacity": "10000",
            }
            assert {key: table[key] for key in expected} == expected
            # The first puts of each second are timed.
            times = [int(n) for n in re.findall(r"\]:(\d+) ", table["putMessageDistributeTime"])]
            assert len(times) == 13
            assert sum(times) >= 4

    run(main())


def _form(text: str) -> str:
    """A text with every number, whole or not, as one sign."""
    return re.sub(r"[KMGTP]?i?B\b", "B", re.sub(r"\d+(\.\d+)?", "#", text))


def test_rates_appear_in_runtime_info(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            now = server._stats.started_ms
            for second in range(61):
                server._stats.tick(now + second * 1000)
            await sent(peer)
            await pulled(peer)
            server._stats.tick(now + 61_000)
            table = (await document(peer, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            sixtieth = str(1 / 60)
            assert table["putTps"] == f"0.1 {sixtieth} "
            assert table["getFoundTps"] == f"0.1 {sixtieth} "
            assert table["getTransferredTps"] == f"0.1 {sixtieth} "
            assert table["getMissTps"] == "0.0 0.0 "
            assert table["getTotalTps"] == f"0.1 {sixtieth} 0.0"

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_stats_data(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for _ in range(4):
                await sent(peer, b"x" * 50)
            await pulled(peer, count_max=3)
            await pulled(peer, TOPIC, 0, 3)
            # Whenever the 10 s are over; the broker's own ticks come each second.
            server._stats.tick(server._stats.started_ms + 10_000)
            view = RequestCode.VIEW_BROKER_STATS_DATA
            put = await document(peer, view, StatsHeader(name="TOPIC_PUT_NUMS", key=TOPIC))
            assert shape(put) == shape(captured("admin_stats_data", 315))
            assert put["statsMinute"]["sum"] == 4
            assert put["statsMinute"]["avgpt"] == 1.0
            got = await document(peer, view, StatsHeader(name="GROUP_GET_NUMS", key=f"{TOPIC}@{GROUP}"))
            assert got["statsMinute"] == {"avgpt": 2.0, "sum": 4, "tps": 0.4}
            size = await document(peer, view, StatsHeader(name="TOPIC_PUT_SIZE", key=TOPIC))
            assert size["statsMinute"]["sum"] == server.store.written_position
            whole = await document(peer, view, StatsHeader(name="BROKER_PUT_NUMS", key="DefaultCluster"))
            assert whole["statsMinute"]["sum"] == 4
            missing = await peer.request(view, StatsHeader(name="TOPIC_PUT_NUMS", key="None"))
            assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <None> not exist")

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_consume_rate_in_a_groups_progress(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for _ in range(6):
                await sent(peer)
            await pulled(peer)
            commit = UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, commit_offset=6)
            await ask(peer, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            server._stats.tick(server._stats.started_ms + 10_000)
            found = await document(peer, RequestCode.GET_CONSUME_STATS, ConsumerStatsHeader(group=GROUP))
            assert found["consumeTps"] == 0.6

    run(main())


def test_progress_of_all_groups(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=2)
            await create(peer, "Ordered", queues=1, order=True)
            for _ in range(5):
                await sent(peer)
            await sent(peer, b"x", "Ordered")
            await pulled(peer, count_max=4)
            for topic, group, offset in ((TOPIC, GROUP, 3), ("Ordered", "H", 1)):
                await create_group(peer, group)
                commit = UpdateConsumerOffsetHeader(group=group, topic=topic, queue_id=0, commit_offset=offset)
                await ask(peer, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            await pull(peer, "Ordered", 0, 1, group="H")
            code = RequestCode.GET_BROKER_CONSUME_STATS
            found = await document(peer, code, BrokerConsumeStatsHeader(order=False))
            official = captured("admin_consume_stats_in_broker", 317)
            assert found.keys() == official.keys()
            assert found["brokerAddr"] == server.address
            assert (found["totalDiff"], found["totalInflightDiff"]) == (2, 1)
            groups = {name: rows for entry in found["consumeStatsList"] for name, rows in entry.items()}
            assert groups["TOOLS_CONSUMER"] == []
            (row,) = groups[GROUP]
            queue = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}
            last_ms = server.store.store_time_at(TOPIC, 0, 2)
            table = {tuple(sorted(json.loads(k).items())): v for k, v in row["offsetTable"].items()}
            assert table[tuple(sorted(queue.items()))] == {
                "brokerOffset": 5,
                "consumerOffset": 3,
                "lastTimestamp": last_ms,
                "pullOffset": 4,
            }
            assert isinstance(row["consumeTps"], float)
            ordered = await document(peer, code, BrokerConsumeStatsHeader(order=True))
            groups = {name: rows for entry in ordered["consumeStatsList"] for name, rows in entry.items()}
            assert groups[GROUP] == []
            assert len(groups["H"]) == 1
            assert ordered["totalDiff"] == 0

    run(main())


def test_replication_status_of_a_lone_master(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            found = await document(peer, RequestCode.GET_BROKER_HA_STATUS)
            official = captured("admin_ha_status", 907)
            assert found == official | {"masterCommitLogMaxOffset": server.store.written_position}

    run(main())


# -- topics and queues -------------------------------------------------------------------------------------------------


def test_system_topics_are_those_of_the_official_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as names_peer,
        ):
            found = await document(peer, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            official = captured("admin_system_topic_list", 305)
            assert found.keys() == official.keys()
            assert sorted(found["topicList"]) == sorted(official["topicList"])
            found = await document(names_peer, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
            official = captured("admin_system_topic_list", 304)
            assert found.keys() == official.keys()
            assert sorted(found["topicList"]) == sorted(official["topicList"])
            assert found["brokerAddr"] == server.address

    run(main())


def test_many_topics_at_once_or_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as names_peer,
        ):
            await create(peer, "A", queues=1, attributes="+message.type=NORMAL")
            first = {"topicName": "A", "readQueueNums": 3, "writeQueueNums": 2, "attributes": {"+message.type": "FIFO"}}
            second = {"topicName": "B", "perm": 4, "order": True}
            both = json.dumps({"topicConfigList": [first, second]}).encode()
            await ask(peer, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, both)
            a, b = server._topics.get("A"), server._topics.get("B")
            assert a is not None
            assert b is not None
            assert (a.read_queue_nums, a.write_queue_nums, a.attributes) == (3, 2, {"message.type": "FIFO"})
            assert (b.perm, b.order) == (4, True)
            # Who has the reply finds the routes.
            route = await document(names_peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic="B"))
            assert route["queueDatas"][0]["perm"] == 4
            bad = json.dumps({"topicConfigList": [{"topicName": "C"}, {"topicName": "TBW102"}]}).encode()
            reply = await peer.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, bad)
            assert reply.code == ResponseCode.INVALID_PARAMETER
            assert "TBW102" in (reply.remark or "")
            assert server._topics.get("C") is None

    run(main())


WRONG_VALUES = [("message.type", "SOMETIMES"), ("reserve.time", "1h"), ("lite.topic.expiration", "soon")]


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_an_attribute_of_a_topic_is_checked_when_it_changes(tmp_path: Path, name: str, value: str) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            wrong = {"topicName": "A", "attributes": {f"+{name}": value}}
            several = json.dumps({"topicConfigList": [{"topicName": "B"}, wrong]}).encode()
            with pytest.raises(ServerError, match=f"{name} '{value}'"):
                await create(peer, "A", attributes=f"+{name}={value}")
            with pytest.raises(ServerError, match=f"{name} '{value}'"):
                await ask(peer, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, several)
            assert {"A", "B"}.isdisjoint(server._topics.table)
            # One that is so already, as an earlier version took it, keeps nobody from changing another.
            server._topics.put(bodies.TopicConfig(topic_name="A", attributes={name: value}))
            await create(peer, "A", attributes="+cleanup.policy=DELETE")
            assert server._topics.table["A"].attributes == {name: value, "cleanup.policy": "DELETE"}
            await create(peer, "A", attributes=f"-{name}")
            assert server._topics.table["A"].attributes == {"cleanup.policy": "DELETE"}

    run(main())


@pytest.mark.shows(
    "mended: an attribute of a topic or a group that no broker knows, such as a typing error, said success"
)
def test_an_attribute_that_no_broker_knows_is_refused_by_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            with pytest.raises(ServerError, match=r"attribute 'mesage.type' is not one of .*message\.type"):
                await create(peer, "A", attributes="+mesage.type=FIFO")
            assert "A" not in server._topics.table
            # One that another version took stays, may be set anew and be removed.
            server._topics.put(bodies.TopicConfig(topic_name="A", attributes={"other": "1"}))
            await create(peer, "A", attributes="+other=2,+message.type=FIFO")
            assert server._topics.table["A"].attributes == {"other": "2", "message.type": "FIFO"}
            await create(peer, "A", attributes="-other")
            assert server._topics.table["A"].attributes == {"message.type": "FIFO"}
            for attributes, why in (
                ({"+priority.facto": "9"}, "'priority.facto'"),
                ({"+priority.factor": "101"}, "0 to 100"),
            ):
                body = json.dumps({"groupName": "g", "attributes": attributes}).encode()
                with pytest.raises(ServerError, match=why):
                    await ask(peer, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            assert "g" not in server._groups.table

    run(main())


def test_units_of_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for tag in ("A", "B", "A"):
                await sent(peer, b"x", pairs={"TAGS": tag})
            code = RequestCode.QUERY_CONSUME_QUEUE
            official = captured("admin_query_consume_queue", 321)
            await beat(peer, topics={TOPIC: "*"})
            header = QueueUnitsHeader(topic=TOPIC, queue_id=0, queue_offset=0, count=10, group=GROUP)
            found = await document(peer, code, header)
            assert found.keys() == official.keys()
            assert shape(found["queueData"]) == shape(official["queueData"])
            assert found["subscriptionData"].keys() == official["subscriptionData"].keys()
            assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
            size = server.store.written_position // 3
            assert [(u["physicOffset"], u["physicSize"], u["tagsCode"]) for u in found["queueData"]] == [
                (0, size, 65),
                (size, size, 66),
                (2 * size, size, 65),
            ]
            await beat(peer, client_id="other", group="Tagged", topics={TOPIC: "A"}, version=2)
            header = QueueUnitsHeader(topic=TOPIC, queue_id=0, queue_offset=1, count=1, group="Tagged")
            found = await document(peer, code, header)
            assert [(u["tagsCode"], u["eval"]) for u in found["queueData"]] == [(66, False)]
            header = QueueUnitsHeader(topic=TOPIC, queue_id=0, queue_offset=2, count=5, group="Tagged")
            assert (await document(peer, code, header))["queueData"][0]["eval"] is True
            header = QueueUnitsHeader(topic=TOPIC, queue_id=0, queue_offset=0, count=1, group="Offline")
            assert (await document(peer, code, header))["filterData"] == f"Offline@{TOPIC} is not online!"
            for queue_id, offset, remark in (
                (9, 0, f"9@{TOPIC} is not exist!"),
                (0, 3, f"Index 3 of 0@{TOPIC} is not"),
            ):
                reply = await peer.request(
                    code, QueueUnitsHeader(topic=TOPIC, queue_id=queue_id, queue_offset=offset, count=1)
                )
                assert reply.code == 1
                assert remark in (reply.remark or "")

    run(main())


@pytest.mark.shows(
    "mended: offsets stayed where queues of topics that are gone were cleaned: one made anew began behind as "
    "many messages"
)
def test_cleaning_takes_only_what_no_topic_owns(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            await sent(peer, b"x", pairs={"DELAY": "5"})
            # As a store has it whose topics.json lacks a topic.
            await create(peer, "Orphan")
            await sent(peer, b"x", "Orphan")
            for topic in (TOPIC, "Orphan"):
                server._offsets.commit("G", topic, 0, 1)
            del server._topics.table["Orphan"]
            for code in (306, 329):
                assert (await ask(peer, code)).body == b""
            assert sorted(server.store.queues()) == ["Orphan", "SCHEDULE_TOPIC_XXXX", TOPIC]
            await ask(peer, RequestCode.CLEAN_UNUSED_TOPIC)
            assert sorted(server.store.queues()) == ["SCHEDULE_TOPIC_XXXX", TOPIC]
            assert len(await pulled(peer)) == 1
            assert not (tmp_path / "consumequeue" / "Orphan").exists()
            # Else a topic of its name that is made anew would begin behind as many messages.
            assert server._offsets.table == {f"{TOPIC}@G": {0: 1}}

    run(main())


def test_a_half_message_that_was_given_up_is_checked_again(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"transaction_timeout_ms": 1, "transaction_check_interval_ms": 20, "transaction_checks_max": 1}
        async with broker(tmp_path, **limits) as server, connected(server.address) as peer:
            await create(peer)
            await beat(peer, group=None, producer="P")
            half = send_header(TOPIC, 0, sys_flag=4, pairs={"PGROUP": "P", "TRAN_MSG": "true"})
            await peer.request(310, half, b"half")
            await until(lambda: server._transactions.open_count == 0)
            ((position, _, _),) = server.store.queue_units("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0, 1)
            message_id = f"{server.store.store_host.hex()}{position:016x}"
            (await update(peer, "transactionCheckInterval=3600000")).raise_for_code("update")
            await ask(
                peer, RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(topic=TOPIC, message_id=message_id)
            )
            assert server._transactions.open_count == 1
            high = server.store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0)[1]
            ((position, _, _),) = server.store.queue_units("RMQ_SYS_TRANS_HALF_TOPIC", 0, high - 1, 1)
            end = EndTransactionHeader(
                producer_group="P",
                half_offset=high - 1,
                physical_offset=position,
                outcome=8,
                message_id="",
                transaction_id="",
            )
            await ask(peer, RequestCode.END_TRANSACTION, end)
            assert [m.body for m in await pulled(peer)] == [b"half"]
            # Ended now: not to be opened again by its own id.
            again = f"{server.store.store_host.hex()}{position:016x}"
            reply = await peer.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(message_id=again))
            assert reply.code == 1
            reply = await peer.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(message_id="zz"))
            assert reply.code == ResponseCode.INVALID_PARAMETER

    run(main())


def test_a_deleted_topic_has_no_statistics(tmp_path: Path) -> None:
    from rocketspark.protocol.headers import TopicHeader

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            server._stats.tick(server._stats.started_ms)
            assert server._stats.item("TOPIC_PUT_NUMS", TOPIC) is not None
            await ask(peer, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))
            assert server._stats.item("TOPIC_PUT_NUMS", TOPIC) is None

    run(main())


# -- NameServer --------------------------------------------------------------------------------------------------------


@pytest.mark.shows("the NameServer's requests and settings")
def test_settings_of_a_name_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server(kv_path=tmp_path / "kv.json") as server, connected(server.address) as peer:
            reply = await ask(peer, RequestCode.GET_NAMESRV_CONFIG)
            shown = parse_properties(reply.body.decode(), "the reply")
            official = next(
                f for f in frames() if f.scenario == "admin_namesrv_config" and f.is_reply and f.request_code == 319
            )
            wanted = parse_properties(official.body.decode(), "the capture")
            assert shown.keys() == wanted.keys()
            ours = {
                "bindAddress": "127.0.0.1",
                "configStorePath": "",
                "kvConfigPath": str(tmp_path / "kv.json"),
                "listenPort": server.address.rpartition(":")[2],
                "rocketmqHome": "",
            }
            assert shown == wanted | ours
            code = RequestCode.UPDATE_NAMESRV_CONFIG
            await ask(peer, code, None, b"orderMessageEnable=true\nserverWorkerThreads=4\nnoSuchKey=1\n")
            reply = await ask(peer, RequestCode.GET_NAMESRV_CONFIG)
            changed = {"orderMessageEnable": "true", "serverWorkerThreads": "4"}
            assert parse_properties(reply.body.decode(), "the reply") == shown | changed
            for text, expected in (
                (b"kvConfigPath=/x", ResponseCode.NO_PERMISSION),
                (b"listenPort=1", ResponseCode.INVALID_PARAMETER),
                (b"orderMessageEnable=perhaps", ResponseCode.INVALID_PARAMETER),
                (b"scanNotActiveBrokerInterval=0", ResponseCode.INVALID_PARAMETER),
            ):
                reply = await peer.request(code, None, b"serverWorkerThreads=5\n" + text)
                assert reply.code == expected, text
            reply = await ask(peer, RequestCode.GET_NAMESRV_CONFIG)
            assert parse_properties(reply.body.decode(), "the reply") == shown | changed

    run(main())


@pytest.mark.shows("order topics on the NameServer")
def test_order_settings_are_given_once_they_are_switched_on(tmp_path: Path) -> None:
    from rocketspark.protocol.headers import KvHeader

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as names_peer,
        ):
            await create(peer)
            put = KvHeader(namespace="ORDER_TOPIC_CONFIG", key=TOPIC, value="broker-a:4")
            await ask(names_peer, RequestCode.PUT_KV_CONFIG, put)
            code, header = RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=TOPIC)
            assert "orderTopicConf" not in await document(names_peer, code, header)
            await ask(names_peer, RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")
            assert (await document(names_peer, code, header))["orderTopicConf"] == "broker-a:4"

    run(main())


def test_topics_by_unit(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as names_peer,
        ):
            for topic, flag in (("Unit", 1), ("Subscribed", 2), ("Both", 3), ("Plain", 0)):
                await create(peer, topic, topic_sys_flag=flag)
            found = [(await document(names_peer, code))["topicList"] for code in (311, 312, 313)]
            assert [sorted(topics) for topics in found] == [["Both", "Unit"], ["Both", "Subscribed"], ["Subscribed"]]

    run(main())


@pytest.mark.shows("mended: createTopic's sysFlag")
def test_the_flag_of_a_topic_is_kept_and_told(tmp_path: Path) -> None:
    async def flags(server: Any, peer: Peer) -> tuple[int, int]:
        reply = await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        told = java_json.decode(reply.raise_for_code("topics").body, bodies.TopicConfigTable).topic_config_table
        registered = server._topics.wrapper().topic_config_table
        return told[TOPIC].topic_sys_flag, registered[TOPIC].topic_sys_flag

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, topic_sys_flag=3)
            assert await flags(server, peer) == (3, 3)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await flags(server, peer) == (3, 3)
            await create(peer)
            assert await flags(server, peer) == (0, 0)

    run(main())
