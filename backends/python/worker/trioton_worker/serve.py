"""The worker's loop: take what the server says, do it, answer, until it says finalize or is gone.

Flow: server → connection → switchboard → [serve] → instance → the model's object, and back the same way.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from .batch import BadResult
from .connection import Connection, Head
from .errors import describe, format_traceback
from .frames import COMPLETE, DONE, EXECUTE, FAILED, FINALIZE, INITIALIZE
from .hiding import hide_server
from .instance import Instance
from .lifeline import tie_to_server
from .loader import load_model_class
from .making import FreshMaker, Maker
from .model_config import ModelConfig
from .session import Session, close_session, open_session


def main(control_fd: int) -> None:
    """Serve, then return; ends the process at once where the model or the worker itself breaks off."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    tie_to_server(control)
    hide_server()
    serve(open_session(Connection(control)), FreshMaker())


def serve(session: Session, maker: Maker) -> None:
    """Serve an instance in the running thread, until it is finalized, or has failed, or its server is gone."""
    try:
        _serve(session, maker)
    except BaseException as error:
        session.break_off(error)
    finally:
        close_session(session)


def _serve(session: Session, maker: Maker) -> None:
    frame = session.switchboard.next_command()
    if frame is None:
        return
    if frame.kind == COMPLETE:
        session.place(frame.head)
        _answer(session, complete_config, frame.head)
        return
    instance = Instance(session, maker)
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
        session.connection.send(FAILED, {"message": str(error), "traceback": ""})
    except Exception as error:
        session.connection.send(FAILED, {"message": describe(error), "traceback": format_traceback(error)})
    else:
        session.connection.send(DONE, done)
        return True
    return False


def complete_config(head: Head) -> Head:
    """Run `auto_complete_config`, if the model has one."""
    model = load_model_class(head["path"], head["directory"], head["version_directory"])
    complete = getattr(model, "auto_complete_config", None)
    if complete is None:
        return {"config": None}
    completed = complete(ModelConfig(head["config"]))
    if not isinstance(completed, ModelConfig):
        name = head["config"].get("name", "")
        raise BadResult(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    return {"config": json.dumps(completed.as_dict())}
