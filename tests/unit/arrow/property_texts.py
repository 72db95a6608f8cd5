"""Texts of properties as a record may hold them: anything between tidy and broken."""

from __future__ import annotations

from hypothesis import strategies as st

odd_properties = st.lists(
    st.one_of(
        st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", b"a b", b"  x  y ", b"\xff", b"\xc2\x85"]),
        st.text(max_size=6).map(lambda t: t.encode("utf-8", "replace")),
    ),
    max_size=12,
).map(b"".join)
