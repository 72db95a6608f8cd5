"""The audit of a broker: which requests change it, and what is written of each.

Rule: only what is known to be no secret is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.access.audit import FILE_NAME, Audit
from rocketspark.broker.settings import FIELDS, BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.model.conf_lines import parse_properties, setting_name
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.operator_bodies import AclInfo, UserInfo

NAMES_MAX = 20
VALUE_CHARACTERS_MAX = 200
# Of a larger body only the size is written.
BODY_BYTES_MAX = 64 << 10

# Of access control 1.0; those of accounts, whose name is their access key.
_ACCOUNTS = (50, 51)
# Fields of headers, by their names here.
_SAFE = frozenset(
    (
        *("topic", "group", "source", "target", "name", "username", "subject", "policy_type", "resource"),
        *("read_queue_count", "write_queue_count", "perm", "order", "attributes", "readable", "mode", "engine"),
        *("message_id", "timestamp", "timestamp_ms", "queue_id", "offset", "force", "clean_offsets", "offline"),
        *("broker_name", "broker_id", "master_address", "master_epoch", "master_flush_offset", "admin"),
    )
)


class _Named(msgspec.Struct):
    group_name: str = msgspec.field(default="", name="groupName")
    topic_name: str = msgspec.field(default="", name="topicName")
    topic: str = ""
    consumer_group: str = msgspec.field(default="", name="consumerGroup")


class _Several(msgspec.Struct):
    groups: list[_Named] = msgspec.field(default_factory=list, name="groupConfigList")
    topics: list[_Named] = msgspec.field(default_factory=list, name="topicConfigList")


def what(code: int, header: Header, body: bytes) -> dict[str, Any]:
    """Return what a request changes, as fields of one audit line: short names and settings, never a secret."""
    found: dict[str, Any] = {}
    for name in header.__struct_fields__:
        value = getattr(header, name)
        if isinstance(value, str | int) and (name in _SAFE or (name == "access_key" and code in _ACCOUNTS)):
            found[name] = shown(value, characters_max=VALUE_CHARACTERS_MAX) if isinstance(value, str) else value
    reader = _BODIES.get(code)
    if reader is None or not body:
        return found
    if len(body) > BODY_BYTES_MAX:
        return found | {"body_bytes": len(body)}
    try:
        return found | reader(body)
    except (RocketSparkError, UnicodeDecodeError, ValueError, RecursionError):
        return found | {"body": "unreadable"}


def _settings(body: bytes) -> dict[str, Any]:
    """Return the keys of a change of settings, with those values that are no texts: one may be a secret."""
    changed: dict[str, Any] = {}
    for key, value in list(parse_properties(body.decode(), "the body").items())[:NAMES_MAX]:
        declared = FIELDS.get(key)
        is_text = declared is None or declared.is_text
        changed[setting_name(key)] = "…" if is_text else shown(value, characters_max=VALUE_CHARACTERS_MAX)
    return {"settings": changed}


def _user(body: bytes) -> dict[str, Any]:
    user = java_json.decode_request(body, UserInfo)
    said = {"user_type": user.user_type, "user_status": user.user_status}
    found: dict[str, Any] = {name: shown(text) for name, text in said.items() if text is not None}
    return found | ({"password": "changed"} if user.password else {})


def _acl(body: bytes) -> dict[str, Any]:
    acl = java_json.decode_request(body, AclInfo)
    rules = [
        shown(
            f"{policy.policy_type or 'Custom'} {entry.resource} {','.join(entry.actions or ())}"
            f" from {','.join(entry.source_ips or ()) or 'any'} {entry.decision}",
            characters_max=VALUE_CHARACTERS_MAX,
        )
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]
    return {"rules": rules[:NAMES_MAX], "rule_count": len(rules)}


def _named(body: bytes) -> dict[str, Any]:
    found = java_json.decode_request(body, _Named)
    said = {"group": found.group_name or found.consumer_group, "topic": found.topic_name or found.topic}
    return {kind: shown(text) for kind, text in said.items() if text}


def _several(body: bytes) -> dict[str, Any]:
    found = java_json.decode_request(body, _Several)
    names = [each.group_name for each in found.groups] + [each.topic_name for each in found.topics]
    return {"names": [shown(name) for name in names[:NAMES_MAX]], "count": len(names)}


_BODIES: dict[int, Callable[[bytes], dict[str, Any]]] = {
    RequestCode.UPDATE_BROKER_CONFIG: _settings,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _named,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _several,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _several,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _named,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _named,
    RequestCode.AUTH_CREATE_USER: _user,
    RequestCode.AUTH_UPDATE_USER: _user,
    RequestCode.AUTH_CREATE_ACL: _acl,
    RequestCode.AUTH_UPDATE_ACL: _acl,
}

OF_CONTROLLERS = frozenset((RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.RESET_MASTER_FLUSH_OFFSET))
# Requests of operators, and of controllers, that change something. Commits of consumers are none.
# 50, 51 and 53: accounts and addresses of access control 1.0.
CHANGES: frozenset[int] = frozenset(
    (
        *(50, 51, 53),
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.SWITCH_TIMER_ENGINE,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.RETRY_QUARANTINED,
        RequestCode.DROP_QUARANTINED,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        *OF_CONTROLLERS,
    )
)


log = logging.getLogger("rocketspark.broker")


def audit_of(settings: BrokerSettings) -> Audit | None:
    """Return the audit that the settings ask for; by default there is one where there is access control.

    Raises StoreUnwritable if its file cannot be opened.
    """
    if settings.audit_path == "off":
        return None
    path = Path(settings.audit_path) if settings.audit_path else None
    if path is None and (settings.acl or settings.authentication or settings.authorization):
        path = Path(settings.store_root) / FILE_NAME
    if path is None:
        return None
    audit = Audit(
        {"broker": settings.broker_name},
        path,
        changes=CHANGES,
        what=what,
        bytes_max=settings.audit_file_bytes,
        files_max=settings.audit_file_count,
    )
    audit.check()
    log.info("the audit goes to %s", path)
    return audit
