"""Who may ask a controller: everybody, or those that sign, by controller.conf."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.support import connected, run

from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ConfigError
from rocketspark.transport.request_signer import RequestSigner

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


def test_a_gate_without_names_is_refused_and_its_keys_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="who may write"):
        ControllerSettings({"signedWritesEnable": "true"})
    shown = ControllerSettings(LOCKED).document()
    assert "of-inner" not in shown
    assert "signedWrites" not in shown
