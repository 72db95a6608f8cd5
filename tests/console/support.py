"""A console on a cluster, asked without a browser; and what a browser does that posts a form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

from starlette.testclient import TestClient

from rocketspark.console import ConsoleSettings, make_app

ORIGIN = "http://127.0.0.1"
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


@contextmanager
def opened(namesrv: str, *, client: tuple[str, int] = ("testclient", 50000), **settings: Any) -> Iterator[TestClient]:
    """A console on a cluster, asked from `client`; redirects are not followed."""
    app = make_app(ConsoleSettings(namesrv=namesrv, **settings))
    with TestClient(app, base_url=ORIGIN, follow_redirects=False, client=client) as browser:
        yield browser


def token_of(client: TestClient) -> str:
    """The token that forms of this browser's pages carry."""
    client.get("/topics")
    console = client.app.state.console  # type: ignore[attr-defined]
    return str(console.sessions.token(client.cookies["rocketspark_console_80"]))


def log_in(client: TestClient, name: str, secret: str) -> Any:
    """What comes of a login; a right one leads to the topics."""
    client.get("/login")
    console = client.app.state.console  # type: ignore[attr-defined]
    token = console.sessions.token(client.cookies["rocketspark_console_80"])
    fields = {"token": token, "access_key": name, "secret_key": secret}
    return client.post("/login?next=/topics", data=fields, headers={"Origin": ORIGIN})


def posted(client: TestClient, path: str, **fields: str) -> Any:
    """What comes of posting a form as a browser does, without the confirmation."""
    return client.post(path, data={"token": token_of(client), **fields}, headers={"Origin": ORIGIN})


def done(client: TestClient, path: str, **fields: str) -> str:
    """Post a form, confirm it, and return the page that follows."""
    asked = posted(client, path, **fields)
    assert asked.status_code == 200, asked.text
    hidden = {name: unescape(value) for name, value in HIDDEN.findall(asked.text)}
    assert hidden.pop("confirmed") == "yes"
    assert fields.items() <= hidden.items()
    sure = client.post(path, data={**hidden, "confirmed": "yes"}, headers={"Origin": ORIGIN})
    assert sure.status_code == 303, sure.text
    page = client.get(sure.headers["location"])
    assert page.status_code == 200
    return page.text
