"""How the result of an item is written for its client; kept with it. Pure."""

from __future__ import annotations

import msgspec


class ResultForm(msgspec.Struct, array_like=True, frozen=True):
    """Attributes:
    is_generate: as `generate` answers, not as `infer`.
    default_binary, binary: which outputs the client has asked for as raw bytes behind the JSON.
    is_list: it is a line among others.
    """

    is_generate: bool = False
    default_binary: bool = False
    binary: dict[str, bool] = {}
    is_list: bool = False

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ResultForm:
        return _read_form(data)


_read_form = msgspec.msgpack.Decoder(ResultForm).decode
