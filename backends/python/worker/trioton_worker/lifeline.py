"""Ties the worker's life to the server's: dies with it, and ignores terminal signals meant for it.

A terminal's Ctrl-C and a service manager's SIGTERM often go to every process of the server. The server drains then, and
needs its workers for it; it ends them itself.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import select
import signal
import socket
import sys
import threading

_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGINT, signal.SIGTERM)


def tie_to_server(control: socket.socket) -> None:
    """To be called first, in the main thread."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # text files
    faulthandler.enable()
    _ignore_signals()
    die_with_parent()
    control_fd = control.fileno()
    _watch(control_fd)
    os.register_at_fork(after_in_child=lambda: _watch(control_fd))


def _ignore_signals() -> None:
    # By a handler, which the programs that a model starts do not inherit, as they would SIG_IGN. Processes that it
    # forks get the default back, and no signal is lost before they have it.
    for number in _IGNORED:
        signal.signal(number, _ignore)
    forking = threading.local()

    def hold_back() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def go_on_in_child() -> None:
        for number in _IGNORED:
            if signal.getsignal(number) is _ignore:
                signal.signal(number, signal.SIG_DFL)
        go_on()

    os.register_at_fork(before=hold_back, after_in_parent=go_on, after_in_child=go_on_in_child)


def _ignore(number: int, frame: object) -> None:
    pass


def die_with_parent() -> None:
    """Have the kernel kill this process with its server, also while model code holds the interpreter's lock."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the hang-up of the socket remains


def _watch(control_fd: int) -> None:
    """Also for the processes that a model forks, which the kernel does not kill with the server."""
    _thread.start_new_thread(_exit_at_hangup, (control_fd,))  # a model's own threads are all that it sees


def _exit_at_hangup(control_fd: int) -> None:
    poll = select.poll()
    poll.register(control_fd, 0)  # nothing but what is always reported
    [(_, event)] = poll.poll()
    if event & (select.POLLHUP | select.POLLERR):  # not where a forked process had closed it before
        os._exit(1)
