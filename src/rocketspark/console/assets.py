"""Files of npm packages that browsers get: fetched by version and hash, never committed (assets.toml names them).

Rule: it imports the standard library alone, as it also runs before RocketSpark is installed: `python assets.py console
FOLDER`.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VENDOR = HERE / "static" / "vendor"
STAMP = "assets.sha256"
HOW = "the console's files for browsers are missing: get them with `make console-assets` (it needs npm once)"


class AssetsError(Exception):
    """Files could not be fetched; the text says why."""


def packages(kind: str) -> list[dict[str, Any]]:
    """Return the packages of assets.toml that are for `kind`: "console", "tests", or "site"."""
    found = tomllib.loads((HERE / "assets.toml").read_text("utf-8"))["package"]
    return [package for package in found if package["for"] == kind]


def are_there(kind: str = "console", folder: Path = VENDOR) -> bool:
    """Tell whether the folder holds the files of this kind in the versions that are named now."""
    names = [name for package in packages(kind) for name in package["files"].values()]
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text("utf-8") == _stamp(kind) and all((folder / n).is_file() for n in names)


def fetch(kind: str = "console", folder: Path = VENDOR) -> bool:
    """Put the files of this kind into the folder, by `npm pack`; returns False if they were there. Raises
    AssetsError.
    """
    if are_there(kind, folder):
        return False
    npm = shutil.which("npm")
    if npm is None:
        raise AssetsError("npm is needed to fetch files for browsers once: install nodejs and npm")
    with tempfile.TemporaryDirectory() as place:
        ready = Path(place) / "ready"
        ready.mkdir()
        for package in packages(kind):
            _take(_packed(npm, package, Path(place)), package, ready)
        (ready / STAMP).write_text(_stamp(kind), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ready, folder)
    return True


def _stamp(kind: str) -> str:
    return hashlib.sha256(repr(packages(kind)).encode()).hexdigest()


def _packed(npm: str, package: dict[str, Any], place: Path) -> Path:
    """Return the package's tarball, whose hash was compared."""
    named = f"{package['name']}@{package['version']}"
    target = place / "packed" / package["name"].replace("/", "-")
    target.mkdir(parents=True)
    try:
        done = subprocess.run(
            [npm, "pack", named, "--ignore-scripts", "--loglevel=error", "--pack-destination", str(target)],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssetsError(f"npm could not fetch {named} within two minutes") from None
    found: list[Path] = list(target.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise AssetsError(f"npm could not fetch {named}: {lines[0]}")
    kind, _, wanted = package["integrity"].partition("-")
    came = base64.b64encode(hashlib.new(kind, found[0].read_bytes()).digest()).decode()
    if came != wanted:
        raise AssetsError(f"{named} has another hash than assets.toml says: {kind}-{came}")
    return found[0]


def _take(tarball: Path, package: dict[str, Any], target: Path) -> None:
    with tarfile.open(tarball) as files:
        for path, name in package["files"].items():
            try:
                member = files.extractfile(f"package/{path}")
            except KeyError:
                member = None
            if member is None:
                raise AssetsError(f"{package['name']} {package['version']} has no file {path}")
            (target / name).write_bytes(member.read())


def main(words: list[str]) -> int:
    """Fetch the files of one kind into a folder: `assets.py [console|tests|site] [FOLDER]`; returns the exit code."""
    kind = words[0] if words else "console"
    folder = Path(words[1]) if len(words) > 1 else VENDOR
    try:
        if fetch(kind, folder):
            print(f"fetched {', '.join(package['name'] for package in packages(kind))} into {folder}", file=sys.stderr)
    except AssetsError as e:
        print(f"assets: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
