"""The settings of backends, as `--backend-config` takes them."""

from __future__ import annotations

import pytest

from trioton.flags.server import BackendSetting, backend_setting


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python,shm-default-byte-size=2", BackendSetting("python", "shm-default-byte-size", "2")),
        ("default-max-batch-size=8", BackendSetting("", "default-max-batch-size", "8")),
        ("python,a=b=c,d", BackendSetting("python", "a", "b=c,d")),
        ("python,a=", BackendSetting("python", "a", "")),
    ],
)
def test_backend_settings(text: str, expected: BackendSetting) -> None:
    assert backend_setting(text) == expected


@pytest.mark.parametrize("text", ["", "python", "python,a", "=1", "python,=1", ",a=1"])
def test_wrong_backend_settings(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--backend-config option format is '<backend name>,<setting>=<value>'$"):
        backend_setting(text)
