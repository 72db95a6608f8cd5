"""CRC-32 by whichever library is installed."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from rocketspark.protocol.message import checksums


@given(st.binary(max_size=9000), st.integers(0, 100))
def test_it_is_zlib_s_of_bytes_and_of_parts_of_buffers(data: bytes, start: int) -> None:
    assert checksums.crc32(data) == isal_zlib.crc32(data) == zlib.crc32(data)
    assert checksums.crc32(memoryview(bytearray(data))[start:]) == zlib.crc32(data[start:])


def test_the_quick_one_is_taken_where_it_is_installed_and_zlib_s_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checksums.crc32 is isal_zlib.crc32
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "isal.isal_zlib", None)
        assert importlib.reload(checksums).crc32 is zlib.crc32
    assert importlib.reload(checksums).crc32 is isal_zlib.crc32
