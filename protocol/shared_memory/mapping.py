"""Memory-mapped client segments, with a SIGBUS handler against clients that truncate them while the server copies.

A client can truncate its segment at any time. Touching a page that is gone raises SIGBUS, which ends a process, and no
check beforehand can exclude it. Here the handler replaces the whole mapping by anonymous memory, the copy goes on with
that, and the caller checks afterwards whether the mapping was lost. Source: mmap(2), sigaction(2).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from functools import cache

import numpy as np

_MACHINES = ("x86_64", "aarch64")  # whose layout of `sigaction` and `siginfo_t` is the one below
_CODE, _FAULT_ADDRESS = 8, 16  # where `siginfo_t` has them
_SA_SIGINFO = 4
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Mapping:
    """A mapped part of a segment, until it is closed. Once the handler has replaced it, it is lost for good, and what
    was copied meanwhile is worthless. Positions are those in the segment.

    Any number of threads may copy at a time; none may when it is closed.
    """

    def __init__(self, address: int, start: int, size: int) -> None:
        self._start = start
        self._size = size
        self.address = address
        self.is_lost = False
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def read_into(self, memory: memoryview, position: int) -> bool:
        """Copy out of it; whether it was all there."""
        if self.is_lost:
            return False
        start = position - self._start
        np.frombuffer(memory, np.uint8)[:] = self._bytes[start : start + len(memory)]
        return not self.is_lost

    def write(self, position: int, data: memoryview) -> bool:
        """Copy into it; whether it was all there."""
        if self.is_lost:
            return False
        start = position - self._start
        self._bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return not self.is_lost

    def close(self) -> None:
        _GUARDED.pop(self.address, None)
        _system().munmap(self.address, self._size)

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self._size

    def lose(self) -> bool:
        """Replace it by anonymous memory; whether that was possible."""
        self.is_lost = True
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        replaced: int | None = _system().mmap(self.address, self._size, _READ_WRITE, flags, -1, 0)
        return replaced != _FAILED


# Of this process, by their addresses: a signal has one handler.
_GUARDED: dict[int, Mapping] = {}


def mapped(descriptor: int, position: int, size: int) -> Mapping | None:
    """Map so many bytes of a segment, which need not be there. None where the system cannot map them, or faults cannot
    be handled."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return None
    start = position - position % mmap.ALLOCATIONGRANULARITY
    size += position - start
    if size > sys.maxsize or not _guard():
        return None
    address = _system().mmap(None, size, _READ_WRITE, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        return None
    made = _GUARDED[address] = Mapping(address, start, size)
    return made


class _System:
    """The C library's calls. They are quick, and keep the interpreter."""

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)
        self.mmap = library.mmap
        self.mmap.restype = ctypes.c_void_p
        numbers = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
        self.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *numbers)
        self.munmap = library.munmap
        self.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.sigaction = library.sigaction
        self.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@cache
def _system() -> _System:
    return _System()


# What was done about SIGBUS before, which gets the faults of others.
_BEFORE = _Action()


def _on_fault(number: int, information: int, context: int) -> None:
    """The signal handler: runs in the thread that has touched a missing page, within its copy, which is resumed when
    this returns."""
    is_sent = ctypes.c_int.from_address(information + _CODE).value <= 0  # by a process
    address = ctypes.c_size_t.from_address(information + _FAULT_ADDRESS).value
    if not is_sent and any(mapping.holds(address) and mapping.lose() for mapping in list(_GUARDED.values())):
        return
    _system().sigaction(number, ctypes.byref(_BEFORE), None)
    _BEFORE.handler = None  # who is asked now may set up again what was there before, as `faulthandler` does: not twice
    if is_sent:  # it does not come anew
        signal.pthread_kill(threading.get_ident(), number)


_HANDLER = _Handler(_on_fault)


def _guard() -> bool:
    """Install the handler; whether that succeeded. A handler installed by others is kept, for faults that are not
    ours."""
    current = _Action()
    handler = ctypes.cast(_HANDLER, ctypes.c_void_p).value
    if _system().sigaction(signal.SIGBUS, None, ctypes.byref(current)) != 0:
        return False
    if current.handler == handler:
        return True
    ctypes.memmove(ctypes.byref(_BEFORE), ctypes.byref(current), ctypes.sizeof(_Action))
    ours = _Action(handler=handler, flags=_SA_SIGINFO)
    return bool(_system().sigaction(signal.SIGBUS, ctypes.byref(ours), None) == 0)
