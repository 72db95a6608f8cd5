"""The console's pages of an outbox and of processed ids, and all pages of applications in a browser."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient
from tests.console.running import console
from tests.console.support import opened
from tests.support.browser import overflow_px, serious_faults
from tests.support.ports import free_ports

from rocketspark import Message
from rocketspark.client.producer.prepared_message import PackingSettings
from rocketspark.console import ConsoleSettings, databases, make_app
from rocketspark.errors import ConfigError
from rocketspark.recipes import OutboxStore, SeenStore
from rocketspark.recipes.outbox_entries import prepare
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "the console: outboxes and tables of processed ids, read only, where a database is given"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A database with an outbox, in a table of its own name, and ids."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    box, seen = OutboxStore(url, table="box"), SeenStore(url)
    box.create_tables()
    seen.create_tables()
    with box.database.work() as connection:
        for key in ("<b>one", "two", "three"):
            box.add(connection, prepare(Message("orders", b"secret body"), key, PackingSettings()))
        connection.execute("UPDATE box SET added_ms = added_ms - 7200000 WHERE outbox_key = '<b>one'")
        connection.execute(
            "UPDATE box SET state = 'parked', attempts = 1, error = 'too <large>' WHERE outbox_key = 'two'"
        )
        seen.record(connection, "pay", ["1", "2"])
    box.close()
    seen.close()
    return url


def cards(client: TestClient, path: str) -> dict[str, str]:
    """The large figures of a page."""
    text = client.get(path).text
    found = re.findall(r'card-title">([^<]*)</p>\s*<p class="card-value"><span>([^<]*)<', text)
    return dict(found)


def test_an_outbox_and_ids_are_shown(cluster: Cluster, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "LIFE_S", -1.0)
    with opened(cluster.namesrv, outbox=(f"{shop}#box",), dedupe=(shop,)) as client:
        found = cards(client, "/outboxes")
        assert (found["Waiting"], found["Parked"], found["Oldest waits for"][:3]) == ("2", "1", "2 h")
        page = client.get("/outboxes").text
        assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["&lt;b&gt;one", "two", "three"]
        assert "too &lt;large&gt;" in page
        assert "secret body" not in page
        assert cards(client, "/deduplication")["Ids"] == "2"
        assert '<th scope="row">pay</th><td class="n">2</td>' in client.get("/deduplication").text
        connection = sqlite3.connect(shop.removeprefix("sqlite:///"))
        connection.execute("DELETE FROM rocketspark_seen")
        connection.execute("DROP TABLE box")
        connection.commit()
        connection.close()
        assert "No message was processed yet." in client.get("/deduplication").text
        gone = client.get("/outboxes")
        assert (gone.status_code, "no such table: box" in gone.text) == (200, True)


def test_a_database_that_is_away_fails_alone(cluster: Cluster, shop: str) -> None:
    away = f"postgresql://shop@127.0.0.1:{free_ports()}/shop"
    with opened(cluster.namesrv, outbox=(away, f"{shop}#box")) as client:
        page = client.get("/outboxes").text
        assert "onnection refused" in page
        assert "&lt;b&gt;one" in page


def test_a_password_comes_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://shop:secret@db/shop#box\n")
    assert databases.place_of(f"@{file}") == ("postgresql://shop:secret@db/shop", "postgresql://shop@db/shop", "box")
    for url in ("postgresql://shop:secret@db/shop", "postgresql://db/shop?password=secret"):
        with pytest.raises(ConfigError, match="@FILE") as refused:
            make_app(ConsoleSettings(outbox=(url,)))
        assert "secret" not in str(refused.value)
    for wrong in ("shop.db", "@/no/such/file", "mysql://db/shop"):
        with pytest.raises(ConfigError):
            make_app(ConsoleSettings(dedupe=(wrong,)))


@pytest.mark.browser
def test_pages_of_applications_in_a_browser(page: Page, cluster: Cluster, shop: str) -> None:
    settings = {"outbox": (f"{shop}#box",), "dedupe": (shop,), "spark_streams": (f"127.0.0.1:{free_ports()}",)}
    with console(cluster.namesrv, **settings) as home:
        page.goto(home)
        for title in ("Spark streams", "Outbox", "Deduplication"):
            page.get_by_role("navigation", name="Pages").get_by_role("link", name=title).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            assert serious_faults(page) == []
            assert overflow_px(page) == 0
