"""Texts as a hostile peer would send them, and what may be seen of them. `MARK` is in each, so that a test finds it."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

MARK = "mark"
TEXTS = (
    "mark\x1b[31mred\x1b[0m",
    "mark\x1b]0;title\x07\x1b]8;;http://evil\x1b\\link",
    "mark\x9b2J\x90\x9c",
    "mark\r\nERROR forged line\n2026-01-01 INFO",
    "mark\x00\x08\x7f\x0b\x0c",
    "mark\u202egnp.exe\u2066\u2069\u061c\u200e",
    "mark\u200b\u200d\u2060\ufeff\u00ad\u3164\U000e0041",
    "mark\u2028\u2029\u0085",
    "[bold red]mark[/] [link=http://evil]x[/link] [/nothing]",
    "<script>mark()</script>&amp;\"'><img src=x onerror=1>",
    "mark $\\frac{a}{$ {0} %s %(x)s `x` $(reboot) ; DROP TABLE t --",
    "../../mark/..",
    'mark","x":"\\u0000',
    "=cmd|'/c mark'!A1",
    "mark\ud800",
)
# The whole of Unicode, the nasty parts more often.
ANY = st.text(
    st.one_of(st.sampled_from("\x1b\x9b\n\r\x00\u202e\u200b\u2028[]<>&\"'$%\\/."), st.characters()), max_size=60
)
_SEEN_FORMATS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")


def unseen(text: str, *, allowed: str = "") -> set[str]:
    """What a terminal would act on, or an eye would miss."""
    return {
        c
        for c in set(text) - set(allowed) - _SEEN_FORMATS
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and not 0x13430 <= ord(c) <= 0x1343F
    }
