"""How long tests wait for what must come: machines are busy, and only what hangs takes minutes."""

from __future__ import annotations

LIMIT_S = 120.0
LIMIT_MS = 120_000
