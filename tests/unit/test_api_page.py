"""The pages on the Python API and on the commands are what the source says today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.shows("reference made from code: the Python API, every command with its options")
@pytest.mark.parametrize("script", ["api_page", "command_page"])
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python print signatures differently")
def test_the_page_is_what_the_source_says(script: str) -> None:
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page(), f"run: python scripts/{script}.py"
