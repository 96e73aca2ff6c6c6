"""The client's SETTINGS: validation, and those values that a server needs. No I/O.

Source: RFC 9113, section 6.5.
"""

from __future__ import annotations

import struct

from h2.errors import ErrorCodes
from h2.exceptions import FrameDataMissingError, InvalidSettingsValueError
from h2.settings import SettingCodes

from protocol.http2.flow_control import DEFAULT_WINDOW, LARGEST_WINDOW
from protocol.http2.frames import DEFAULT_MAX_FRAME_SIZE, MAX_FRAME_SIZE
from protocol.http2.h2_connection import MAX_SETTINGS_IN_FRAME, TooManySettingsError
from protocol.messages import Buffer

_SETTING = struct.Struct(">HI")

_ALLOWED = {
    SettingCodes.ENABLE_PUSH: (range(2), ErrorCodes.PROTOCOL_ERROR),
    SettingCodes.INITIAL_WINDOW_SIZE: (range(LARGEST_WINDOW + 1), ErrorCodes.FLOW_CONTROL_ERROR),
    SettingCodes.MAX_FRAME_SIZE: (range(DEFAULT_MAX_FRAME_SIZE, 1 << 24), ErrorCodes.PROTOCOL_ERROR),
    SettingCodes.ENABLE_CONNECT_PROTOCOL: (range(2), ErrorCodes.PROTOCOL_ERROR),
}


def pack_settings(settings: dict[SettingCodes, int]) -> bytes:
    return b"".join(_SETTING.pack(code, value) for code, value in settings.items())


class ClientSettings:
    """In bytes; `max_frame_size` is that of the frames that we send, which are no larger than `MAX_FRAME_SIZE` either.
    What else a client sets is checked, and not kept."""

    __slots__ = ("header_table_size", "initial_window_size", "max_frame_size")

    def __init__(self) -> None:
        self.header_table_size = 4096
        self.initial_window_size = DEFAULT_WINDOW
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE

    def update(self, payload: Buffer) -> None:
        """Take the settings of a frame.

        Raises:
            FrameDataMissingError: it ends within a setting.
            TooManySettingsError: it has far more of them than there are.
            InvalidSettingsValueError: a value that is not allowed.
        """
        if len(payload) % _SETTING.size:
            raise FrameDataMissingError(f"SETTINGS of {len(payload)} bytes, expected a multiple of {_SETTING.size}")
        settings = dict(_SETTING.iter_unpack(payload))
        if len(settings) > MAX_SETTINGS_IN_FRAME:
            raise TooManySettingsError(f"a frame of {len(settings)} settings")
        for code, value in settings.items():
            allowed, error = _ALLOWED.get(code, (None, None))
            if allowed is not None and error is not None and value not in allowed:
                raise InvalidSettingsValueError(f"Setting {code} has invalid value {value}", error_code=error)
        self.header_table_size = settings.get(SettingCodes.HEADER_TABLE_SIZE, self.header_table_size)
        self.initial_window_size = settings.get(SettingCodes.INITIAL_WINDOW_SIZE, self.initial_window_size)
        self.max_frame_size = min(settings.get(SettingCodes.MAX_FRAME_SIZE, self.max_frame_size), MAX_FRAME_SIZE)
