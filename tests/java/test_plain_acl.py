"""Access control 1.0 beside the official software: the broker 5.2.0, and the 4.9.7 client and mqadmin on ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.driver import JARS, java_tool
from tests.live.support import broker, name_server, run
from tests.support import plain_acl_rows as rows
from tests.support.official import SHORT_LIVED, started
from tests.support.plain_acl_rows import outcome, outcomes, remembered
from tests.support.ports import free_ports

pytestmark = pytest.mark.shows(
    "producers: signed requests",
    "access control 1.0: files, address patterns, reload, 50-54, migration",
)

OLD_SERVER = JARS / "server-5.2.0"
TOOLS = Path(__file__).parent / "tools"
REFUSED = "org.apache.rocketmq.acl.common.AclException: "
QUIET = """\
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=200000
maxHashSlotNum=10000
maxIndexNum=40000
diskMaxUsedSpaceRatio=99
transactionMetricFlushInterval=200
timerWheelEnable=false
aclEnable=true
"""


@pytest.fixture(scope="module")
def old_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The official broker 5.2.0 with the table's rules, without a NameServer."""
    started("broker 5.2.0")
    if not any(OLD_SERVER.glob("*.jar")):
        (pytest.fail if os.environ.get("CI", "").lower() in ("1", "true") else pytest.skip)(
            "no 5.2.0: run `make setup`"
        )
    home = tmp_path_factory.mktemp("acl")
    rows.write_files(home)
    port = free_ports(-2, 0, 1)
    config = home / "broker.conf"
    config.write_text(
        f"{QUIET}listenPort={port}\nhaListenPort={port + 1}\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\n"
        f"storePathRootDir={home}/store\n"
    )
    call = [java_tool("java"), *SHORT_LIVED.split(), "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m"]
    call += [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
    call += ["--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"]
    call += ["-cp", str(OLD_SERVER / "*"), "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config)]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 200
        while True:
            try:
                outcome(address, rows.ROWS[0])
                break
            except OSError:
                assert process.poll() is None, (home / "log").read_text()[-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield address
    finally:
        process.kill()
        process.wait()


def test_5_2_0_decides_as_is_remembered(old_broker: str) -> None:
    expected = remembered()
    assert outcomes(old_broker, expected) == expected


def test_the_client_and_mqadmin_4_9_7_on_our_broker(tmp_path: Path) -> None:
    started("client and mqadmin 4.9.7")
    home = tmp_path / "home"
    rows.write_files(home)
    tools = tmp_path / "tools"
    (tools / "conf").mkdir(parents=True)
    (tools / "conf/logback_tools.xml").write_text("<configuration/>")
    (tools / "conf/tools.yml").write_text("accessKey: adminKey\nsecretKey: adminSecret\n")

    async def java(program: str, *arguments: str, stdin: str = "") -> list[str]:
        call = [java_tool("java"), *SHORT_LIVED.split(), f"-Drocketmq.home.dir={tools}", f"-Duser.home={tools}"]
        call += ["-cp", str(JARS / "client-4.9.7" / "*"), str(TOOLS / f"{program}.java"), *arguments]
        pipe = asyncio.subprocess.PIPE
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        process = await asyncio.create_subprocess_exec(*call, stdin=pipe, stdout=pipe, env=environment)
        try:
            out, _ = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return out.decode().splitlines()

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path / "store", acl=True, acl_home=str(home), namesrv_addresses=names.address) as server,
        ):
            commands = [
                "updateTopic -t both -r 2 -w 2",
                "updateAclConfig -a madeKey -s madeSecret -t both=PUB|SUB -g g=SUB",
                "updateGlobalWhiteAddr -g 10.1.2.3,10.1.3.*",
                "clusterAclConfigVersion",
                "getAclConfig",
            ]
            where = f" -b {server.address} -n {names.address}\n"
            said = "\n".join(await java("MqAdminCommands", stdin="".join(command + where for command in commands)))
            assert f"create topic to {server.address} success" in said, said
            assert f"create or update plain access config to {server.address} success" in said, said
            assert f"update global white remote addresses to {server.address} success" in said, said
            assert "10.1.3.*" in said, said
            assert "madeKey" in said, said
            assert "both=PUB|SUB" in said, said
            assert "Secret" not in said.replace("secretKey", ""), said
            pairs = ["madeKey:madeSecret", "madeKey:wrongSecret", "nobody:wrongSecret", "plainKey:plainSecret", ":"]
            found = await java("SignedClient", names.address, "both", "g", "2", *pairs)
            refusals = [line.partition(REFUSED)[2].partition(",")[0] for line in found if line.startswith("refused")]
            assert refusals == [
                "Check signature failed for accessKey=madeKey",
                "No acl config for nobody",
                "No accessKey is configured",
            ], found
            assert [line for line in found if line.startswith("sent")] == ["sent SEND_OK"] * 2
            assert sorted(line for line in found if line.startswith("got")) == ["got from 4", "got from 7"]
            gone = await java("MqAdminCommands", stdin=f"deleteAclConfig -a madeKey{where}")
            assert any("success" in line for line in gone), gone
            assert "madeKey" not in (home / "conf/plain_acl.yml").read_text()

    run(main())
