"""Access control 2.0 on ours: no way around the gate, what RocketMQ forgets, changes at once, slaves, NameServers."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import pop
from tests.live.support import (
    GROUP,
    TOPIC,
    connected,
    create,
    create_group,
    name_server,
    pull,
    run,
    send_header,
    sent,
    until,
)
from tests.live.test_access_decisions import guarded
from tests.support.access_rows import ADMIN, AUTH, SECRET, Row, frame, play
from tests.support.ports import free_ports

from rocketspark.access.request_contexts import CHECKED, FORGOTTEN
from rocketspark.access.write_gate import READS
from rocketspark.broker.handlers import send_fast_path
from rocketspark.broker.handlers.send_message import SendHandler
from rocketspark.broker.replication.role import ON_SLAVE
from rocketspark.broker.server import BrokerServer
from rocketspark.client.connection import admin_api
from rocketspark.client.connection.credentials import Signer
from rocketspark.errors import ServerError
from rocketspark.namesrv.server import NameServer
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol import request_signing
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import to_ext
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import request
from rocketspark.transport.request_signer import RequestSigner

pytestmark = pytest.mark.shows("no way round the gate, changes at once, the file, slaves, what RocketMQ forgets")

STATEFUL = f"{AUTH}.authentication.strategy.StatefulAuthenticationStrategy"
NOT_SIGNED = "username cannot be null."


@asynccontextmanager
async def started(root: Path, **more: str) -> AsyncIterator[BrokerServer]:
    server = guarded(root, **more)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def user(admin: Peer, name: str, *rules: tuple[str, list[str]], but: Sequence[str] = ()) -> None:
    """Create a user whose secret is known to `frame`, and what he may do; `but`: what he is denied."""
    await admin_api.create_user(admin, UserInfo(username=name, password=f"secret-of-{name}"))
    entries = [PolicyEntryInfo(resource=resource, actions=actions, decision="Allow") for resource, actions in rules]
    entries += [PolicyEntryInfo(resource=resource, actions=["All"], decision="Deny") for resource in but]
    if entries:
        policies = [PolicyInfo(policy_type="Custom", entries=entries)]
        await admin_api.create_acl(admin, AclInfo(subject=f"User:{name}", policies=policies))


def as_admin(address: str) -> Any:
    return connected(address, hooks=Signer(ADMIN, SECRET))


def row(who: str, code: int, ext: dict[str, str] | None = None, body: str = "", sign: str = "right") -> Row:
    return Row(who, sign if who else "", 1, "json", 513, code, ext or {}, body)


def signed_send(who: str, topic: str, opaque: int, *, flag: int = 0, secret: str = "") -> bytes:
    ext = to_ext(send_header(topic))
    if who:
        request_signing.sign(ext, b"x", who, (secret or f"secret-of-{who}").encode())
    return request(RequestCode.SEND_MESSAGE_V2, ext, b"x", opaque=opaque, flag=flag, language="JAVA")


async def codes_of(address: str, data: bytes, count: int, *, first: tuple[bytes, int] = (b"", 0)) -> dict[int, int]:
    """Send bytes in one write; return the codes of so many replies, by opaque. `first`: what is sent and answered
    before, on the same connection.
    """
    reader, writer = await asyncio.open_connection(*address.split(":"))
    found: dict[int, int] = {}
    try:
        for sent, expected in (first, (data, first[1] + count)):
            writer.write(sent)
            while len(found) < expected:
                (total,) = struct.unpack(">I", await reader.readexactly(4))
                header = (await reader.readexactly(total))[4:]
                opaque = int(header.split(b'"opaque":')[1].split(b",")[0])
                found[opaque] = int(header.split(b'"code":')[1].split(b",")[0])
    finally:
        writer.close()
    return found


def test_every_code_that_the_broker_serves_says_what_it_needs(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as server:
            served = set(server._server._routes.table)
            assert served - CHECKED.keys() - FORGOTTEN.keys() == set()
            # Only one is in both: RocketMQ checks it by halves.
            assert CHECKED.keys() & FORGOTTEN.keys() == {RequestCode.VIEW_MESSAGE_BY_ID}
        served = set(NameServer()._server._routes.table)
        assert served > READS

    run(main())


def test_nobody_without_a_name_gets_any_code_and_nobody_gets_round_by_the_way_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        port = str(free_ports(0, -2))
        async with (
            started(tmp_path, authenticationWhitelist="", listenPort=port) as server,
            as_admin(server.address) as admin,
        ):
            await admin.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            # What is refused by its size is so too where it is looked at first.
            many = await admin.request(RequestCode.LOCK_BATCH_MQ, None, b"[" + b"1," * (1 << 18) + b"1]")
            assert (many.code, "are taken in one request" in (many.remark or "")) == (16, True)
            asked = [row("", code) for code in sorted(server._server._routes.table)]
            assert {(r.answer, r.remark) for r in await play(server.address, asked)} == {(16, NOT_SIGNED)}
            vip = [Row("", "", 1, form, 513, 310, {"b": "T"}, "") for form in ("json", "binary")]
            assert {r.answer for r in await play(f"127.0.0.1:{int(port) - 2}", vip)} == {16}
            (unknown,) = await play(server.address, [row("", 9_999)])
            assert unknown.answer == 3
            # Plain sends of one read go the quick way.
            await user(admin, "alice", ("Topic:T", ["Pub"]))
            data = b"".join(
                signed_send("alice" if n % 3 else "", "T" if n % 5 else "U", n, secret="wrong" if n % 7 == 0 else "")
                for n in range(1, 301)
            )
            found = await codes_of(server.address, data, 300)
            assert {n: code == 0 for n, code in found.items()} == {
                n: bool(n % 3 and n % 5 and n % 7) for n in range(1, 301)
            }
            # Nothing is said of one-way requests that are refused, and nothing is stored of them.
            before = server.store.written_position
            size = server.store.record_at(0)
            assert size is not None
            oneway = b"".join(signed_send(who, "T", n, flag=2) for n, who in enumerate(["", "bob", ""] * 50))
            assert await codes_of(server.address, oneway + signed_send("alice", "T", 999), 1) == {999: 0}
            assert server.store.written_position == before + len(size)

    run(main())


@pytest.mark.shows(
    "signed sends take the quick way; a bad, old or missing signature, a changed user or rule is refused at once"
)
@pytest.mark.parametrize("strategy", ["", STATEFUL])
def test_signed_sends_of_one_read_go_the_quick_way_and_each_bad_one_is_refused(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with an id, keys, a time and a signature of its own; the bad ones differ in one byte of what is signed."""
    slow: list[str] = []
    whole = SendHandler.send

    def counted(handler: SendHandler, peer: Peer, each: Any, body: bytes) -> Any:
        slow.append(each.ext.properties)
        return whole(handler, peer, each, body)

    def made(n: int, spoil: str = "") -> bytes:
        header = send_header("T", n % 4, pairs={"UNIQ_KEY": f"{n:032X}", "KEYS": f"k{n:05}"}, born_time_ms=10**12 + n)
        ext, body = to_ext(header), b"body %d" % n
        if n % 2:
            ext["SignedTime"] = str(time.time_ns() // 1_000_000 - (10**9 if spoil == "age" else 0))
        request_signing.sign(ext, body, "alice", b"secret-of-alice")
        if spoil == "body":
            body = body.replace(b"b", b"B")
        elif spoil == "key":
            ext["i"] = ext["i"].replace("\x01k", "\x01K")
        elif spoil == "queue":
            ext["e"] = str((n + 1) % 4)
        elif spoil == "signature":
            ext["Signature"] = ext["Signature"].swapcase()
        elif spoil == "unsigned":
            del ext["Signature"]
        return request(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=n, language="JAVA")

    spoils = ("", "", "", "body", "", "key", "", "", "queue", "signature", "", "age", "unsigned")
    asked = {n: spoils[n % len(spoils)] for n in range(1001, 1391)}
    bad = {n for n, spoil in asked.items() if spoil and (spoil != "age" or n % 2)}

    monkeypatch.setattr(SendHandler, "send", counted)

    async def main() -> None:
        more = {"authenticationStrategy": strategy} if strategy else {}
        async with (
            started(tmp_path, **more, signatureAgeMinutesMax="10") as server,
            as_admin(server.address) as admin,
        ):
            await user(admin, "alice", ("Topic:T", ["Pub"]))
            # The gate is asked about the first of each shape, and about what is read before it answered.
            first = b"".join(made(n) for n in range(2001, 2017)), 16
            good = b"".join(made(n) for n in range(2017, 2401))
            assert set((await codes_of(server.address, good, 384, first=first)).values()) == {0}
            assert 0 < len(slow) < 24
            found = await codes_of(server.address, b"".join(made(n, spoil) for n, spoil in asked.items()), len(asked))
            # A signature that counts for its connection is the first one's.
            assert {n for n, code in found.items() if code == 16} == (set() if strategy else bad)
            assert {n for n, code in found.items() if code == 0} == asked.keys() - (set() if strategy else bad)

    run(main())


FORGOTTEN_ROWS = [
    (25, {}, "brokerPermission=6", "Cluster:DefaultCluster"),
    (200, {}, '{"groupName":"g9"}', "Group:g9"),
    (225, {}, '{"groupConfigList":[{"groupName":"g8"}]}', "Group:g8"),
    (18, {}, '{"topicConfigList":[{"topicName":"t9"}]}', "Topic:t9"),
    (401, {}, '{"topic":"t9","consumerGroup":"g9","mode":"PULL"}', "Group:g9"),
    (361, {"topic": "t9", "consumerGroup": "g9"}, "", "Topic:t9"),
    (46, {}, '{"group":"g9","subscriptionData":{"topic":"t9","subString":"*","subVersion":1}}', "Group:g9"),
    (325, {"b": "t9"}, "", "Topic:t9"),
    (21, {}, "", "Topic:*"),
    (201, {}, "", "Group:*"),
    (26, {}, "", "Cluster:DefaultCluster"),
    (28, {}, "", "Cluster:DefaultCluster"),
    (33, {"offset": "0"}, "", "Cluster:DefaultCluster"),
    (43, {}, "", "Cluster:DefaultCluster"),
    (200070, {"topic": "t9", "consumerGroup": "g9"}, "", "Group:g9"),
    (200071, {}, '{"subscriptionSet":[{"group":"g9","topic":"t9"}]}', "Group:g9"),
    (200074, {}, "", "Cluster:DefaultCluster"),
    (200075, {"topic": "t9"}, "", "Topic:t9"),
    (200076, {"parentTopic": "t9"}, "", "Topic:t9"),
    (200077, {"parentTopic": "t9", "group": "g9"}, "", "Topic:t9"),
    (200078, {"group": "g9"}, "", "Group:g9"),
    (200079, {"group": "g9"}, "", "Group:g9"),
    (7310001, {}, "", "Cluster:DefaultCluster"),
    (7310004, {}, "", "Cluster:DefaultCluster"),
]


@pytest.mark.parametrize("complete", ["true", "false"])
def test_what_rocketmq_forgets_is_checked_unless_it_is_switched_off(tmp_path: Path, complete: str) -> None:
    async def main() -> None:
        async with started(tmp_path, authorizationCompleteEnable=complete) as server:
            async with as_admin(server.address) as admin:
                await user(admin, "alice", ("Topic:other", ["All"]))
            asked = [row("alice", code, ext, body) for code, ext, body, _ in FORGOTTEN_ROWS]
            found = await play(server.address, asked)
            if complete == "false":
                assert [r for r in found if r.answer == 16] == []
                return
            text = "User:alice has no permission to access {} from 127.0.0.1, no matched policies."
            assert [(r.code, r.remark) for r in found] == [
                (code, text.format(resource)) for code, _, _, resource in FORGOTTEN_ROWS
            ]

    run(main())


@pytest.mark.parametrize("strategy", ["", STATEFUL])
def test_a_change_holds_from_the_next_request_on(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        async with started(tmp_path, authenticationStrategy=strategy) as server, as_admin(server.address) as admin:
            await user(admin, "alice", ("Topic:T", ["Pub"]))
            async with (
                connected(server.address, hooks=Signer("alice", "secret-of-alice")) as peer,
                connected(server.address, hooks=Signer("alice", "wrong")) as liar,
            ):

                async def sent(by: Peer = peer) -> str | None:
                    return (await by.request(310, to_ext(send_header("T")), b"x")).remark

                assert [await sent(liar), await sent(), await sent(liar)] == [
                    "check signature failed.",
                    None,
                    "check signature failed.",
                ]
                ext = to_ext(send_header("T")) | {"AccessKey": "alice", "Signature": "none"}
                peer.hooks = None
                unsigned = (await peer.request(310, ext, b"x")).remark
                assert unsigned == (None if strategy else "check signature failed.")
                await admin_api.update_user(admin, UserInfo(username="alice", user_status="disable"))
                assert (await peer.request(310, ext, b"x")).remark == "User:alice is disabled."
                await admin_api.update_user(admin, UserInfo(username="alice", user_status="enable", password="new"))
                assert (await peer.request(310, ext, b"x")).remark == "check signature failed."
                peer.hooks = Signer("alice", "new")
                assert await sent() is None
                await admin_api.delete_acl(admin, "User:alice")
                assert "no matched policies" in (await sent() or "")
                await admin_api.delete_user(admin, "alice")
                assert await sent() == "User:alice is not found."

    run(main())


def test_what_waits_ends_when_its_user_loses_a_right(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as server, as_admin(server.address) as admin:
            await create(admin, queues=1)
            await create_group(admin)
            rules = (f"Topic:{TOPIC}", ["Sub"]), (f"Group:{GROUP}", ["Sub"])
            await user(admin, "alice", *rules)
            async with connected(server.address, hooks=Signer("alice", "secret-of-alice")) as peer:
                pulls = asyncio.ensure_future(pull(peer, sys_flag=6, suspend_ms=600_000))
                pops = asyncio.ensure_future(pop(peer, poll_time_ms=60_000))
                await until(lambda: server._long_polling.waiting and server._pop_state.waiting._owned)
                # What gives somebody more ends nothing.
                await user(admin, "bob", *rules)
                assert (pulls.done(), pops.done()) == (False, False)
                await admin_api.update_user(admin, UserInfo(username="alice", user_status="disable"))
                await sent(admin, b"not for alice")
                assert [(await pulls).body, (await pops).body] == [b"", b""]
                assert (await pull(peer)).remark == "User:alice is disabled."

    run(main())


def test_a_switch_without_tables_refuses_everybody(tmp_path: Path) -> None:
    none = {"authenticationMetadataProvider": "", "initAuthenticationUser": "", "authorizationMetadataProvider": ""}
    none |= {"innerClientAuthenticationCredentials": ""}

    async def main() -> None:
        async with started(tmp_path / "a", **none) as server:
            (found,) = await play(server.address, [row(ADMIN, 28)])
            text = "The authenticationMetadataProvider is not configured"
            assert (found.answer, found.remark) == (16, text)
        off = {"authenticationEnabled": "false", "authorizationEnabled": "false"}
        async with started(tmp_path / "b", **none, **off) as server:
            assert server._server._routes.gate is None
            asked = [row("", 3005), row("", 3001, {"username": "a"}, '{"password":"p"}'), row("", 3010)]
            found_all = await play(server.address, asked)
            text = "An system error occurred, please try again later."
            assert [(r.answer, r.remark) for r in found_all] == [(1, text)] * 3
        # Who asks for signatures alone needs users, and no rules.
        alone = {"authorizationEnabled": "false", "authorizationMetadataProvider": ""}
        async with started(tmp_path / "c", **alone) as server:
            assert [r.answer for r in await play(server.address, [row(ADMIN, 28), row("", 28)])] == [0, 16]

    run(main())


def test_users_live_on_and_a_slave_has_its_masters(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path / "m") as master, as_admin(master.address) as admin:
            await user(admin, "alice", ("Topic:T", ["Pub"]))
        more = {"brokerRole": "SLAVE", "brokerId": "1"}
        async with (
            started(tmp_path / "m") as master,
            started(tmp_path / "s", **more) as slave,
            as_admin(master.address) as admin,
            as_admin(slave.address) as there,
        ):
            assert master.access.tables.users["alice"].password == "secret-of-alice"
            slave.replication.synchronize.set_master(master.address)
            await slave.replication.synchronize.passed()
            assert "users" not in slave.replication.synchronize.failing
            mine, others = slave.access.tables, master.access.tables
            assert (mine.users, mine.acls) == (others.users, others.acls)
            await admin_api.delete_user(admin, "alice")
            slave.replication.synchronize.look()
            await until(lambda: "alice" not in mine.users and not mine.acls)
            with pytest.raises(ServerError) as refused:
                await admin_api.create_user(there, UserInfo(username="bob", password="p"))
            assert (refused.value.code, refused.value.remark) == (1, ON_SLAVE)
            assert [u.username for u in await admin_api.list_users(there)] == ["admin", "inner"]

    run(main())


@pytest.mark.shows("NameServers that ask who writes; signatures that tell their time")
def test_a_name_server_asks_who_writes_if_it_is_told_to() -> None:
    writes = [100, 102, 103, 104, 205, 216, 217, 318, 322, 327, 904, 7310008]
    settings = Settings(port=0)
    settings.take(
        {
            "listenPort": "0",
            "signedWritesEnable": "true",
            "writeCredentials": '[{"accessKey":"admin","secretKey":"secret-of-admin"}]',
            "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"secret-of-inner"}',
            "signatureAgeMinutesMax": "10",
        }
    )
    assert "secret-of" not in settings.document() + repr(settings.gate)

    async def main() -> None:
        async with name_server(settings=settings) as server:
            assert set(server._server._routes.table) == {*writes, *map(int, READS)}
            for who, sign, remark in (
                ("", "", NOT_SIGNED),
                ("eve", "right", "User:eve is not found."),
                ("admin", "wrong", "check signature failed."),
            ):
                found = await play(server.address, [row(who, code, {"x": "y"}, sign=sign) for code in writes])
                assert {(r.answer, r.remark) for r in found} == {(16, remark)}, who
                found = await play(server.address, [row(who, int(code), {"x": "y"}, sign=sign) for code in READS])
                assert 16 not in {r.answer for r in found}
            put = {"namespace": "n", "key": "k", "value": "v"}
            minute = 60_000
            for age_minutes, answer in ((0, 0), (9, 0), (11, 16), (-4, 0), (-6, 16)):
                at = str(now_ms() - age_minutes * minute)
                (found_one,) = await play(server.address, [row("admin", 100, put | {"SignedTime": at})])
                assert (age_minutes, found_one.answer) == (age_minutes, answer)
            async with connected(server.address, hooks=RequestSigner("inner", "secret-of-inner")) as broker:
                (await broker.request(RequestCode.PUT_KV_CONFIG, put)).raise_for_code("put")

    run(main())


def now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def test_brokers_of_ours_register_where_writes_are_signed(tmp_path: Path) -> None:
    settings = Settings(port=0)
    credentials = '{"accessKey":"inner","secretKey":"secret-of-inner"}'
    settings.take(
        {"listenPort": "0", "signedWritesEnable": "true", "innerClientAuthenticationCredentials": credentials}
    )

    async def main() -> None:
        async with (
            name_server(settings=settings) as names,
            started(tmp_path, namesrvAddr=names.address) as server,
            connected(names.address) as peer,
        ):
            info = await peer.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert server.address.encode() in info.body

    run(main())


def test_frames_of_the_table_are_what_our_signer_signs() -> None:
    ext = {"b": "T", "a": "g", "\u00e9": "\u00fc"}
    mine = dict(ext)
    request_signing.sign(mine, b"x", "alice", b"secret-of-alice")
    assert mine["Signature"].encode() in frame(row("alice", 310, ext, "x"), 1)


def test_nothing_of_a_closed_connection_waits_for_a_collection(tmp_path: Path) -> None:
    def kept() -> list[Any]:
        return [each for each in gc.get_objects() if type(each) is send_fast_path._Known]

    async def main() -> None:
        async with started(tmp_path) as server, as_admin(server.address) as other:
            (await other.request(310, send_header("t"), b"x")).raise_for_code("send")
            gc.collect()
            before = len(kept())
            server._send._plain.pause = 0
            gc.disable()
            try:
                async with as_admin(server.address) as admin:
                    for number in range(4):
                        pairs = {"UNIQ_KEY": f"{number:032X}"}
                        (await admin.request(310, send_header("t", pairs=pairs), b"x")).raise_for_code("send")
                    forms = [form for known in kept() for of_size in known.forms.values() for form in of_size]
                    # What requests have to show names the connection.
                    assert len(kept()) == before + 1
                    assert any(form.standing is not None for form in forms)
                    del forms
                await until(lambda: len(kept()) == before)
            finally:
                gc.enable()

    run(main())
