"""Fork server: a process that has imported what every worker imports, and forks workers.

Flow: server → [fork server] → a fork, in which `serve` runs as in a worker that was started directly. On the socket:

    {"do": "fork", "directory", "cores", "imports"}, socket, pipe
                            serve on the socket, print to the pipe → {"pid"}, its pidfd
    {"do": "reap", "pid"}   that process has ended; wait for it

The first message to the server is {}: it is ready. No model's code runs in it, and it has one thread. `imports` are
modules of Python that the worker will need, and most do not.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from . import serve
from .datagrams import answer_forked, receive
from .lifeline import die_with_parent


def main(control_fd: int) -> None:
    """Returns in a forked process when its instance has ended; else ends with the server."""
    os.close(os.pidfd_open(os.getpid()))  # a Python or a system without it says so here, and the server does without
    os.set_inheritable(control_fd, False)
    for number in (signal.SIGINT, signal.SIGTERM):  # only the server decides; a worker sets handlers of its own
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    _call("fork-server")
    control = socket.socket(fileno=control_fd)
    _freeze()
    control.send(b"{}")
    while True:
        message, descriptors = receive(control)
        if message is None:
            os._exit(0)
        if message["do"] == "reap":
            os.waitpid(message["pid"], 0)
            continue
        for name in message["imports"]:
            _import(name)
        pid = os.fork()
        if not pid:
            _work(control, message, *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        answer_forked(control, pid)


def _import(name: str) -> None:
    """For this fork and those that come."""
    if name not in sys.modules:
        with suppress(ImportError):  # the worker says so
            importlib.import_module(name)
            _freeze()


def _freeze() -> None:
    """Collections in the forks must not touch, and by that copy, what is shared."""
    gc.collect()
    gc.freeze()


def _work(control: socket.socket, message: Any, worker_fd: int, output_fd: int) -> None:
    """In the new process: become what a worker is that the server has started itself, and serve."""
    control.close()
    os.setsid()  # so that a kill reaches what it starts, and not its siblings
    for number in (1, 2):
        os.dup2(output_fd, number)
    os.close(output_fd)
    _call("worker")
    if message["cores"]:
        os.sched_setaffinity(0, message["cores"])
    if message["directory"]:
        os.chdir(message["directory"])
    if "numpy.random" in sys.modules:  # else all would draw the same numbers
        sys.modules["numpy.random"].seed()
    serve.main(worker_fd)


def _call(name: str) -> None:
    """What `ps` and `top` show; the command line is the fork server's in all of them."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)
