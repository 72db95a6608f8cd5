"""A context of a locked cluster is enough to work on it, and its keys come to no other one."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from tests.support.cli_calls import call

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "`rocketspark context`, `--context`: clusters by name; a context's keys go to its own address alone"
)


def test_keys_open_their_own_cluster_and_are_told_to_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    heard: list[bytes] = []

    def note(other: socket.socket) -> None:
        while True:
            try:
                connection, _ = other.accept()
            except OSError:  # Closed.
                return
            with connection:
                heard.append(connection.recv(1 << 16))

    with run_cluster(secure=True) as cluster, socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=note, args=(other,), daemon=True).start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        options = cluster.client_options
        (tmp_path / "key").write_text(options["secret_key"])
        keys = ("--access-key", options["access_key"], "--secret-key-file", str(tmp_path / "key"))
        tls = ("--tls-ca", str(options["tls_ca"]))
        for arguments in (
            ("context", "add", "locked", "-n", cluster.namesrv, *keys, *tls, "--use"),
            ("context", "add", "other", "-n", address),
            ("topic", "create", "orders"),
        ):
            done = call(*arguments)
            assert done.exit_code == 0, done.told
        assert json.loads(call("topic", "list", "--json").stdout) == ["orders"]
        assert call("topic", "list", "-n", cluster.namesrv).exit_code == 1
        for elsewhere in (("-n", address), ("--context", "other")):
            assert call("topic", "list", *elsewhere).exit_code == 1
        monkeypatch.setenv("NAMESRV_ADDR", address)
        assert call("topic", "list").exit_code == 1
        assert json.loads(call("topic", "list", "--json", "--context", "locked").stdout) == ["orders"]
        other.shutdown(socket.SHUT_RDWR)
    assert len(heard) >= 3
    assert all(heard)
    for said in heard:
        assert options["access_key"].encode() not in said
        assert b"Signature" not in said
