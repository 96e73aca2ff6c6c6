"""The settings that matter, and those that must not be."""

from __future__ import annotations

import struct

import pytest
from h2.errors import ErrorCodes
from h2.exceptions import FrameDataMissingError, InvalidSettingsValueError
from h2.settings import SettingCodes

from protocol.http2.client_settings import ClientSettings, pack_settings
from protocol.http2.frames import MAX_FRAME_SIZE
from protocol.http2.h2_connection import TooManySettingsError


def test_what_matters_is_kept() -> None:
    settings = ClientSettings()
    settings.update(pack_settings({SettingCodes.INITIAL_WINDOW_SIZE: 7, SettingCodes.MAX_CONCURRENT_STREAMS: 0}))
    settings.update(pack_settings({SettingCodes.MAX_FRAME_SIZE: 20_000, SettingCodes.HEADER_TABLE_SIZE: 2**32 - 1}))
    assert (settings.initial_window_size, settings.max_frame_size) == (7, 20_000)
    assert settings.header_table_size == 2**32 - 1


def test_larger_frames_than_ours_are_of_no_use() -> None:
    settings = ClientSettings()
    settings.update(pack_settings({SettingCodes.MAX_FRAME_SIZE: 2**24 - 1}))
    assert settings.max_frame_size == MAX_FRAME_SIZE


@pytest.mark.parametrize(
    ("code", "value", "error"),
    [
        (SettingCodes.ENABLE_PUSH, 2, ErrorCodes.PROTOCOL_ERROR),
        (SettingCodes.INITIAL_WINDOW_SIZE, 2**31, ErrorCodes.FLOW_CONTROL_ERROR),
        (SettingCodes.MAX_FRAME_SIZE, 16383, ErrorCodes.PROTOCOL_ERROR),
        (SettingCodes.MAX_FRAME_SIZE, 2**24, ErrorCodes.PROTOCOL_ERROR),
        (SettingCodes.ENABLE_CONNECT_PROTOCOL, 2, ErrorCodes.PROTOCOL_ERROR),
    ],
)
def test_values_that_are_not_allowed(code: SettingCodes, value: int, error: ErrorCodes) -> None:
    with pytest.raises(InvalidSettingsValueError) as raised:
        ClientSettings().update(pack_settings({code: value}))
    assert raised.value.error_code == error


def test_a_setting_that_is_cut_off() -> None:
    with pytest.raises(FrameDataMissingError):
        ClientSettings().update(bytes(7))


def test_far_too_many() -> None:
    with pytest.raises(TooManySettingsError):
        ClientSettings().update(b"".join(struct.pack(">HI", code, 1) for code in range(100, 200)))
