"""The web service of examples/fastapi: orders are stored, delivered and counted; without a server it says so."""

from __future__ import annotations

import importlib
import re
import sys
import time
from pathlib import Path

import pytest
from examples.fastapi.service import app
from fastapi.testclient import TestClient
from tests.support.patience import LIMIT_S

from rocketspark.errors import NotSent
from rocketspark.testing import run_cluster


@pytest.mark.shows("FastAPI: a producer and a consumer in the lifespan of a web service")
def test_orders_are_stored_and_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_cluster() as cluster:
        monkeypatch.setenv("NAMESRV", cluster.namesrv)
        with TestClient(app) as client:
            for product, count in (("apple", 2), ("pear", 1), ("apple", 3)):
                answer = client.post("/orders", json={"product": product, "count": count})
                assert (answer.status_code, list(answer.json())) == (202, ["id"])
            assert client.post("/orders", json={"count": 1}).status_code == 422
            end = time.monotonic() + LIMIT_S
            while client.get("/delivered").json() != {"apple": 5, "pear": 1}:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_without_a_server_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV", "127.0.0.1:1")
    with pytest.raises(NotSent, match="check the address and that"), TestClient(app):
        pass


def test_the_service_of_the_page_and_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/use/fastapi.md").read_text("utf-8")
    for code, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("test_service").test_an_order_is_stored(monkeypatch)
    del sys.modules["service"], sys.modules["test_service"]
