"""Files of a store as they lie there: each is read up to where the next begins, whatever its length."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.store.readonly.read_only_files import ReadOnlyFiles


@pytest.mark.parametrize("second", [b"second", b"sec"])
def test_a_file_that_is_too_long_hides_nothing_of_the_next(second: bytes, tmp_path: Path) -> None:
    for start, content in ((0, b"firstSTRAY"), (5, second), (11, b"third")):
        (tmp_path / f"{start:020d}").write_bytes(content)
    files = ReadOnlyFiles([str(tmp_path)])
    whole = b"first" + second
    for at in range(len(whole)):
        assert files.read(at, len(whole) - at) == whole[at:]
    # After a file that is too short nothing is read: what would come is not what lies there.
    assert files.read(0, 16) == (whole + b"third" if len(whole) == 11 else whole)
