"""Spark's Python processes and the archive that Spark puts first on their path."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from rocketspark.spark.compiled_pyspark import prefer

pytestmark = pytest.mark.shows(
    "a stream begins sooner: PySpark compiled, few imports",
    "mended: the .pth file that has PySpark compiled took another PySpark that stood behind Spark's archive "
    "on PYTHONPATH, had a copy of this package that a job ships ignored, and printed a traceback at every "
    "start beside an older copy",
)

SPARK = Path(importlib.util.find_spec("pyspark").submodule_search_locations[0])  # type: ignore[union-attr,index]
ARCHIVE = SPARK / "python" / "lib" / "pyspark.zip"


def said(program: str, *path: Path, options: Sequence[str] = ()) -> str:
    """What a Python process prints that has these on its PYTHONPATH; nothing on stderr."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def imported(archive: Path, *more: Path) -> str:
    """Where a process of Spark's has PySpark from."""
    py4j = (SPARK / "python" / "lib").glob("py4j-*-src.zip")
    return said("import pyspark.daemon; print(pyspark.__file__)", archive, *py4j, *more)


def test_a_process_of_spark_s_has_pyspark_compiled() -> None:
    assert imported(ARCHIVE) == str(SPARK / "__init__.py")


def test_another_spark_s_archive_stays_what_it_is(tmp_path: Path) -> None:
    other = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/daemon.py", "")
    assert imported(other) == str(other / "pyspark" / "__init__.py")


def test_another_pyspark_that_comes_behind_the_archive_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('another one')")
    assert imported(ARCHIVE, tmp_path) == str(ARCHIVE / "pyspark" / "__init__.py")


def test_a_copy_of_this_package_that_spark_ships_is_the_one_that_is_used(tmp_path: Path) -> None:
    """A job adds it to the path of a Python that has started, in front of what is installed there."""
    (tmp_path / "rocketspark").mkdir()
    (tmp_path / "rocketspark" / "__init__.py").touch()
    program = f"import sys; sys.path.insert(1, {str(tmp_path)!r}); import rocketspark; print(rocketspark.__file__)"
    assert said(program, ARCHIVE) == str(tmp_path / "rocketspark" / "__init__.py")


def test_an_older_copy_of_this_package_on_the_path_costs_the_gain_alone(tmp_path: Path) -> None:
    (tmp_path / "rocketspark").mkdir()
    (tmp_path / "rocketspark" / "__init__.py").touch()
    program = "import pyspark; print(pyspark.__file__)"
    assert said(program, tmp_path, ARCHIVE) == str(ARCHIVE / "pyspark" / "__init__.py")


@pytest.mark.parametrize("options", [(), ("-S",), ("-I",), ("-E",)], ids=" ".join)
def test_odd_paths_make_no_noise(options: Sequence[str], tmp_path: Path) -> None:
    odd = (Path("pyspark.zip"), tmp_path / "a b\nü\udcff" / ARCHIVE.name, Path("//python/lib/pyspark.zip"), Path("."))
    assert said("", *odd, options=options) == ""


def test_a_python_without_spark_s_archive_imports_nothing_of_ours() -> None:
    assert said("import sys; print([name for name in sys.modules if 'rocketspark' in name])", Path(".")) == "[]"


def test_a_path_that_is_done_stays_as_it_is(tmp_path: Path) -> None:
    made(tmp_path / "spark" / "python" / "pyspark")
    path = [str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip"), "/stdlib"]
    prefer(path)
    once = list(path)
    prefer(path)
    assert path == once


def made(folder: Path) -> str:
    folder.mkdir(parents=True)
    for name in ("__init__.py", "version.py"):
        (folder / name).touch()
    return str(folder)


def test_of_a_distribution_the_folder_beside_the_archive_comes_first(tmp_path: Path) -> None:
    made(tmp_path / "spark" / "python" / "pyspark")
    archive = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    path = ["", archive, "/py4j.zip", "/stdlib"]
    prefer(path)
    assert path == ["", str(tmp_path / "spark" / "python"), archive, "/py4j.zip", "/stdlib"]


@pytest.mark.parametrize("linked", [False, True])
def test_of_pyspark_from_pypi_the_archive_goes_last_and_nothing_moves(tmp_path: Path, linked: bool) -> None:
    spark = made(tmp_path / "site-packages" / "pyspark")
    site = tmp_path / "site-packages"
    if linked:
        (tmp_path / "lib64").symlink_to(site)
        site = tmp_path / "lib64"
    archive = os.path.join(spark, "python", "lib", "pyspark.zip")
    path = ["", archive, "/py4j.zip", "/stdlib", str(site)]
    prefer(path)
    assert path == ["", "/py4j.zip", "/stdlib", str(site), archive]


@pytest.mark.parametrize("where", ["elsewhere/pyspark", "site-packages/pyspark/old", "site-packages/pyspark"])
def test_without_the_same_pyspark_unpacked_nothing_changes(tmp_path: Path, where: str) -> None:
    if where != "site-packages/pyspark":
        made(tmp_path / "site-packages" / "pyspark")
    path = [f"{tmp_path}/{where}/python/lib/pyspark.zip", f"{tmp_path}/pyspark.zip", f"{tmp_path}/site-packages"]
    before = list(path)
    prefer(path)
    assert path == before
