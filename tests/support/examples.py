"""Which examples hypothesis draws. Rule: the same ones everywhere, so that no machine fails where another passed.

A soak (`make soak-examples`) sets EXAMPLES_TIMES: as many times the examples, all of them new.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("EXAMPLES_TIMES", "0"))

# Machines are shared: how long one example takes says nothing.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", PATIENT, derandomize=True)
settings.register_profile(
    "soak", PATIENT, derandomize=False, database=None, print_blob=True, max_examples=100 * TIMES or 1
)
settings.load_profile("soak" if TIMES else "same")
_make_settings = settings.__init__


def _times_settings(made: settings, *arguments: Any, **more: Any) -> None:
    if "max_examples" in more:
        more["max_examples"] *= TIMES
    _make_settings(made, *arguments, **more)


if TIMES:
    settings.__init__ = _times_settings  # type: ignore[method-assign]
