"""What `server --secure` keeps: made once, whole whenever a kill came, closed to others, and shown to nobody."""

from __future__ import annotations

import contextlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.stand_ins import like

from rocketspark.broker.access import secure_folder
from rocketspark.broker.access.secure_folder import ADMIN_SECRET, CERTIFICATE, INNER, INNER_SECRET, KEY, load, prepare
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.transport.tls import certificate_files
from rocketspark.transport.tls.settings import from_values

pytest.importorskip("cryptography")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_it_is_made_once_and_closed(tmp_path: Path) -> None:
    made = prepare(tmp_path / "secure", ["127.0.0.1"])
    assert made.is_new
    before = contents(made.folder)
    assert set(before) == {CERTIFICATE, KEY, ADMIN_SECRET, INNER_SECRET}
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    for name in (KEY, ADMIN_SECRET, INNER_SECRET):
        assert stat.S_IMODE((made.folder / name).stat().st_mode) == 0o600
    again = prepare(tmp_path / "secure", ["127.0.0.1"])
    assert not again.is_new
    assert contents(made.folder) == before
    assert load(made.folder).inner_secret == made.inner_secret
    assert made.admin_password not in repr(made)
    assert made.inner_secret not in repr(made)


@pytest.mark.parametrize("lost", [CERTIFICATE, KEY, INNER_SECRET])
def test_what_a_kill_left_half_is_made_whole(tmp_path: Path, lost: str) -> None:
    made = prepare(tmp_path)
    (made.folder / lost).unlink()
    again = prepare(tmp_path)
    assert again.is_new == (lost == INNER_SECRET)
    settings = BrokerSettings(store_root=str(tmp_path / "store"))
    again.apply(settings)
    settings.check()


def test_what_is_lost_takes_nothing_else_with_it(tmp_path: Path) -> None:
    made = prepare(tmp_path)
    (tmp_path / INNER_SECRET).unlink()
    assert prepare(tmp_path).admin_password == made.admin_password


def test_a_folder_that_others_may_write_is_refused_and_one_they_may_read_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / INNER_SECRET).write_text("planted")
    with pytest.raises(ConfigError, match="may be written by others"):
        prepare(tmp_path)
    tmp_path.chmod(0o755)
    prepare(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize(("owner", "me", "trusted"), [(7, 7, True), (0, 7, True), (7, 0, True), (8, 7, False)])
def test_a_folder_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: int, me: int, trusted: bool
) -> None:
    found = like(os, geteuid=lambda: me)
    monkeypatch.setattr(secure_folder, "os", found)
    monkeypatch.setattr(Path, "stat", lambda path: os.stat_result((0o40700, 0, 0, 1, owner, 0, 0, 0, 0, 0)))
    with contextlib.nullcontext() if trusted else pytest.raises(ConfigError, match=r"another user \(number 8\)"):
        secure_folder._close_to_others(tmp_path)


def test_two_first_starts_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: prepare(tmp_path / "secure"), range(4)))
    assert len({(door.admin_password, door.inner_secret) for door in made}) == 1
    assert [door.is_new for door in made].count(True) == 1


def test_a_pair_is_made_anew_when_it_does_not_serve_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepare(tmp_path, ["127.0.0.1", "0.0.0.0"])
    first = made.ca.read_bytes()
    prepare(tmp_path, ["localhost"])
    assert made.ca.read_bytes() == first
    prepare(tmp_path, ["broker.example"])
    second = made.ca.read_bytes()
    assert second != first
    (tmp_path / KEY).write_bytes(certificate_files.make_pair().key)
    prepare(tmp_path, ["broker.example"])
    third = made.ca.read_bytes()
    assert third != second
    monkeypatch.setattr(secure_folder, "DAYS_LEFT_MIN", 400)
    prepare(tmp_path, ["broker.example"])
    assert made.ca.read_bytes() != third


def test_a_store_that_has_users_gets_no_administrator_again(tmp_path: Path) -> None:
    made = prepare(tmp_path / "secure")
    new = BrokerSettings(store_root=str(tmp_path / "new"))
    made.apply(new)
    assert [user.username for user in new.access.first_users()] == ["admin", INNER]
    (tmp_path / "old/config").mkdir(parents=True)
    (tmp_path / "old/config/accessControl.json").write_text("{}")
    old = BrokerSettings(store_root=str(tmp_path / "old"))
    made.apply(old)
    assert [user.username for user in old.access.first_users()] == [INNER]
    assert (old.authentication, old.authorization, old.tls.mode) == (True, True, "enforcing")


def test_with_a_certificate_of_ones_own_tls_alone_is_taken_too(tmp_path: Path) -> None:
    made = prepare(tmp_path / "secure")
    own = {"tls.server.certPath": "own.pem", "tls.server.keyPath": "own.key", "tls.server.mode": "permissive"}
    for trusted, more in (("own.pem", {}), ("ca.pem", {"tls.client.trustCertPath": "ca.pem"})):
        found = made.tls_over(from_values(own | more))
        client = found.client()
        assert (found.mode, found.cert_path, client and client.ca) == ("enforcing", "own.pem", trusted)
        assert from_values(found.given) == found


def test_a_removed_first_password_is_not_needed(tmp_path: Path) -> None:
    made = prepare(tmp_path)
    (tmp_path / ADMIN_SECRET).unlink()
    again = prepare(tmp_path)
    assert (again.is_new, again.admin_password, again.inner_secret) == (False, "", made.inner_secret)


def test_what_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no cert.pem: name the folder `secure`"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable, match="cannot be written"):
        prepare(tmp_path / "file" / "secure")
    prepare(tmp_path / "a")
    (tmp_path / "a" / INNER_SECRET).write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        load(tmp_path / "a")
    (tmp_path / "a" / INNER_SECRET).write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        load(tmp_path / "a")


def test_the_first_password_is_shown_on_a_terminal_and_in_no_log(tmp_path: Path) -> None:
    from rocketspark.cli.serving.secure import how_to_enter

    door = secure_folder.prepare(tmp_path / "secure")
    assert door.is_new
    ca = str(door.ca)
    told, logged = (how_to_enter(door, "127.0.0.1:9876", ca=ca, on_terminal=seen) for seen in (True, False))
    assert door.admin_password in told
    assert door.admin_password not in logged
    assert door.inner_secret not in told + logged
    assert logged.count(str(door.folder / "admin.secret")) == 2
