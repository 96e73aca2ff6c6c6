"""The worker's loop: take what the server says, do it, answer, until it says finalize or is gone.

Flow: server → connection → switchboard → [serve] → instance → the model's object, and back the same way.
"""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from typing import Any

from .batch import BadResult
from .connection import Connection, Head
from .debugger import offer_breakpoints
from .errors import describe, format_traceback
from .frames import COMPLETE, DONE, EXECUTE, FAILED, FINALIZE, INITIALIZE
from .hiding import hide_server
from .instance import Instance
from .lifeline import tie_to_server
from .loader import load_model_class
from .model_config import ModelConfig
from .process_exit import exit_for
from .session import Session, open_session


def main(control_fd: int) -> None:
    """Serve, then return; ends the process at once where the model or the worker itself breaks off."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    tie_to_server(control)
    session = Session(Connection(control))
    open_session(session)
    hide_server()
    try:
        serve(session)
    except BaseException as error:
        exit_for(error)


def serve(session: Session) -> None:
    """Serve one model; returns when that is over. Raises what ends a process: SystemExit and its like."""
    frame = session.switchboard.next_command()
    if frame is None:
        return
    if frame.kind == COMPLETE:
        _answer(session, partial(complete_config, session), frame.head)
        return
    instance = Instance(session)
    assert frame.kind == INITIALIZE, f"frame of kind {frame.kind} before INITIALIZE"
    if not _answer(session, instance.initialize, frame.head):
        return
    while True:
        frame = session.switchboard.next_command()
        if frame is None:
            return
        if frame.kind == FINALIZE:
            _answer(session, instance.finalize, frame.head)
            return
        assert frame.kind == EXECUTE, f"frame of kind {frame.kind} after INITIALIZE"
        instance.execute(frame)
        del frame


def _answer(session: Session, work: Any, head: Head) -> bool:
    """Answer with what the work returns, or with its exception; whether it went well."""
    try:
        done = work(head)
    except BadResult as error:
        session.note_failure(error)
        session.connection.send(FAILED, {"message": str(error), "traceback": ""})
    except Exception as error:
        session.note_failure(error)
        session.connection.send(FAILED, {"message": describe(error), "traceback": format_traceback(error)})
    else:
        session.connection.send(DONE, done)
        return True
    return False


def complete_config(session: Session, head: Head) -> Head:
    """Run `auto_complete_config`, if the model has one."""
    offer_breakpoints(head["debugger"])
    model = load_model_class(head["path"], head["directory"], session)
    complete = getattr(model, "auto_complete_config", None)
    if complete is None:
        return {"config": None}
    completed = complete(ModelConfig(head["config"]))
    if not isinstance(completed, ModelConfig):
        name = head["config"].get("name", "")
        raise BadResult(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    return {"config": json.dumps(completed.as_dict())}
