"""Checks what is in dist/: the wheel holds the sources and nothing else; the archive what a wheel is made from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Fetched by version and hash (src/rocketspark/console/assets.toml); each has its licence beside it.
VENDOR = "rocketspark/console/static/vendor/"
BESIDE = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "scripts/build_console_assets.py", "PKG-INFO"}


def sources() -> set[str]:
    """What git holds below src/, by its path there."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.removeprefix("src/") for line in listed.stdout.splitlines()}


def mistakes() -> list[str]:
    """Return what is wrong, a line each."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    (archive,) = (ROOT / "dist").glob("*.tar.gz")
    wanted = sources()
    found = []
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        vendor = {name for name in names if name.startswith(VENDOR)}
        found += [f"wheel: {name} is missing" for name in sorted(wanted - names)]
        found += [f"wheel: {name} is not of the sources" for name in sorted(names - wanted - vendor)]
        if not {"htmx", "uPlot"} <= {part for name in vendor for part in ("htmx", "uPlot") if part in name}:
            found.append("wheel: the console's files for browsers are missing")
        info = next(name.partition("/")[0] for name in file.namelist() if ".dist-info/" in name)
        entry_points = file.read(f"{info}/entry_points.txt").decode()
        found += [
            f"wheel: no entry points {kind}" for kind in ("console_scripts", "pytest11") if kind not in entry_points
        ]
        metadata = Parser().parsestr(file.read(f"{info}/METADATA").decode())
        for field in ("Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
            if not metadata[field]:
                found.append(f"wheel: its metadata have no {field}")
        if not any("LICENSE" in name for name in file.namelist() if ".dist-info/" in name):
            found.append("wheel: no licence")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    kept = {f"src/{name}" for name in wanted} | BESIDE
    found += [f"archive: {name} is missing" for name in sorted(kept - inside)]
    vendor = {name for name in inside if name.startswith(f"src/{VENDOR}")}
    found += [f"archive: {name} does not belong there" for name in sorted(inside - kept - vendor - {".gitignore", ""})]
    return found


if __name__ == "__main__":
    wrong = mistakes()
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    sys.exit(bool(wrong))
