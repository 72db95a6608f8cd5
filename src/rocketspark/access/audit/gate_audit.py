"""The audit of a NameServer and of a controller: where there is a gate, its refusals and what passed that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocketspark.access.audit.audit_log import FILE_NAME, Audit
from rocketspark.access.write_gate import WriteGate
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header
from rocketspark.transport.processor_table import Routes

# What brokers say again and again is none: registrations, heartbeats.
CHANGES = frozenset(
    (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
    )
)
_SETTINGS = (RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_CONTROLLER_CONFIG)
NAMES_MAX, CHARACTERS_MAX = 20, 200


def what(code: int, header: Header, body: bytes) -> dict[str, Any]:
    """Return what a change is about: names and numbers, of settings the keys alone; no value of a key is shown."""
    found: dict[str, Any] = {}
    for name in header.__struct_fields__:
        value = getattr(header, name)
        if isinstance(value, str | int) and name not in ("value", "check_code"):
            found[name] = shown(value, characters_max=CHARACTERS_MAX) if isinstance(value, str) else value
    if code in _SETTINGS:
        keys = [line.partition(b"=")[0].strip().decode("utf-8", "replace") for line in body[:4096].splitlines()]
        found["settings"] = [shown(key, characters_max=CHARACTERS_MAX) for key in keys[:NAMES_MAX] if key]
    return found


def audit_of(gate: WriteGate, server: str, folder: str, routes: Routes) -> Audit | None:
    """Begin the audit of a server with a gate, in `auditLogPath` or in a folder of its own; None without either.

    Raises StoreUnwritable if its file cannot be opened.
    """
    if gate.audit_path == "off" or not (gate.audit_path or folder):
        return None
    path = Path(gate.audit_path) if gate.audit_path else Path(folder) / FILE_NAME
    audit = Audit({"server": server}, path, changes=CHANGES, what=what)
    audit.check()
    audit.watch(routes)
    gate.decided = audit.decided
    return audit
