"""Shared tensors: inputs still in the client's shared memory, copied only where the model runs, straight into its
memory.

A backend that accepts them reads each once, when the batch begins, so its bytes are moved once; `data` serves all other
readers.
"""

from __future__ import annotations

from typing import Protocol

from protocol.datatypes import DataType
from protocol.messages import Buffer, Tensor


class SharedBytes(Protocol):
    """A range of a client's memory, readable while this object is held. The client may change or truncate it at any
    time: what is gone is read as zeros."""

    @property
    def byte_size(self) -> int: ...

    def read(self) -> Buffer:
        """A read-only copy."""

    def read_into(self, memory: memoryview) -> None:
        """Fill `memory`, which is as large."""


class SharedTensor(Tensor, kw_only=True):
    """A tensor in the protocol's raw layout; never of BYTES, whose lengths could change after they were checked.

    `data` reads it, once: what was read is what counts from then on.
    """

    source: SharedBytes
    _read: Buffer | None = None

    @property  # type: ignore[misc]  # in the place of a field
    def data(self) -> Buffer:  # type: ignore[override]  # read only, and made when it is asked for
        if self._read is None:
            self._read = self.source.read()
        return self._read

    @property
    def byte_size(self) -> int:
        return self.source.byte_size

    def __len__(self) -> int:
        return self.source.byte_size

    def read_into(self, memory: memoryview) -> None:
        """Its bytes, into memory of that size."""
        if self._read is None:
            self.source.read_into(memory)
        else:
            memory[:] = self._read

    def under(self, name: str, shape: tuple[int, ...]) -> SharedTensor:
        other = shared_tensor(name, self.datatype, shape, self.source)
        other._read = self._read
        return other


def shared_tensor(name: str, datatype: DataType, shape: tuple[int, ...], source: SharedBytes) -> SharedTensor:
    return SharedTensor(name, datatype, shape, b"", source=source)  # the field that `data` is made of has nothing
