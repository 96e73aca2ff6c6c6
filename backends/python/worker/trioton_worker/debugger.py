"""Debugging a model in a worker: `breakpoint()` over a TCP socket, or debugpy.

A worker has no terminal. Nothing here runs unless the model's settings ask for it: whoever can reach the port can run
code in the worker.
"""

from __future__ import annotations

import importlib
import pdb
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

_LOCAL = "127.0.0.1"
_DEBUGPY_PORT = 5678
_MOST_PORTS = 16


def offer_breakpoints(debugger: str) -> None:
    """Let `breakpoint()` open a port, where the debugger is pdb."""
    if debugger == "pdb":
        sys.breakpointhook = _Breakpoints().stop


def wait_for_debugpy(debugger: str) -> None:
    """Where the debugger is debugpy, wait until somebody attaches. Ports above the given one serve further workers."""
    name, _, port = debugger.partition(":")
    if name != "debugpy":
        return
    try:
        debugpy: Any = importlib.import_module("debugpy")  # of the model's environment
    except ImportError:
        raise ImportError(f"debugpy is not installed for {sys.executable}, which runs the model") from None
    first = int(port) if port else _DEBUGPY_PORT
    for number in range(first, first + _MOST_PORTS):
        try:
            host, found = debugpy.listen((_LOCAL, number))
        except RuntimeError:  # another worker has it
            continue
        print(f"waiting for a debugger to attach at {host}:{found}", flush=True)
        debugpy.wait_for_client()
        return
    raise OSError(f"debugpy found no free port from {first} to {first + _MOST_PORTS - 1}")


class _Breakpoints:
    """The hook of `breakpoint()`. A connection is kept until its person leaves; then the model goes on."""

    def __init__(self) -> None:
        self._debugger: _SocketPdb | None = None

    def stop(self, *args: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        if self._debugger is None or self._debugger.is_closed:
            self._debugger = _SocketPdb(_accept(frame))
        self._debugger.set_trace(frame)


def _accept(frame: FrameType) -> socket.socket:
    with socket.create_server((_LOCAL, 0)) as listener:
        host, port = listener.getsockname()[:2]
        place = f"{frame.f_code.co_filename}({frame.f_lineno})"
        print(f"breakpoint at {place}: connect with: nc {host} {port}", flush=True)
        return listener.accept()[0]


class _Console:
    """What pdb reads from and writes to. A person who has gone types nothing more, and sees nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8", errors="replace", newline="\n")

    def readline(self) -> str:
        try:
            return self._lines.readline()
        except (OSError, ValueError):
            return ""

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._connection.sendall(text.encode("utf-8", "replace"))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class _SocketPdb(pdb.Pdb):
    def __init__(self, connection: socket.socket) -> None:
        self.is_closed = False
        self._console = _Console(connection)
        super().__init__(stdin=self._console, stdout=self._console, nosigint=True)  # type: ignore[arg-type]  # enough of a file
        self.use_rawinput = False

    def do_EOF(self, arg: str) -> Any:  # noqa: N802 (its name in pdb)
        """The person has gone: the model goes on, without its breakpoints."""
        self.clear_all_breaks()
        self._close()
        return super().do_continue("")

    def do_quit(self, arg: str) -> Any:
        """The exception `BdbQuit` in the model: it fails its batch."""
        self._close()
        return super().do_quit(arg)

    do_q = do_exit = do_quit

    def _close(self) -> None:
        self.is_closed = True
        self._console.close()
