"""NameServer discovery: an HTTP server returns the addresses as text. Rule: DefaultTopAddressing, 5.x.

Which of the addresses is asked, and which is next when one does not answer: `topic_routes`, RouteCache.ask.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request

from rocketspark import machine
from rocketspark.client.connection.topic_routes import NAMESRV_VARIABLES
from rocketspark.errors import ConfigError, NoNameServer
from rocketspark.model.text import shown
from rocketspark.transport.connections import parse_addresses

BYTES_MAX = 64 << 10
# As Java clients take it from the system properties rocketmq.namesrv.domain and .subgroup.
DOMAIN_VARIABLES = ("ROCKETMQ_NAMESRV_DOMAIN", "rocketmq.namesrv.domain")
SUBGROUP_VARIABLES = ("ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP", "rocketmq.namesrv.domain.subgroup")
PORT = 8080


def where_to_look(namesrv: str | None, url: str | None, unit_name: str | None) -> str | None:
    """Return the URL that lists the NameServers; None if their addresses are given, which wins (rule:
    MixAll.getWSAddr).

    `url`: as given; else the environment's domain, but only if it names no addresses. The unit's name is put after it.
    """
    if namesrv:
        return None
    if not url:
        domain = _environment(DOMAIN_VARIABLES)
        if not domain or _environment(NAMESRV_VARIABLES):
            return None
        port = "" if ":" in domain else f":{PORT}"
        url = f"http://{domain}{port}/rocketmq/{_environment(SUBGROUP_VARIABLES) or 'nsaddr'}"
    if unit_name:
        url = f"{url}-{urllib.parse.quote(unit_name, safe='')}?nofix=1"
    return url


def _environment(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


async def fetch_addresses(url: str, timeout_ms: float) -> list[str]:
    """Return the addresses that the URL's text names. Raises NoNameServer if it cannot be had or names none."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"namesrv_url {url!r}: http://host:port/path is needed")
    try:
        # The thread's own time-outs are for each step; a server may take many.
        text = await asyncio.wait_for(asyncio.to_thread(_get, url, timeout_ms / 1000), timeout_ms / 1000 + 1)
        return parse_addresses(text.strip())
    except (OSError, ValueError, http.client.HTTPException) as e:
        reason = shown(getattr(e, "reason", None) or str(e) or type(e).__name__)
        raise NoNameServer(f"no NameServer addresses from {url}: {reason}", address=url) from None


def _get(url: str, timeout_s: float) -> str:
    until_s = machine.monotonic() + timeout_s
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        found = bytearray()
        while len(found) < BYTES_MAX and (chunk := answer.read1(BYTES_MAX)):
            found += chunk
            if machine.monotonic() > until_s:
                raise TimeoutError(f"the answer was not whole within {timeout_s:.1f} s")
    return found.decode()
