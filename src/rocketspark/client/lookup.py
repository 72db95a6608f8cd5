"""Where the NameServers are, asked of an HTTP server whose text is their list. Rule: DefaultTopAddressing, 5.x."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

from rocketspark.errors import ConfigError, NoNameServer
from rocketspark.transport.dial import parse_addresses

BYTES_MAX = 64 << 10


async def fetch_addresses(url: str, timeout_ms: float) -> list[str]:
    """The addresses that the URL's text names. Raises NoNameServer if it cannot be had or names none."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"namesrv_url {url!r}: http://host:port/path is needed")
    try:
        text = await asyncio.to_thread(_get, url, timeout_ms / 1000)
        return parse_addresses(text.strip())
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise NoNameServer(f"no NameServer addresses from {url}: {reason}", address=url) from None


def _get(url: str, timeout_s: float) -> str:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        found: bytes = answer.read(BYTES_MAX)
    return found.decode()
