"""Every recipe of docs/use/recipes.md runs as it stands there, and prints what is shown there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows(
    "docs: options held to the code, recipes run and compared, good practice; `log_sends`",
)

RECIPES = (Path(__file__).resolve().parents[2] / "docs" / "use" / "recipes.md").read_text("utf-8")
SHOWN = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL | re.MULTILINE)
FOUND = {title: (code, output) for title, code, output in SHOWN.findall(RECIPES)}


def test_every_section_is_a_recipe_with_its_output() -> None:
    assert list(FOUND) == re.findall(r"^## (.+)$", RECIPES, re.MULTILINE)
    assert len(FOUND) == RECIPES.count("```python") == RECIPES.count("```text") >= 14


@pytest.mark.parametrize("title", FOUND)
def test_it_prints_what_is_shown(title: str, tmp_path: Path) -> None:
    code, output = FOUND[title]
    name = re.match(r"# (test_\w+\.py)\n", code)
    file = tmp_path / (name[1] if name else "recipe.py")
    file.write_text(code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"] if name else [sys.executable]
    done = subprocess.run([*command, file.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    printed = done.stdout
    if name:
        # Its last line alone, without the time.
        printed = re.sub(r" in [\d.]+s", "", printed.splitlines()[-1]) + "\n"
    # A recipe that shows a broker away has a warning for each attempt that fails, of many a line how many.
    passed = re.compile(r"attempt \d+ to send to topic |\d+ more lines like the next one were left out$")
    told = [line for line in done.stderr.splitlines() if not passed.match(line)]
    assert (printed, told, done.returncode) == (output, [], 0)
