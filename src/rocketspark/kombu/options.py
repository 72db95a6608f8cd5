"""What a URL and kombu's transport options say. Rule: an option that there is not is refused with the nearest name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rocketspark.client.options import AccessOptions
from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.text import nearest, shown

try:
    from click import ClickException
except ImportError:  # kombu without Celery.
    ClickException = Exception  # type: ignore[misc, assignment]

PORT = 9876
# Those of every transport of kombu's, and of Celery's.
KOMBU_OPTIONS = frozenset(
    """body_encoding callback client_properties confirm_publish connect_retries_timeout deadletter_queue errback
    interval_max interval_start interval_step login_method max_retries polling_interval retry_policy""".split()
)
ACCESS_OPTIONS = frozenset(AccessOptions.__optional_keys__)


class OptionIllegal(ConfigError, ClickException):
    """A transport option or URL that cannot be used; Celery's commands print it as one line."""

    def __init__(self, message: str) -> None:
        ClickException.__init__(self, message)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The transport's options with their defaults. `namesrv`, `access`: what the URL says; the others are explained in
    docs/use/celery.md.
    """

    namesrv: str
    access: dict[str, Any]
    namespace: str = ""
    visibility_timeout: float = 60.0
    prefetch_max: int = 1000
    priority_steps: tuple[int, ...] = (0,)
    queue_count: int = 1
    broadcast_exchanges: tuple[str, ...] = ("celeryev",)
    dead_letters: bool = True
    max_deliveries: int = 0
    eta_by_timer: bool = False
    send_timeout: float = 3.0

    def is_broadcast(self, exchange: str) -> bool:
        """Tell whether each reader gets every message of an exchange, though its type is direct or topic, not fanout:
        so it is with remote control and `broadcast_exchanges`.
        """
        return exchange.endswith(".pidbox") or exchange in self.broadcast_exchanges


OWN_OPTIONS = frozenset(Settings.__struct_fields__) - {"namesrv", "access"}


def settings_of(connection: Any) -> Settings:
    """Return the settings that a kombu.Connection asks for. Raises OptionIllegal."""
    given = dict(connection.transport_options or {})
    for name in given.keys() - OWN_OPTIONS - ACCESS_OPTIONS - KOMBU_OPTIONS:
        known = sorted(OWN_OPTIONS | ACCESS_OPTIONS | KOMBU_OPTIONS)
        raise OptionIllegal(f"rocketmq:// has no transport option {shown(name)!r}{nearest(str(name), known)}")
    access = {name: given[name] for name in ACCESS_OPTIONS & given.keys()}
    if connection.userid:
        access |= {"access_key": connection.userid, "secret_key": connection.password}
    if connection.ssl:
        access |= {"use_tls": True, **(connection.ssl if isinstance(connection.ssl, dict) else {})}
    for name in access.keys() - ACCESS_OPTIONS:
        tls = [known for known in ACCESS_OPTIONS if "tls" in known]
        raise OptionIllegal(f"ssl of rocketmq:// has no {shown(name)!r}{nearest(str(name), tls)}: it takes {tls}")
    own: dict[str, Any] = {name: given[name] for name in OWN_OPTIONS & given.keys()}
    if connection.virtual_host and connection.virtual_host != "/":
        own["namespace"] = connection.virtual_host.strip("/")
    try:
        found = typed_json.convert(own | {"namesrv": _addresses(connection), "access": access}, Settings)
    except msgspec.ValidationError as e:
        raise OptionIllegal(f"a transport option of rocketmq:// cannot be used: {e}") from None
    _check(found)
    return msgspec.structs.replace(found, priority_steps=tuple(sorted(set(found.priority_steps))))


def _check(found: Settings) -> None:
    for name, low, high in (
        ("visibility_timeout", 1, 12 * 3600),
        ("prefetch_max", 1, 100_000),
        ("queue_count", 1, 1024),
        ("max_deliveries", 0, 1 << 31),
        ("send_timeout", 0.1, 3600),
    ):
        if not low <= getattr(found, name) <= high:
            raise OptionIllegal(f"transport option {name} {getattr(found, name)!r} is not from {low} to {high}")
    if not found.priority_steps or not all(0 <= step <= 9 for step in found.priority_steps):
        raise OptionIllegal(f"transport option priority_steps {found.priority_steps!r} is not of numbers from 0 to 9")


def _addresses(connection: Any) -> str:
    """Return the addresses of all NameServers: kombu keeps a URL's alternatives, host;host, apart."""
    urls: Sequence[str] = connection.alt or ()
    if len(urls) < 2:
        return f"{connection.hostname or '127.0.0.1'}:{connection.port or PORT}"
    hosts = [url.rpartition("://")[2].partition("/")[0].rpartition("@")[2] for url in urls]
    return ";".join(host if host.rpartition(":")[2].isdigit() else f"{host}:{PORT}" for host in hosts)
