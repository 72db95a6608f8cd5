"""Who may ask a controller: everybody, or those that sign, by controller.conf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import connected, run

from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.namesrv.server import NameServer
from rocketspark.namesrv.settings import Settings
from rocketspark.transport.request_signer import RequestSigner

pytestmark = pytest.mark.shows(
    "every port with --secure, as a stranger finds it",
    "controller and NameServer with a gate, an audit and `--secure`",
)

INNER = '{"accessKey":"inner","secretKey":"of-inner"}'
LOCKED = {"signedWritesEnable": "true", "innerClientAuthenticationCredentials": INNER}


@pytest.mark.parametrize(("values", "codes"), [({}, {0}), (LOCKED, {16})])
def test_all_requests_need_a_signature_once_the_file_says_so(
    tmp_path: Path, values: dict[str, str], codes: set[int]
) -> None:
    async def main() -> None:
        controller = ControllerServer(ControllerSettings(values, listen="127.0.0.1:0", folder=tmp_path))
        await controller.start()
        try:
            async with connected(controller.address) as stranger:
                asked = [await stranger.request(code, {}) for code in (1005, 1010)]
                assert {answer.code for answer in asked} == codes
            async with connected(controller.address, hooks=RequestSigner("inner", "of-inner")) as broker:
                assert {(await broker.request(code, {})).code for code in (1005, 1010)} == {0}
            if codes == {16}:
                served = controller._server._routes.table
                async with connected(controller.address, hooks=RequestSigner("inner", "else")) as stranger:
                    assert {(await stranger.request(code, {})).code for code in served} == {16}
        finally:
            await controller.close()

    run(main())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_controller_and_a_nameserver_with_a_gate_have_an_audit(tmp_path: Path) -> None:
    async def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        async with connected(address) as stranger:
            await stranger.request(code, ext, body)
        async with connected(address, hooks=RequestSigner("inner", "of-inner")) as broker:
            await broker.request(code, ext, body)

    async def main() -> None:
        controller = ControllerServer(ControllerSettings(LOCKED, listen="127.0.0.1:0", folder=tmp_path / "c"))
        names = Settings(port=0)
        names.take({"listenPort": "0", "auditLogPath": str(tmp_path / "names.log"), **LOCKED})
        nameserver = NameServer(settings=names)
        await controller.start()
        await nameserver.start()
        try:
            await ask(
                controller.address, 1011, {"clusterName": "C", "brokerName": "b", "brokerControllerIdsToClean": ""}
            )
            await ask(nameserver.address, 318, {}, b"waitSecondsForService=46\nkvConfigPath=/secret")
            await ask(nameserver.address, 205, {"brokerName": "b"})
        finally:
            await nameserver.close()
            await controller.close()

    run(main())

    def told(found: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
        return [(line["server"], line["event"], line["user"], line["request"]) for line in found]

    assert told(lines(tmp_path / "c/audit.log")) == [
        ("controller", "refused", "", "CLEAN_BROKER_DATA"),
        ("controller", "changed", "inner", "CLEAN_BROKER_DATA"),
    ]
    found = lines(tmp_path / "names.log")
    assert told(found) == [
        ("namesrv", event, user, request)
        for request in ("UPDATE_NAMESRV_CONFIG", "WIPE_WRITE_PERM_OF_BROKER")
        for event, user in (("refused", ""), ("changed", "inner"))
    ]
    assert [line["what"] for line in found[1::2]] == [
        {"settings": ["waitSecondsForService", "kvConfigPath"]},
        {"broker_name": "b"},
    ]
    assert (tmp_path / "names.log").stat().st_mode & 0o777 == 0o600


def test_an_audit_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "audit.log"

    async def main() -> None:
        controller = ControllerServer(
            ControllerSettings(LOCKED | {"auditLogPath": str(path)}, listen="127.0.0.1:0", folder=tmp_path)
        )
        with pytest.raises(StoreUnwritable, match=f"the audit log {path} cannot be written"):
            await controller.start()

    run(main())


def test_a_gate_without_names_is_refused_and_its_keys_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="who may write"):
        ControllerSettings({"signedWritesEnable": "true"})
    shown = ControllerSettings(LOCKED).document()
    assert "of-inner" not in shown
    assert "signedWrites" not in shown
