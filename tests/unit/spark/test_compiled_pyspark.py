"""Spark's Python processes and the archive that Spark puts first on their path."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rocketspark.spark.compiled_pyspark import prefer

SPARK = Path(importlib.util.find_spec("pyspark").submodule_search_locations[0])  # type: ignore[union-attr,index]
ARCHIVE = SPARK / "python" / "lib" / "pyspark.zip"


def imported(archive: Path) -> str:
    """Where a process of Spark's has PySpark from."""
    path = os.pathsep.join([str(archive), *map(str, (SPARK / "python" / "lib").glob("py4j-*-src.zip"))])
    program = "import pyspark.daemon; print(pyspark.__file__)"
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_process_of_spark_s_has_pyspark_compiled() -> None:
    assert imported(ARCHIVE) == str(SPARK / "__init__.py")


def test_another_spark_s_archive_stays_what_it_is(tmp_path: Path) -> None:
    other = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/daemon.py", "")
    assert imported(other) == str(other / "pyspark" / "__init__.py")


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
