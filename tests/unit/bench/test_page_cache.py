"""What the bench does to memory before a case."""

from __future__ import annotations

from pathlib import Path

from bench.page_cache import fill_page_cache, free_bytes


def test_a_file_without_blocks_is_read_whole(tmp_path: Path) -> None:
    assert fill_page_cache(tmp_path, 20 << 20) == 20 << 20
    (path,) = tmp_path.iterdir()
    assert (path.stat().st_size, path.stat().st_blocks) == (20 << 20, 0)
    # Pages of the file that was read before are no more.
    assert fill_page_cache(tmp_path, 1) == 1
    assert path.stat().st_size == 1
    assert 0 < free_bytes() < 1 << 50
