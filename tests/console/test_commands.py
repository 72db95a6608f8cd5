"""`rocketspark console` and `server --console-port` as processes, and the files that browsers get."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.console.scene import until

from rocketspark.console import assets
from rocketspark.testing import run_cluster
from rocketspark.transport.tls import certificate_files

COMMAND = [sys.executable, "-m", "rocketspark.cli.main"]
TIMEOUT_S = 60


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A command that runs, and the line by which it says that it is ready."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline(), process
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors


def fetched(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as answer:
        return str(answer.read().decode())


@pytest.mark.shows("the console: `rocketspark console`, plain and by TLS, and `server --console-port`")
def test_a_console_runs_before_a_cluster_and_ends_cleanly(tmp_path: Path) -> None:
    with run_cluster() as cluster, running(tmp_path, "console", "-n", cluster.namesrv, "-p", "0") as (line, _):
        found = re.fullmatch(r"ready console=(127\.0\.0\.1:\d+) url=(http://127\.0\.0\.1:\d+/)\n", line)
        assert found is not None
        assert cluster.brokers[0] in fetched(found[2])


@pytest.mark.shows("the console: `rocketspark console`, plain and by TLS, and `server --console-port`")
def test_a_console_speaks_tls(tmp_path: Path) -> None:
    with run_cluster(secure=True) as cluster:
        folder = Path(cluster.client_options["tls_ca"]).parent
        cert, key = folder / "cert.pem", folder / "key.pem"
        words = ["-n", cluster.namesrv, "--tls-ca", str(cert), "-p", "0"]
        words += ["--port-tls-cert", str(cert), "--port-tls-key", str(key)]
        with running(tmp_path, "console", *words) as (line, _):
            url = line.split("url=")[1].strip()
            assert url.startswith("https://")
            context = ssl.create_default_context(cafile=cluster.client_options["tls_ca"])
            page = fetched(url, context)
            assert "Secret key" in page


@pytest.mark.shows("certificates replaced without a restart, under load")
def test_a_console_takes_a_new_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def replace() -> None:
        pair = certificate_files.make_pair()
        key.write_bytes(pair.key)
        cert.write_bytes(pair.certificate)

    replace()
    words = ["-n", "127.0.0.1:1", "-p", "0", "--port-tls-cert", str(cert), "--port-tls-key", str(key)]
    with running(tmp_path, "console", *words) as (line, _):
        host, port = line.split("console=")[1].split()[0].split(":")
        for _ in range(2):
            # Where an address is dialled no server's name is told.
            until(lambda: ssl.get_server_certificate((host, int(port))).strip() == cert.read_text().strip())
            replace()


@pytest.mark.shows("the console: `rocketspark console`, plain and by TLS, and `server --console-port`")
def test_a_server_brings_its_console(tmp_path: Path) -> None:
    words = ["--namesrv-port", "0", "--broker-port", "0", "--no-grpc", "--console-port", "0", "--store", "store"]
    with running(tmp_path, "server", *words) as (line, _):
        found = re.fullmatch(r"ready namesrv=(\S+) broker=(\S+) console=(127\.0\.0\.1:\d+)\n", line)
        assert found is not None
        assert found[2] in fetched(f"http://{found[3]}/brokers")


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with run_cluster() as cluster:
        port = cluster.namesrv.rpartition(":")[2]
        words = [*COMMAND, "console", "-n", cluster.namesrv, "-p", port]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"error: port {port} on 127.0.0.1 is in use: choose another (0 takes a free one)"
    )


# -- files of npm packages ---------------------------------------------------------------------------------------------


def packed(folder: Path, name: str = "toy", **files: str) -> Path:
    """A folder with an npm that "packs" a tarball with these files, and an assets.toml that names its hash."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    (folder / "toy.tgz").write_bytes(data.getvalue())
    npm = folder / "npm"
    npm.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "{folder}/toy.tgz" "$last/toy-1.0.0.tgz"\n')
    npm.chmod(0o755)
    digest = base64.b64encode(hashlib.sha512(data.getvalue()).digest()).decode()
    text = f'for = "console"\nname = "{name}"\nversion = "1.0.0"\nintegrity = "sha512-{digest}"\n'
    (folder / "assets.toml").write_text(f'[[package]]\n{text}files = {{ "a.js" = "b.js" }}\n')
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    packed(tmp_path, **{"a.js": "one"})
    monkeypatch.setattr(assets, "HERE", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.shows("the console: files of npm packages by version and hash, fetched once")
def test_files_are_fetched_once(place: Path) -> None:
    target = place / "vendor"
    assert not assets.are_there("console", target)
    assert (assets.fetch("console", target), assets.fetch("console", target)) == (True, False)
    assert (target / "b.js").read_text() == "one"
    assert assets.are_there("console", target)
    (place / "assets.toml").write_text((place / "assets.toml").read_text().replace("1.0.0", "1.0.1"))
    assert not assets.are_there("console", target)


@pytest.mark.shows("the console: files of npm packages by version and hash, fetched once")
def test_another_hash_is_refused_and_nothing_is_left(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "toy.tgz").write_bytes((place / "toy.tgz").read_bytes() + b"\0")
    assert assets.main(["console", str(place / "vendor")]) == 1
    assert "toy@1.0.0 has another hash than assets.toml says" in capsys.readouterr().err
    assert not (place / "vendor").exists()


def test_a_package_without_the_file_is_refused(place: Path) -> None:
    (place / "assets.toml").write_text((place / "assets.toml").read_text().replace("a.js", "c.js"))
    with pytest.raises(assets.AssetsError, match=re.escape("toy 1.0.0 has no file c.js")):
        assets.fetch("console", place / "vendor")


def test_an_npm_that_fails_says_its_reason(place: Path) -> None:
    (place / "npm").write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    with pytest.raises(assets.AssetsError, match=r"could not fetch toy@1\.0\.0: npm error code ENOTFOUND"):
        assets.fetch("console", place / "vendor")


def test_without_npm_it_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place / "nothing"))
    with pytest.raises(assets.AssetsError, match="install nodejs and npm"):
        assets.fetch("console", place / "vendor")


@pytest.mark.shows("the console: files of npm packages by version and hash, fetched once")
def test_what_is_named_is_whole() -> None:
    for package in assets.packages("console") + assets.packages("tests") + assets.packages("site"):
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"])
        assert package["licence"]
    licences = {
        name for package in assets.packages("console") for name in package["files"].values() if "LICENSE" in name
    }
    assert len(licences) == len(assets.packages("console"))
    assert json.dumps(assets.packages("console"))
