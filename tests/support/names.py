"""Names of topics and groups that nothing before used on the same servers, a test's own attempt before included."""

from __future__ import annotations

from collections import Counter

_asked: Counter[str] = Counter()


def own_name(name: str) -> str:
    """Return the name; from the second time that it is asked for, with the number of that time behind it.

    A test that failed and is run again finds servers of the whole run as it left them: by the same names it would read
    what it sent before, from where its group stopped.
    """
    _asked[name] += 1
    return name if _asked[name] == 1 else f"{name}-{_asked[name]}"
