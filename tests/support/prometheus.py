"""A Prometheus of the tests' own, and its promtool: it scrapes each second, and is asked for what queries give."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SCRAPE_S = 1
# What Grafana puts in their place.
BUILT_IN = {"$__rate_interval": "10s", "$__interval": "10s", "$__range": "1h"}


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test without one, but never where CI is set."""
    stamp = ROOT / ".setup" / "prometheus_bin"
    if stamp.exists() and (found := Path(stamp.read_text().strip()) / name).exists():
        return str(found)
    if on_path := shutil.which(name):
        return on_path
    if os.environ.get("CI"):
        pytest.fail(f"no {name}: run make setup")
    pytest.skip(f"no {name}: run make setup")


class Prometheus:
    """A server that runs, at an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its HTTP API. Fails if it is an error."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{query}: {e.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The rows that an expression gives now: `metric`, its labels, and `value`, time and text."""
        rows: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return rows

    def await_rows(self, expression: str) -> list[dict[str, Any]]:
        """The rows, once there are some. Fails if that is never so."""
        end_s = time.monotonic() + LIMIT_S
        while not (found := self.query(expression)):
            assert time.monotonic() < end_s, f"{expression} gives nothing"
            time.sleep(SCRAPE_S / 4)
        return found

    def await_numbers(self, expression: str) -> list[dict[str, Any]]:
        """The rows, once there are some and one is a number. Fails if that is never so."""
        end_s = time.monotonic() + LIMIT_S
        while all(math.isnan(float(row["value"][1])) for row in self.query(expression)):
            assert time.monotonic() < end_s, f"{expression} gives no number"
            time.sleep(SCRAPE_S / 4)
        return self.query(expression)


@contextmanager
def prometheus(folder: Path, targets: Sequence[str], rules: Path | None = None) -> Iterator[Prometheus]:
    """Run a server that scrapes addresses (host:port), and that knows a file of rules."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": "rocketspark", "static_configs": [{"targets": list(targets)}]}],
        "rule_files": [str(rules)] if rules is not None else [],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports()}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await_ready(process, address, folder / "prometheus.log")
        yield Prometheus(address)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10):
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > end_s:
            raise AssertionError(f"prometheus does not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def plain(expression: str, variables: Mapping[str, str]) -> str:
    """A board's query as Grafana sends it: variables that are all, and an interval."""
    for name, value in {**BUILT_IN, **variables}.items():
        expression = expression.replace(name, value)
    return expression
