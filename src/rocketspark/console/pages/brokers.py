"""Brokers: their state and replication, and their settings: what differs from the default, what may change at once."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rocketspark import machine
from rocketspark.admin.broker_states import SettingState
from rocketspark.console.call import Call, Confirmation, Done, Form, together
from rocketspark.console.cluster.sampler import figures
from rocketspark.console.drawing import path_of
from rocketspark.console.routes import change, page
from rocketspark.errors import UsageError

# Whose values are keys of somebody.
SECRETS = ("secret", "password", "accesskey", "credential", "token")
HIDDEN = "not shown"


async def brokers(call: Call) -> Response:
    """The brokers, and the replicas that controllers know."""
    found, sets = await together(
        figures(call.view), call.attempt(call.read("replica_sets", lambda admin: admin.replica_sets(), 5.0))
    )
    return call.page("brokers.html", brokers=found, sets=sets, now_s=machine.time_ns() / 1e9)


async def broker(call: Call) -> Response:
    """One broker: state, replication, settings."""
    address = call.query("address")
    info, settings, replication = await together(
        call.read(("broker_info", address), lambda admin: admin.broker_info(address)),
        call.attempt(call.read(("broker_config", address), lambda admin: admin.broker_config(address))),
        call.attempt(call.read(("replication", address), lambda admin: admin.replication(address))),
    )
    which, text = call.query("which", "differs"), call.query("q").strip()
    values: dict[str, Any] = {"address": address, "info": info, "which": which, "text": text, "settings": settings}
    if isinstance(settings, list):
        rows = [_safe(row) for row in settings]
        values["settings"] = [row for row in rows if _is_in(row, which) and text.lower() in row.key.lower()]
    if call.wants_part():
        return call.part("broker_settings.html", **values)
    now_s = machine.time_ns() / 1e9
    return call.page("broker.html", replication=replication, now_s=now_s, **values)


def _is_in(row: SettingState, which: str) -> bool:
    return row.differs if which == "differs" else row.live is True if which == "live" else True


def _safe(row: SettingState) -> SettingState:
    if row.value and any(part in row.key.lower() for part in SECRETS):
        return SettingState(row.key, HIDDEN, row.default, row.live)
    return row


async def edit(call: Call) -> Response:
    """The form of one setting."""
    address, key = call.query("address"), call.query("key")
    settings = await call.ask(lambda admin: admin.broker_config(address))
    found = next((row for row in settings if row.key == key), None)
    if found is None:
        raise UsageError(f"this broker has no setting {key!r}")
    return call.page("broker_setting.html", address=address, setting=_safe(found))


async def change_words(call: Call, form: Form) -> Confirmation:
    """Say which setting is changed, from what to what."""
    address, key, value = form.get("address", ""), form.get("key", ""), form.get("value", "").strip()
    settings = await call.ask(lambda admin: admin.broker_config(address))
    found = next((row for row in settings if row.key == key), None)
    if found is None:
        raise UsageError(f"this broker has no setting {key!r}")
    info = await call.ask(lambda admin: admin.find_broker(address))
    was = _safe(found).value or "empty"
    sentences = [f"{key} is {was} and becomes {value or 'empty'}, at once and after restarts."]
    if found.live is False:
        sentences.append("A broker of RocketSpark refuses it: this setting needs a restart with another broker.conf.")
    title = f"Change {key} of {info.broker_name} at {address}"
    return Confirmation(title, tuple(sentences), "Change", path_of("/broker", address=address))


async def change_setting(call: Call, form: Form) -> Done:
    """Change a setting."""
    address, key, value = form["address"], form["key"], form.get("value", "").strip()
    (now,) = await call.ask(lambda admin: admin.set_broker_config(address, {key: value}))
    shown = _safe(now).value or "empty"
    return Done(f"{key} is {shown} now.", path_of("/broker", address=address))


ROUTES = [
    page("/brokers", brokers),
    page("/broker", broker),
    page("/broker/setting", edit),
    change("/broker/setting", change_words, change_setting),
]
