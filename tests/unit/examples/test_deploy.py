"""examples/deploy: units, Dockerfile and compose file name commands, options, files and ports that are there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.cli.test_documented_commands import mistake

from rocketspark.broker.broker_conf import read_broker_conf
from rocketspark.namesrv.settings import read_namesrv_conf

pytestmark = pytest.mark.shows("systemd units, a Dockerfile and a compose file in examples/deploy, linted")

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "deploy"
PROGRAM = "/opt/rocketspark/bin/rocketspark"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
PORTS = set(re.findall(r"^\| `\w+` \| (\d+) \|", (ROOT / "docs" / "run" / "machines.md").read_text("utf-8"), re.M))
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.stem)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text("utf-8")
    command = re.search(rf"^ExecStart=.*{PROGRAM} (.+?)'?$", text, re.M)
    assert command is not None
    assert mistake(command[1].replace("${NAMESRV}", "127.0.0.1:9876"), whole=True) is None
    # It looks whether the program is there.
    here = tmp_path / unit.name
    here.write_text(text.replace(PROGRAM, sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_files_of_settings_have_no_mistake() -> None:
    for name in ("broker.conf", "compose-broker.conf"):
        settings, warnings = read_broker_conf(FOLDER / name)
        assert warnings == []
        assert (settings.listen_host, settings.advertised_host != "") == ("0.0.0.0", True)
    assert read_namesrv_conf(FOLDER / "namesrv.conf")[1] == []
    read = set(re.findall(r"-c /etc/rocketspark/(\S+)", "\n".join(unit.read_text("utf-8") for unit in UNITS)))
    assert read == {"broker.conf", "namesrv.conf"}


def test_the_dockerfile_is_clean_and_names_what_is_there() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), FOLDER / "Dockerfile"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert set(re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.M)[0].split()) == PORTS
    command = json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, re.M)[0])
    assert mistake(shlex.join(command), whole=True) is None
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"\.whl\)\[([\w,]+)\]", DOCKERFILE)[0].split(",")) <= extras.keys()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)).replace("/", "").split()
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file(name: str) -> None:
    service = SERVICES[name]
    assert mistake(shlex.join(service["command"]), whole=True) is None
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    for inner, outer in (port.split(":") for port in service["ports"]):
        assert inner == outer
        assert inner in PORTS
    assert set(service.get("depends_on", [])) <= SERVICES.keys()
    for source in (volume.split(":")[0] for volume in service.get("volumes", []) if volume.startswith("./")):
        assert (FOLDER / source).is_file()
    addresses = re.findall(r"(\w+):9876", shlex.join(service["command"]))
    assert set(addresses) <= SERVICES.keys()


def test_the_pages_name_every_file() -> None:
    page = "".join((ROOT / "docs" / "run" / name).read_text("utf-8") for name in ("services.md", "backups.md"))
    names = {path.name for path in FOLDER.rglob("*") if path.is_file()} - {"compose-broker.conf"}
    page = page.replace("rocketspark-backup.*", "rocketspark-backup.service")
    assert {name for name in names if name not in page} == set()
