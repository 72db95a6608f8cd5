"""The page on the Python API is what the docstrings and signatures say today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.shows("reference made from code: the Python API from its docstrings")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python print signatures differently")
def test_the_page_is_what_the_source_says() -> None:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page(), "run: python scripts/api_page.py"
