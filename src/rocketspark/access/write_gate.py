"""Who may change what a NameServer knows, and who may ask a controller. RocketMQ's let everybody; so do ours, unless
`signedWritesEnable=true`.

Then every request but those that only read needs the signature of a name in `writeCredentials`, or of the credentials
with which servers sign their own requests. Rule: a request that is not known to only read counts as one that writes. At
a controller every request counts so, as with what it answers one could speak for a broker. Where there is a gate, its
audit puts on record what the gate refused and each change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rocketspark import machine
from rocketspark.access.audit import FILE_NAME, Audit, Check, Decided, Decision, nobody_told
from rocketspark.access.tables import subject_of
from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.conf_lines import setting_name
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.request_signing import ACCESS_KEY, is_signed_with, is_too_old
from rocketspark.transport.processor_table import ReceivedRequest, Refusal, Routes

log = LimitedLog("rocketspark.access")

SWITCH, CREDENTIALS, AGE = "signedWritesEnable", "writeCredentials", "signatureAgeMinutesMax"
AUDIT = "auditLogPath"
KEYS = frozenset((SWITCH, CREDENTIALS, AGE, AUDIT))

READS = frozenset(
    (
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_BROKER_MEMBER_GROUP,
    )
)


class _Credentials(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


class WriteGate:
    """Refuses requests that write unless they are signed with a known name and secret.

    `secrets`: by name; `reads`: the codes of requests that everybody may send; `age_max_ms`: how old a signature that
    tells its time may be, 0 for any age; `decided`: called with each refusal, and with each other request that needed a
    signature.
    """

    def __init__(
        self,
        secrets: dict[str, str],
        *,
        reads: frozenset[int] = READS,
        age_max_ms: int = 0,
        audit_path: str = "",
        now_ms: Callable[[], int] = lambda: machine.time_ns() // 1_000_000,
    ) -> None:
        self._secrets = {name: secret.encode() for name, secret in secrets.items()}
        self._reads = reads
        # Of the audit: a file, "off", or "" for the server's own folder.
        self.audit_path = audit_path
        self._age_max_ms = age_max_ms
        self.decided: Decided = nobody_told
        self._now_ms = now_ms

    def __repr__(self) -> str:
        return f"WriteGate({sorted(self._secrets)})"

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return the answer to a request that writes and has no right signature; None if it may be served."""
        if request.code in self._reads:
            return None
        remark = self._remark(request)
        name = request.ext.get(ACCESS_KEY)
        self.decided(
            Decision(
                check=Check.AUTHENTICATION,
                subject="" if name is None else subject_of(name),
                source=request.peer.address,
                code=request.code,
                resource="",
                actions=(),
                allowed=remark is None,
                rule="signature",
                remark=remark or "",
            )
        )
        if remark is None:
            return None
        log.warning("request %d of %s refused: %s", request.code, request.peer.address, shown(remark))
        return Refusal(ResponseCode.NO_PERMISSION, remark)

    def _remark(self, request: ReceivedRequest) -> str | None:
        name = request.ext.get(ACCESS_KEY)
        if not name:
            return "username cannot be null."
        secret = self._secrets.get(name)
        if secret is None:
            return f"User:{name} is not found."
        if not is_signed_with(secret, request.ext, request.body, request.version):
            return "check signature failed."
        if is_too_old(request.ext, self._now_ms(), self._age_max_ms):
            return "the signature is too old."
        return None


def gate_of(values: dict[str, str], inner: tuple[str, str] | None, reads: frozenset[int] = READS) -> WriteGate | None:
    """Return the gate that a namesrv.conf or controller.conf asks for; None if everybody may write. Raises ConfigError.

    `inner`: the access key and secret with which servers sign their own requests.
    """
    switch = values.get(SWITCH, "false").lower()
    if switch not in ("true", "false"):
        raise ConfigError(f"{SWITCH}={shown(switch)!r}: true or false is needed")
    minutes = whole_number(values.get(AGE, "0"), low=0, high=INT_MAX)
    if minutes is None:
        raise ConfigError(f"{AGE}={shown(values[AGE])!r}: a whole number of minutes is needed, 0 for any age")
    secrets = dict([inner] if inner else []) | _secrets(values.get(CREDENTIALS, ""))
    if switch == "false":
        return None
    if not secrets:
        raise ConfigError(f"{SWITCH}=true needs {CREDENTIALS} or innerClientAuthenticationCredentials: who may write?")
    return WriteGate(secrets, reads=reads, age_max_ms=minutes * 60_000, audit_path=values.get(AUDIT, ""))


def _secrets(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        found = typed_json.decode(text, list[_Credentials])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        found = []
    if not found or any(not each.access_key.strip() or not each.secret_key.strip() for each in found):
        raise ConfigError(f'{CREDENTIALS} needs [{{"accessKey":"…","secretKey":"…"}}, …]')
    return {each.access_key: each.secret_key for each in found}


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
        RequestCode.CONTROLLER_GROUP_CHANGE,
    )
)
_SETTINGS = (RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_CONTROLLER_CONFIG)
NAMES_MAX, CHARACTERS_MAX = 20, 200


def what(code: int, header: Header, body: bytes) -> dict[str, Any]:
    """Return what a change is about, for the audit: names and numbers. Of settings and values only the keys are
    shown.
    """
    found: dict[str, Any] = {}
    for name in header.__struct_fields__:
        value = getattr(header, name)
        if isinstance(value, str | int) and name not in ("value", "check_code"):
            found[name] = shown(value, characters_max=CHARACTERS_MAX) if isinstance(value, str) else value
    if code in _SETTINGS:
        keys = [line.partition(b"=")[0].strip().decode("utf-8", "replace") for line in body[:4096].splitlines()]
        found["settings"] = [setting_name(key) for key in keys[:NAMES_MAX] if key]
    return found


def audit_of(gate: WriteGate, server: str, folder: str, routes: Routes) -> Audit | None:
    """Begin the audit of a server with a gate, in `auditLogPath`, else in `folder`. None if it is "off", or has no
    place.

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
