"""A NameServer's settings: what is no number, too long or unprintable changes nothing and is said shortly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ServerError
from rocketspark.namesrv.settings import SCAN_MS_MAX, SCAN_MS_MIN, Settings
from rocketspark.protocol.codes import ResponseCode


@pytest.mark.parametrize(
    "text",
    ["²", "٣", "9" * 4400, "9" * 5000, "9" * 300, "-5", "0", "99", "", "1.5", "1e9", "NaN", "+5000", "5000\x1b[31m"],
)
def test_an_interval_that_is_none_is_refused_and_changes_nothing(text: str) -> None:
    settings = Settings()
    before = settings.properties()
    with pytest.raises(ServerError) as caught:
        settings.update(f"orderMessageEnable=true\nscanNotActiveBrokerInterval={text}")
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert "scanNotActiveBrokerInterval" in caught.value.remark
    assert len(caught.value.remark) < 200
    assert "\x1b" not in caught.value.remark
    assert settings.properties() == before


@pytest.mark.parametrize("ms", [SCAN_MS_MIN, 5000, SCAN_MS_MAX])
def test_an_interval_that_is_one_is_taken(ms: int) -> None:
    settings = Settings()
    settings.update(f"scanNotActiveBrokerInterval={ms}")
    assert settings.scan_s == ms / 1000


def test_an_interval_given_by_code_is_not_asked_about_again() -> None:
    settings = Settings(scan_s=0.05)
    settings.update(f"scanNotActiveBrokerInterval={settings.properties()['scanNotActiveBrokerInterval']}")
    assert settings.scan_s == 0.05


def test_values_that_nobody_could_read_are_refused() -> None:
    settings = Settings()
    for value in ("x" * 5000, "a\x1b[2J", "a\u202eb", "a\ud800"):
        with pytest.raises(ServerError) as caught:
            settings.update(f"productEnvName={value}")
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
        assert len(caught.value.remark) < 200
    assert settings.properties()["productEnvName"] == "center"


@given(st.text())
def test_any_text_is_a_change_or_a_refusal(text: str) -> None:
    settings = Settings()
    try:
        settings.update(f"scanNotActiveBrokerInterval={text}\n{text}")
    except ServerError:
        pass
    assert SCAN_MS_MIN / 1000 <= settings.scan_s <= SCAN_MS_MAX / 1000
