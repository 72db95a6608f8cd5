"""The pages on the Python API and on the commands are what the source says today."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from rocketspark.admin import Admin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.shows("reference made from code: the Python API, operations, errors, every command with its options")
@pytest.mark.parametrize("script", ["api_page", "command_page"])
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python print signatures differently")
def test_the_page_is_what_the_source_says(script: str) -> None:
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, page in getattr(module, "PAGES", {module.PAGE: module.page}).items():
        assert path.read_text("utf-8") == page(), f"run: python scripts/{script}.py"


def test_every_operation_and_every_result_has_its_place() -> None:
    text = (ROOT / "docs" / "reference" / "admin.md").read_text("utf-8")
    operations = [name for name in dir(Admin) if not name.startswith("_")]
    assert re.findall(r"^### Admin\.(\w+)", text, re.MULTILINE) == sorted(operations)
    answers = re.findall(r"^def \w+\(.*?\) -> (.+)$", text, re.MULTILINE)
    named = {name for answer in answers for name in re.findall(r"[A-Z]\w+", answer)} - {"None", "TopicRoute"}
    assert len(named) > 20
    assert named - set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= {"ReceivedMessage", "SendResult"}


def test_only_classes_for_asyncio_have_coroutine_functions() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    shown = re.findall(r"^### (\w+)\.(\w+)\n\n```text\n(async def|def) ", text, re.MULTILINE)
    assert {cls for cls, _, kind in shown if kind == "async def" and not cls.startswith("Async")} == set()
    kinds = {(cls, name): kind for cls, name, kind in shown}
    assert (kinds["Producer", "send"], kinds["AsyncProducer", "send"]) == ("def", "async def")
    assert (kinds["SimpleConsumer", "ack"], kinds["AsyncSimpleConsumer", "ack"]) == ("def", "async def")
