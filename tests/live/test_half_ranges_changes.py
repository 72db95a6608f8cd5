"""Batches of half messages and ends by ranges while users, rules and settings change between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live import test_plain_acl as plain_acl
from tests.live.support import TOPIC, broker, connected, create, run, send
from tests.live.test_access import as_admin, started, user
from tests.live.test_half_ranges import COMMIT, ROLLBACK, end, halves, items, visible
from tests.support import plain_acl_rows

from rocketspark.client.connection import admin_api
from rocketspark.client.connection.credentials import Signer
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.operator_bodies import UserInfo
from rocketspark.protocol.message import half_ranges
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "users, passwords, rules (access control 2.0 and 1.0), `maxMessageSize`, `brokerPermission` and "
    "`rejectTransactionMessage` changed between halves and ends; a line in the audit for each that access "
    "control refuses"
)

HALVES, ENDS = RequestCode.SEND_HALF_BATCH, RequestCode.END_HALF_RANGES
EVERY = sorted(b"tx %d" % n for n in range(40))


async def both(peer: Peer, ranges: bytes, topic: str = TOPIC) -> tuple[str, str]:
    """The remarks of a batch of half messages and of an end, for a topic."""
    sent = await send(peer, items(40), topic, 1, sys_flag=4, code=HALVES)
    told = await end(peer, COMMIT, ranges, topic=topic)
    assert 0 not in (sent.code, told.code)
    return sent.remark or "", told.remark or ""


def refusals(log: Path) -> list[tuple[str, int, str, str]]:
    """What an audit says of each refusal: user, code, resource, rule."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        (line["user"], line["code"], line.get("resource", ""), line["rule"])
        for line in lines
        if line["event"] == "refused"
    ]


def test_users_and_rules_change_in_the_midst_of_a_range(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as server, as_admin(server.address) as admin:
            for topic in (TOPIC, TOPIC.lower(), "other"):
                await create(admin, topic)
            await user(admin, "alice", (f"Topic:{TOPIC}", ["Pub"]))
            await user(admin, "bob", ("Topic:other", ["Pub"]))
            async with (
                connected(server.address, hooks=Signer("alice", "secret-of-alice")) as alice,
                connected(server.address, hooks=Signer("bob", "secret-of-bob")) as bob,
            ):
                first, positions = await halves(alice, items(40), 40)
                ranges = half_ranges.encode([(first, positions)])
                assert (await end(alice, COMMIT, half_ranges.encode([(first, positions[:10])]))).code == 0
                for topic in (TOPIC, TOPIC.lower()):
                    assert all("no permission" in remark for remark in await both(bob, ranges, topic))
                for outcome in (COMMIT, ROLLBACK):
                    # His own topic, another's half messages.
                    assert (await end(bob, outcome, ranges, topic="other")).code == 1
                await admin_api.update_user(admin, UserInfo(username="alice", user_status="disable"))
                assert await both(alice, ranges) == ("User:alice is disabled.",) * 2
                await admin_api.update_user(admin, UserInfo(username="alice", user_status="enable", password="new"))
                assert await both(alice, ranges) == ("check signature failed.",) * 2
                alice.hooks = Signer("alice", "new")
                await admin_api.delete_acl(admin, "User:alice")
                assert all("no matched policies" in remark for remark in await both(alice, ranges))
                assert len(await visible(admin)) == 10
                await admin_api.delete_user(admin, "alice")
                await user(admin, "alice", (f"Topic:{TOPIC}", ["Pub"]))
                alice.hooks = Signer("alice", "secret-of-alice")
                assert (await end(alice, COMMIT, ranges)).code == 0
                assert sorted(await visible(admin)) == EVERY

    run(main())
    expected = [("bob", f"Topic:{topic}", "no matching rule") for topic in (TOPIC, TOPIC.lower())]
    expected += [("alice", "", "signature")] * 2 + [("alice", f"Topic:{TOPIC}", "no matching rule")]
    assert refusals(tmp_path / "audit.log") == [
        (who, code, resource, rule) for who, resource, rule in expected for code in (HALVES, ENDS)
    ]


def test_accounts_of_access_control_1_change_in_the_midst_of_a_range(tmp_path: Path) -> None:
    rules = plain_acl_rows.PLAIN_ACL.replace("- sendable=PUB", f"- sendable=PUB\n  - {TOPIC}=PUB")

    async def main() -> None:
        async with plain_acl.guarded(tmp_path) as server:
            plain = server.access.plain
            assert plain is not None

            async def change(text: str) -> None:
                (tmp_path / "home/conf/plain_acl.yml").write_text(text)
                await plain.look()

            await change(rules)
            async with (
                connected(server.address, hooks=Signer("adminKey", "adminSecret")) as admin,
                connected(server.address, hooks=Signer("plainKey", "plainSecret")) as peer,
            ):
                await create(admin)
                first, positions = await halves(peer, items(40), 40)
                ranges = half_ranges.encode([(first, positions)])
                assert (await end(peer, COMMIT, half_ranges.encode([(first, positions[:10])]))).code == 0
                for changed, said in (
                    (rules.replace(f"{TOPIC}=PUB", f"{TOPIC}=DENY"), f"No permission for topic:{TOPIC}"),
                    (rules.replace("plainSecret", "otherSecret"), "Check signature failed"),
                    (rules.replace("plainKey", "otherKey"), "No acl config for plainKey"),
                ):
                    await change(changed)
                    assert all(said in remark for remark in await both(peer, ranges))
                assert len(await visible(admin)) == 10
                await change(rules)
                assert (await end(peer, COMMIT, ranges)).code == 0
                assert sorted(await visible(admin)) == EVERY

    run(main())
    found = [(who, code, rule) for who, code, _, rule in refusals(tmp_path / "store/audit.log")]
    told = ("permission", "signature", "unknown access key")
    assert found == [("plainKey", code, rule) for rule in told for code in (HALVES, ENDS)]


@pytest.mark.parametrize("started_anew", [False, True], ids=["together", "one by one"])
@pytest.mark.parametrize("setting", ["maxMessageSize=100", "brokerPermission=4", "rejectTransactionMessage=true"])
def test_what_is_open_ends_whatever_new_messages_may_not(tmp_path: Path, setting: str, started_anew: bool) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            first, positions = await halves(peer, items(40), 40)
            if started_anew:
                server._transactions.stop()
                server._transactions.start()
            (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, setting.encode())).raise_for_code("set")
            assert (await send(peer, items(40), TOPIC, 1, sys_flag=4, code=HALVES)).code in (13, 16)
            parts = {COMMIT: (first, positions[:30]), ROLLBACK: (first + 30, positions[30:])}
            for outcome, part in parts.items():
                assert (await end(peer, outcome, half_ranges.encode([part]))).code == 0
            assert sorted(await visible(peer)) == sorted(b"tx %d" % n for n in range(30))
            assert server._transactions.open_count == 0

    run(main())
