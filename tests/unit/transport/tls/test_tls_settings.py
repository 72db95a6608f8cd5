"""Settings of TLS: where they may stand, who wins, what is refused in one line, and that no password shows."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.support.certificates import Issuer

from rocketspark.broker.broker_conf import settings_from
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.text import shown
from rocketspark.namesrv.settings import Settings as NameServerSettings
from rocketspark.transport.tls import ClientTls, TlsSettings, client_tls
from rocketspark.transport.tls.server_contexts import ServerContexts
from rocketspark.transport.tls.settings import KEYS, from_values, gathered, variable

pytestmark = pytest.mark.shows(
    "keys of tls.properties, in .conf files, environment, options; encrypted keys; certificates of clients",
)

MARKER = "s3cr3t-marker"


def test_options_win_over_the_environment_that_over_a_conf_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.server.mode=disabled\ntls.server.certPath=1\ntls.server.keyPath=1\ntls.protocols=TLSv1.3\nodd=1\n"
    )
    conf = {"tls.server.mode": "permissive", "tls.server.certPath": "2", "tls.server.keyPath": "2"}
    environ = {"ROCKETMQ_TLS_SERVER_CERTPATH": "3", "ROCKETMQ_TLS_SERVER_KEYPATH": "3"}
    options = {"tls.config.file": str(file), "tls.server.keyPath": "4", "tls.server.mode": None}
    found, warnings = gathered(conf, options, environ)
    assert (found.mode, found.cert_path, found.key_path, found.protocols) == ("permissive", "3", "4", "TLSv1.3")
    assert warnings == [f"{file}: unknown key {shown('odd')!r} is ignored"]


def test_a_file_that_is_named_must_be_there_and_the_default_one_need_not(tmp_path: Path) -> None:
    assert gathered({}, {}, {}) == (TlsSettings(), [])
    with pytest.raises(ConfigError, match=r"tls.config.file=.*absent cannot be read: No such file"):
        gathered({"tls.config.file": str(tmp_path / "absent")}, {}, {})


def test_files_for_own_connections_must_be_there_at_the_start(tmp_path: Path) -> None:
    for key in ("tls.client.trustCertPath", "tls.client.certPath"):
        with pytest.raises(ConfigError, match=r"tls.client: tls_.*=/absent cannot be read"):
            gathered({key: "/absent"}, {}, {})


def test_names_of_the_environment_are_no_two_keys() -> None:
    assert len({variable(key) for key in KEYS}) == len(KEYS)
    assert variable("tls.server.need.client.auth") == "ROCKETMQ_TLS_SERVER_NEED_CLIENT_AUTH"
    assert variable("proxyProtocolNetworks") == "ROCKETMQ_PROXY_PROTOCOL_NETWORKS"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tls.server.mode": "on"}, "tls.server.mode='on': disabled, permissive, enforcing are known"),
        ({"tls.test.mode.enable": "1"}, "tls.test.mode.enable='1': true, false are known"),
        ({"tls.server.need.client.auth": "want"}, "none, optional, require are known"),
        ({"tls.client.verify": "some"}, "full, ca, none are known"),
        ({"tls.server.certPath": "c"}, "tls.server.certPath needs tls.server.keyPath"),
        ({"tls.server.keyPath": "k"}, "tls.server.keyPath needs tls.server.certPath"),
        (
            {"tls.server.need.client.auth": "require", "tls.test.mode.enable": "true"},
            "require needs tls.server.trustCertPath",
        ),
        ({"proxyProtocolNetworks": "10.0.0.1/8"}, "proxyProtocolNetworks='10.0.0.1/8': networks are needed"),
        ({"proxyProtocolNetworks": "all"}, "proxyProtocolNetworks='all': networks are needed"),
        ({"tls.server.keyPassword": "a\x00" + MARKER}, "tls.server.keyPassword: a text of at most"),
        ({"tls.client.keyPath": "k"}, "tls_key is given without tls_cert"),
        ({"tls.client.verify": "ca", "tls.client.serverName": "n", "tls.enable": "true"}, "is not checked with"),
    ],
)
def test_a_wrong_value_is_one_line(values: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(values)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "verify"),
    [
        ({}, None),
        ({"tls.enable": "true"}, "full"),
        ({"useTLS": "TRUE"}, "full"),
        ({"tls.server.mode": "enforcing"}, "full"),
        ({"tls.enable": "true", "tls.client.authServer": "false"}, "none"),
        ({"tls.enable": "true", "tls.client.authServer": "false", "tls.client.verify": "ca"}, "ca"),
        ({"tls.enable": "true", "tls.test.mode.enable": "true"}, "none"),
        ({"tls.enable": "true", "tls.test.mode.enable": "true", "tls.client.trustCertPath": "c"}, "full"),
    ],
)
def test_how_a_server_connects_to_others(values: dict[str, str], verify: str | None) -> None:
    own = from_values(values).client()
    assert (own and own.verify) == verify


def test_an_operator_is_told_of_what_checks_nobody() -> None:
    values = {"tls.server.authClient": "true", "tls.enable": "true", "tls.client.authServer": "false"}
    told = from_values(values).warnings()
    assert ["asks nobody" in told[0], "are not checked" in told[1]] == [True, True]


def test_passwords_stand_in_no_text_of_the_settings() -> None:
    values = {"tls.server.keyPassword": MARKER, "tls.client.keyPassword": MARKER, "tls.client.certPath": "c"}
    found = from_values(values)
    own = found.client(True)
    assert own is not None
    assert own.key_password == MARKER
    assert MARKER not in repr(found) + str(found) + repr(own)


def test_no_server_shows_or_changes_them(tmp_path: Path) -> None:
    values = {"tls.server.keyPassword": MARKER, "tls.server.mode": "disabled", "useTLS": "true"}
    names, controller = NameServerSettings(), ControllerSettings(values)
    assert names.take(values) == controller.unknown == []
    broker, unknown = settings_from(values)
    assert unknown == []
    assert (names.tls.mode, controller.tls.mode, broker.tls.mode) == ("disabled",) * 3
    assert (names.tls.enable, controller.tls.enable, broker.use_tls) == (True,) * 3
    for shown_to_all in (names.document(), controller.document(), str(broker.properties()), repr(broker)):
        assert MARKER not in shown_to_all
        assert "tls.server" not in shown_to_all.replace("TlsSettings(mode='disabled'", "")
    for server in (names, controller):
        with pytest.raises(ServerError, match=r"tls\.server\.mode cannot change while"):
            server.update("tls.server.mode=permissive")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    one, hidden = issuer.pair("one"), issuer.pair("hidden", password="right")
    other = issuer.pair("other")
    text = tmp_path / "text.pem"
    text.write_text("nothing")

    def load(cert: str, key: str, **more: str) -> None:
        contexts = ServerContexts(TlsSettings(cert_path=cert, key_path=key, **more))
        contexts.load()
        assert contexts.context is not None

    load(*one)
    load(*hidden, key_password="right")
    for error, call in {
        "tls.server.certPath=/absent cannot be read: No such file": ("/absent", one.key),
        f"tls.server.keyPath={other.key} does not belong to the certificate in {one.cert}": (one.cert, other.key),
        f"tls.server.keyPath={hidden.key}: it is encrypted, and no password is given": hidden,
        f"tls.server.certPath={text}, tls.server.keyPath={one.key}: a certificate and its key in PEM": (
            str(text),
            one.key,
        ),
        f"tls.server.certPath={tmp_path} cannot be read: Is a directory": (str(tmp_path), one.key),
    }.items():
        with pytest.raises(ConfigError) as caught:
            load(*call)
        assert error in str(caught.value)
    with pytest.raises(ConfigError, match="its password is wrong"):
        load(*hidden, key_password="wrong")
    with pytest.raises(ConfigError, match=r"tls.server.trustCertPath=.*text.pem: no certificates"):
        load(*one, need_client_auth="require", trust_path=str(text))
    with pytest.raises(ConfigError, match="enforcing needs a certificate"):
        ServerContexts(TlsSettings(mode="enforcing")).load()


def test_versions_and_ciphers_can_be_narrowed_only(tmp_path: Path) -> None:
    pair = Issuer(tmp_path).pair()

    def made(**more: str) -> ssl.SSLContext:
        contexts = ServerContexts(TlsSettings(cert_path=pair.cert, key_path=pair.key, **more))
        contexts.load()
        assert contexts.context is not None
        return contexts.context

    assert made().minimum_version == ssl.TLSVersion.TLSv1_2
    assert made(protocols="TLSv1.3").minimum_version == ssl.TLSVersion.TLSv1_3
    narrow = made(protocols="TLSv1.2", ciphers="ECDHE-ECDSA-AES128-GCM-SHA256,TLS_AES_128_GCM_SHA256")
    assert narrow.maximum_version == ssl.TLSVersion.TLSv1_2
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" not in {c["name"] for c in narrow.get_ciphers()}
    for values, text in (({"protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3 are known"), ({"ciphers": "X"}, "none of them")):
        with pytest.raises(ConfigError, match=text):
            made(**values)


def test_options_of_clients(tmp_path: Path) -> None:
    assert client_tls(False) is None
    ca = Issuer(tmp_path).ca
    found = client_tls(True, tls_ca=Path(ca), tls_server_name="n")
    assert found == ClientTls(ca=ca, server_name="n")
    assert found.name_of("127.0.0.1") == "n"
    assert ClientTls().name_of("fe80::1%eth0") == "fe80::1"
    for call, text in {
        (False, "tls_ca", ca): "tls_ca is given, but use_tls is not",
        (True, "tls_ca", "/absent"): "tls_ca=/absent cannot be read",
        (True, "tls_verify", "yes"): "tls_verify='yes': full, ca, none are known",
        (True, "tls_key", "k"): "tls_key is given without tls_cert",
        (True, "tls_key_password", "k"): "tls_key_password is given without tls_cert",
    }.items():
        with pytest.raises(ConfigError, match=text):
            client_tls(call[0], **{call[1]: call[2]})  # type: ignore[arg-type]


def test_without_the_package_that_makes_certificates_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketspark\[tls\]'"):
        ServerContexts(TlsSettings(test_mode=True)).load()
