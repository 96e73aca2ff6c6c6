"""The worker's main loop: receives frames, handles them, and ends with FINALIZE or with the server.

Flow: server → connection → switchboard → [serve] → instance → the model's object, and back the same way.
"""

from __future__ import annotations

import gc
import json
import os
import socket
from functools import partial
from typing import Any

from .batch import BadResult
from .connection import Connection, Frame, Head
from .errors import describe, format_traceback
from .frames import COMPLETE, DONE, EXECUTE, FAILED, FINALIZE, INITIALIZE
from .instance import Instance
from .lifeline import tie_to_server
from .making import FreshMaker, Maker
from .model_config import ModelConfig
from .session import Session, close_session, open_session
from .surroundings import set_up

_GARBAGE_THRESHOLDS = (5_000, 10, 10)


def main(control_fd: int) -> None:
    """Serve, then return; ends the process at once where the model or the worker itself breaks off."""
    collect_less()
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    tie_to_server(control)
    set_up()
    serve(open_session(Session(Connection(control))), FreshMaker())


def collect_less() -> None:
    """Requests leave no reference cycles behind: look for some only after as many objects as several batches have, and
    not among what is there before the model. A model may set it otherwise."""
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


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
        if session.owns_process and frame.head["debugger"]:
            from .debugger import offer_breakpoints  # brings pdb, which others do not need

            offer_breakpoints(frame.head["debugger"])
        _answer(session, partial(complete_config, maker), frame.head)
        return
    instance = session.instance = Instance(session, maker)
    try:
        _serve_instance(session, instance, frame)
    finally:
        session.instance = None
        if not session.owns_process:
            instance.leave()


def _serve_instance(session: Session, instance: Instance, frame: Frame) -> None:
    assert frame.kind == INITIALIZE, f"frame of kind {frame.kind} before INITIALIZE"
    if not _answer(session, instance.initialize, frame.head):
        return
    while True:
        command = session.switchboard.next_command()
        if command is None:
            return
        if command.kind == FINALIZE:
            _answer(session, instance.finalize, command.head)
            return
        assert command.kind == EXECUTE, f"frame of kind {command.kind} after INITIALIZE"
        instance.execute(command)
        del command


def _answer(session: Session, work: Any, head: Head) -> bool:
    """Answer with what the work returns, or with its exception; whether it went well."""
    try:
        done = work(head)
    except BadResult as error:
        session.note_failure(error)
        session.connection.send(FAILED, {"message": str(error), "traceback": ""})
    except BaseException as error:  # also sys.exit()
        session.note_failure(error)
        session.connection.send(FAILED, {"message": describe(error), "traceback": format_traceback(error)})
    else:
        session.connection.send(DONE, done)
        return True
    return False


def complete_config(maker: Maker, head: Head) -> Head:
    """Run `auto_complete_config`, if the model has one."""
    model = maker.load(head)
    complete = getattr(model, "auto_complete_config", None)
    if complete is None:
        return {"config": None}
    completed = complete(ModelConfig(json.dumps(head["config"])))
    if not isinstance(completed, ModelConfig):
        name = head["config"].get("name", "")
        raise BadResult(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    return {"config": json.dumps(completed.as_dict())}
