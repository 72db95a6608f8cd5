"""The console: a cluster in the browser. Imports admin. Start with app; the extra `console` has what it needs.

How a page is made:

1. A module of `pages/` has `ROUTES`: `page("/topics", topics)` for what is read, `change("/topics/delete", words, act)`
   for what changes something. `routes.py` lists the modules and the navigation. A name of a topic or group stands in
   the query (`/topic?name=…`), never in the path.
2. A page is `async def topics(call: Call) -> Response`. It asks by `await call.read(key, lambda admin: admin.…())`: one
   answer is kept for `life_s` and shared by all who are let in by the same keys; without keeping: `call.ask(act)`.
   `call.query("name")` is an argument of the address; `call.page("topics.html", …)` draws a template with `base.html`,
   `call.part(…)` a piece that htmx asked for. What a broker refuses or the user did wrong is raised: errors of our
   tree become a page that says so in a line. A piece of a page that may fail alone: `await call.attempt(…)`.
3. A change is two functions of (call, form). `words` returns a `Confirmation`: what is done, in words, with names; it
   is shown first, and the button posts the same form again. `act` does it, and returns a `Done` (a sentence, and where
   to go). Around both stand: read-only, the session's token, Origin and Sec-Fetch-Site, the audit. A form is
   `{% call post("/topics/create") %} … {% endcall %}` of `macros.html`, which brings the token. A file of the
   user's own (export) is a page that returns a Response.
4. Templates escape what they print, and every text goes through `shown`: cut at 200 characters, control characters
   escaped. `{{ x|exact }}` is the text itself, for values and addresses that are sent back; `{{ x|lines }}` keeps its
   lines, for bodies. Addresses: `{{ link("/topic", name=x) }}`, `path_of` in Python. Never `|safe`, `style=`,
   `<script>` with code or `on…=`: the content security policy lets none of them act. Macros: `macros.html`.
5. What moves: `<span data-live="put_rate">` and `<div data-plot="put_rate,get_rate" data-title="…">` are filled from
   `/events` by static/console.js; `cluster/sampler.py` makes the samples. Pieces that load later:
   `hx-get="…" hx-trigger="load"`; a live list: `hx-trigger="every 2s"`.
6. Nobody may ask a broker more than N times a second (`cluster/pace.py` holds that for all), so a page of 1,000 things
   asks once, and not for each.
7. The files of htmx and uPlot come by `python src/rocketspark/console/assets.py` (`make console-assets`).
   A test's console: `make_app(ConsoleSettings(namesrv=cluster.namesrv))` in Starlette's TestClient with
   `base_url="http://127.0.0.1"`, or `ConsoleServer` on a port; `tests/console/support.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.console.app import make_app
    from rocketspark.console.server import ConsoleServer
    from rocketspark.console.settings import ConsoleSettings

__getattr__ = attributes(__name__, {"make_app": "app", "ConsoleServer": "server", "ConsoleSettings": "settings"})
__all__ = ["ConsoleServer", "ConsoleSettings", "make_app"]
