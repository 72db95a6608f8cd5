"""Access control 2.0: no detour to another's messages, by retry topics, by places in the log, by half messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.support import run, send_header
from tests.live.test_access import as_admin, codes_of, now_ms, row, signed_send, started, user
from tests.support.access_rows import play

from rocketspark.access.authorization import KEPT_CHARACTERS_MAX, Authorization
from rocketspark.access.request_contexts import Context
from rocketspark.broker.server import BrokerServer
from rocketspark.client.connection import admin_api
from rocketspark.protocol.headers import SendReply, to_ext
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from rocketspark.protocol.message import batch, record
from rocketspark.protocol.message.message_ids import offset_message_id
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "no way round the gate, changes at once, the file, slaves, what RocketMQ forgets",
    "sends of clients to the revive topic",
    "the table of requests is complete in fields",
)

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
PULL = {
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


async def stored(admin: Peer, server: BrokerServer, topic: str, body: bytes = b"x", **more: str) -> int:
    """Send as administrator; return where the record lies."""
    position = server.store.written_position
    header = to_ext(send_header(topic)) | more
    (await admin.request(310, header, body)).raise_for_code("send").header(SendReply)
    return position


def retries_of_others() -> list[tuple[int, dict[str, str], str]]:
    """Return requests of group `g` that read the retry topic of group `other`."""
    theirs = {"topic": "%RETRY%other", "consumerGroup": "g"}
    subscription = '{"topic":"%RETRY%other","subString":"*","subVersion":1}'
    consumer = f'{{"groupName":"g","subscriptionDataSet":[{subscription}]}}'
    queue = '{"topic":"%RETRY%other","brokerName":"broker-a","queueId":0}'
    return [
        (11, theirs | PULL, ""),
        (361, theirs | PULL, ""),
        (14, theirs | {"queueId": "0"}, ""),
        (15, theirs | {"queueId": "0", "commitOffset": "0"}, ""),
        (34, {"x": "y"}, f'{{"clientID":"c","consumerDataSet":[{consumer}]}}'),
        (41, {"x": "y"}, f'{{"consumerGroup":"g","clientId":"c","mqSet":[{queue}]}}'),
        (46, {"x": "y"}, f'{{"group":"g","subscriptionData":{subscription}}}'),
    ]


@pytest.mark.parametrize("complete", ["true", "false"])
def test_who_reads_for_one_group_reads_no_retries_of_another(tmp_path: Path, complete: str) -> None:
    async def main() -> None:
        async with started(tmp_path, authorizationCompleteEnable=complete) as server, as_admin(server.address) as admin:
            await user(admin, "alice", ("Group:g", ["Sub"]))
            await stored(admin, server, "%RETRY%other")
            asked = retries_of_others()
            found = await play(server.address, [row("alice", code, ext, body) for code, ext, body in asked])
            refused = {r.code: r.remark for r in found if r.answer == 16}
            if complete == "false":
                assert refused == {}
                return
            text = "User:alice has no permission to access Group:other from 127.0.0.1, no matched policies."
            assert refused == {code: text for code, _, _ in asked}
            own = [
                row("alice", code, {k: v.replace("other", "g") for k, v in ext.items()}, body.replace("other", "g"))
                for code, ext, body in asked
            ]
            assert [r.code for r in await play(server.address, own) if r.answer == 16] == []

    run(main())


def by_place(position: int, body: str = "") -> list[tuple[int, dict[str, str]]]:
    """Return requests of who may do everything with topic `mine` and group `g`, about any message."""
    end = {"producerGroup": "GID_P", "tranStateTableOffset": "0", "commitLogOffset": str(position)}
    return [
        (33, {"topic": "mine", "offset": str(position)}),
        (36, {"group": "g", "offset": str(position), "delayLevel": "-1", "originTopic": "mine"}),
        (37, end | {"commitOrRollback": "12"}),
        (37, end | {"commitOrRollback": "12", "topic": "mine"}),
        (323, {"topic": "mine", "msgId": offset_message_id(HOST, position)}),
        (323, {"msgId": offset_message_id(HOST, position)}),
        (309, {"consumerGroup": "g", "clientId": "c", "topic": "mine", "msgId": offset_message_id(HOST, position)}),
    ]


def fake(position: int, size: int) -> bytes:
    """Return the beginning of a record of `mine` whose properties are what follows, to its size."""
    whole = record.encode(
        topic=b"mine", queue_id=0, queue_offset=0, position=position, body=b"", properties=b"p" * size
    )
    return whole[: -size or None]


def test_a_place_in_the_log_is_no_way_to_the_messages_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as server, as_admin(server.address) as admin:
            await user(admin, "alice", ("Topic:mine", ["All"]), ("Group:g", ["All"]))
            theirs = await stored(admin, server, "secret")
            half = await stored(
                admin, server, "secret", i="TRAN_MSG\x01true\x02PGROUP\x01GID_P\x02UNIQ_KEY\x01u\x02", f="4"
            )
            asked = [row("alice", code, ext) for code, ext in by_place(theirs)]
            found = await play(server.address, asked)
            text = "User:alice has no permission to access Topic:secret from 127.0.0.1, no matched policies."
            assert [(r.code, r.answer, r.remark) for r in found] == [(r.code, 16, text) for r in asked]
            ends = await play(server.address, [row("alice", c, ext) for c, ext in by_place(half) if c == 37])
            assert [(r.answer, r.remark) for r in ends] == [(16, text)] * 2
            mine = await stored(admin, server, "mine")
            view, back, *_ = await play(server.address, [row("alice", code, ext) for code, ext in by_place(mine)])
            assert (view.answer, back.answer) == (0, 0)
            # What looks like a record of his, within a body, and reaches over what is stored behind it.
            head = record.decode(server.store.record_at(mine) or b"")
            before = len(server.store.record_at(mine) or b"") - len(head.body) - len(head.properties) - len("mine") - 3
            at = server.store.written_position + before
            assert await stored(admin, server, "mine", fake(at, 300)) + before == at
            await stored(admin, server, "secret", b"s" * 400)
            assert server.store.record_at(at) is not None
            (view,) = await play(server.address, [row("alice", *by_place(at)[0])])
            assert (view.answer, view.remark) == (16, "parse authorization context error.")

    run(main())


def test_topics_where_messages_of_others_wait_need_the_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as server, as_admin(server.address) as admin:
            await user(admin, "alice", ("Topic:*", ["All"]), ("Group:g", ["All"]))
            await user(admin, "boss", ("*", ["All"]))
            parked = f"TIMER_DELIVER_MS\x01{now_ms() + 3_600_000}\x02UNIQ_KEY\x01u\x02"
            place = {"topic": "mine", "offset": str(await stored(admin, server, "secret", i=parked))}
            forged = "REAL_TOPIC\x01secret\x02REAL_QID\x010\x02TIMER_OUT_MS\x011\x02"
            revive = "rmq_sys_REVIVE_LOG_DefaultCluster"
            waiting = ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", revive)
            pulls = [(11, {"topic": topic, "consumerGroup": "g"} | PULL) for topic in waiting]
            sends = [(310, to_ext(send_header(topic)) | {"i": forged}) for topic in ("rmq_sys_wheel_timer", revive)]
            asked = [*pulls, *sends, (33, place)]
            found = await play(server.address, [row("alice", code, ext, "x") for code, ext in asked])
            text = "User:alice has no permission to access Cluster:DefaultCluster from 127.0.0.1, no matched policies."
            assert [(r.answer, r.remark) for r in found] == [(16, text)] * len(asked)
            found = await play(server.address, [row("boss", code, ext) for code, ext in (*pulls, (33, place))])
            assert 16 not in {r.answer for r in found}
            (figures,) = await play(server.address, [row("alice", 202, {"topic": waiting[0]})])
            assert figures.answer != 16

    run(main())


LITE, LIGHT_ON = "%LMQ%$secret$x", {"enableLmq": "true", "enableMultiDispatch": "true"}


def test_a_lite_topic_is_sent_to_and_read_with_the_right_on_its_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, **LIGHT_ON) as server, as_admin(server.address) as admin:
            await user(admin, "alice", ("Topic:mine", ["Pub"]))
            await user(admin, "carol", ("Topic:*", ["All"]), ("Group:g", ["All"]), but=["Topic:secret"])
            await user(admin, "dave", ("Topic:secret", ["Sub"]), ("Group:g", ["Sub"]))
            await stored(admin, server, "secret", i=f"INNER_MULTI_DISPATCH\x01{LITE}\x02")
            assert server.store.queue_range(LITE, 0) == (0, 1)
            forged = f"INNER_MULTI_DISPATCH\x01%LMQ%$mine$x,{LITE}\x02"
            item = batch.encode_item(0, b"x", forged.encode()).decode()
            sends = [
                (310, {"i": forged}, "x"),
                (320, {"m": "true"}, item),
                (310, {"i": f"{forged}DELAY\x011\x02"}, "x"),
                # No lite topic, but below the topic, as groups that read all its lite topics find them.
                (310, {"i": "INNER_MULTI_DISPATCH\x01%LMQ%$secret$$x\x02"}, "x"),
            ]
            asked = [row("alice", code, to_ext(send_header("mine")) | more, body) for code, more, body in sends]
            assert [r.answer for r in await play(server.address, asked)] == [13] * 4
            assert server.store.queue_range(LITE, 0) == (0, 1)
            place = {"topic": LITE, "consumerGroup": "g", "queueId": "0", "commitOffset": "0", "timestamp": "0"}
            reads = [(code, PULL | place) for code in (11, 361, 14, 15, 29, 30, 31)]
            found = await play(server.address, [row("carol", code, ext) for code, ext in reads])
            text = "User:carol has no permission to access Topic:secret from 127.0.0.1, the decision is deny."
            assert [(r.answer, r.remark) for r in found] == [(16, text)] * len(reads)
            (own,) = await play(server.address, [row("dave", *reads[0])])
            assert own.answer == 0

    run(main())


def test_long_names_are_not_kept() -> None:
    asked = Authorization(None, None, kept_max=10)
    for length in (KEPT_CHARACTERS_MAX - 1, KEPT_CHARACTERS_MAX, 1 << 20):
        asked.verdict("u", Context("Topic", "t" * length, ("Pub",)), "127.0.0.1")
    assert [len(context.name) for _, context, _ in asked._kept] == [KEPT_CHARACTERS_MAX - 1]


def test_a_broker_says_that_its_own_password_is_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        for secret, told in (("secret-of-inner", 0), ("lost", 1)):
            credentials = f'{{"accessKey":"inner","secretKey":"{secret}"}}'
            async with started(tmp_path, innerClientAuthenticationCredentials=credentials):
                found = [r.getMessage() for r in caplog.records if "user inner has another password" in r.getMessage()]
                assert len(found) == told
                assert "lost" not in "".join(found)

    run(main())


# The binary form: a header for a client of IPv4, or for the proxy itself (LOCAL), with a field behind the addresses.
BINARY = "0d0a0d0a000d0a515549540a%s110013%s7f00000104d2005004000464617461"


@pytest.mark.shows("rules for some addresses see the client that a trusted proxy names")
@pytest.mark.parametrize(
    ("header", "may"),
    [
        (b"", False),
        (b"PROXY TCP4 10.1.2.3 127.0.0.1 1234 80\r\n", True),
        (b"PROXY TCP6 ::ffff:10.1.2.3 ::1 1234 80\r\n", True),
        (b"PROXY TCP4 11.1.2.3 127.0.0.1 1234 80\r\n", False),
        (b"PROXY UNKNOWN 10.1.2.3 127.0.0.1 1234 80\r\n", False),
        (bytes.fromhex(BINARY % ("21", "0a010203")), True),
        (bytes.fromhex(BINARY % ("21", "0b010203")), False),
        (bytes.fromhex(BINARY % ("20", "0a010203")), False),
    ],
)
def test_rules_for_some_addresses_behind_a_proxy(tmp_path: Path, header: bytes, *, may: bool) -> None:
    async def main() -> None:
        async with started(tmp_path, proxyProtocolNetworks="127.0.0.1") as server, as_admin(server.address) as admin:
            await user(admin, "alice")
            entry = PolicyEntryInfo(resource="Topic:mine", actions=["Pub"], source_ips=["10.0.0.0/8"], decision="Allow")
            rules = AclInfo(subject="User:alice", policies=[PolicyInfo(policy_type="Custom", entries=[entry])])
            await admin_api.create_acl(admin, rules)
            found = await codes_of(server.address, header + signed_send("alice", "mine", 1), 1)
            assert found == {1: 0 if may else 16}

    run(main())
