"""Host process: several instances of one model, as threads or as forks of it.

Flow: server → [host] → a thread or process with a socket of its own, on which `serve` goes on as for any instance. Each
message on the host's socket is one JSON object, with file descriptors:

    {"do": "thread"}, socket, pipe      serve on the socket; the pipe is written to and closed at the end
    {"do": "load"}, file                load the model (JSON: the head of INITIALIZE) → {} or {"message", "traceback"}
    {"do": "fork"}, socket              serve on the socket in a new process → {"pid"}, its descriptor
    {"do": "reap", "pid"}               that process has ended; wait for it
"""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
from contextlib import suppress
from typing import Any

from .connection import Connection, encode_json
from .datagrams import answer_forked, receive
from .errors import describe, format_traceback
from .lifeline import tie_to_server
from .making import PreloadedMaker, SharingMaker, initialized, load_class
from .process_exit import exit_for, exit_now
from .serve import collect_less, serve
from .session import Session, open_session
from .surroundings import set_up

_LONGEST_TEXT = 16384  # of an error; a message must fit into a datagram


def main(host_fd: int) -> None:
    """Do what the server says until it closes its end."""
    collect_less()
    os.set_inheritable(host_fd, False)
    control = socket.socket(fileno=host_fd)
    tie_to_server(control)
    set_up()
    try:
        _Host(control).run()
    except BaseException as error:
        exit_for(error)


class _Host:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._threads = SharingMaker()
        self._preloaded: Any = None

    def run(self) -> None:
        """Returns in a forked process when its instance has ended; ends the host itself."""
        while True:
            message, descriptors = receive(self._control)
            if message is None:
                exit_now(0)
            elif message["do"] == "thread":
                threading.Thread(target=self._serve_thread, args=descriptors, daemon=True).start()
            elif message["do"] == "load":
                self._load(descriptors[0])
            elif message["do"] == "fork":
                if self._fork(descriptors[0]):
                    return
            else:
                os.waitpid(message["pid"], 0)

    def _serve_thread(self, control_fd: int, ended_fd: int) -> None:
        with socket.socket(fileno=control_fd) as control:
            serve(open_session(Session(Connection(control))), self._threads)
        with suppress(OSError):  # the server is gone
            os.write(ended_fd, b"\n")
        os.close(ended_fd)

    def _load(self, file: int) -> None:
        with open(file, "rb") as text:
            text.seek(0)
            head = json.load(text)
        answer = {}
        try:
            self._preloaded = initialized(load_class(head), head)
            _refuse_threads()
        except BaseException as error:  # also sys.exit()
            answer = {"message": describe(error)[:_LONGEST_TEXT], "traceback": format_traceback(error)[-_LONGEST_TEXT:]}
        gc.collect()
        gc.freeze()  # collections in the forks must not touch, and by that copy, what is shared
        self._control.send(encode_json(answer))

    def _fork(self, control_fd: int) -> bool:
        """Whether this is the new process, which has served and is to end."""
        pid = os.fork()
        if pid:
            os.close(control_fd)
            answer_forked(self._control, pid)
            return False
        os.setsid()  # so that a kill reaches what it starts, and not its siblings
        control = socket.socket(fileno=control_fd)
        tie_to_server(control)
        serve(open_session(Session(Connection(control))), PreloadedMaker(self._preloaded))
        return True


def _refuse_threads() -> None:
    """Threads are not forked; a model that counts on them would hang."""
    others = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    if others:
        raise RuntimeError(
            f"initialize has started threads ({', '.join(others)}), which forked workers would not have; start them in "
            "after_fork(self, args), or use another ISOLATION"
        )
