"""The worker's loop: one frame in, one frame out, until the server says finalize or is gone.

Flow: server → connection → [serve] → the model's object → [serve] → connection → server.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import sys
import threading
import traceback
from typing import Any

from .batch import Answer, BadResult, Batch, Segments, check_responses, failed_batch
from .connection import Buffer, Connection, Frame, Head
from .errors import describe, format_traceback
from .frames import COMPLETE, DONE, EXECUTE, EXECUTED, FAILED, FINALIZE, INITIALIZE
from .hiding import hide_server
from .lifeline import tie_to_server
from .loader import load_model_class
from .logger import connect_logger
from .model_config import ModelConfig


def main(control_fd: int) -> None:
    """Serve, then return; ends the process at once where the model or the worker itself breaks off."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    tie_to_server(control)
    connection = Connection(control)
    connect_logger(connection)
    hide_server()
    try:
        _serve(connection)
    except SystemExit as error:  # of the model: as good as a crash, even if threads of its own are still running
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        _exit_now(error.code if isinstance(error.code, int) else error.code is not None)
    except BaseException:
        traceback.print_exc()
        _exit_now(1)


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(connection: Connection) -> None:
    frame = connection.receive()
    if frame is None:
        return
    if frame.kind == COMPLETE:
        _answer(connection, complete_config, frame.head)
        return
    instance = Instance(connection)
    assert frame.kind == INITIALIZE, f"frame of kind {frame.kind} before INITIALIZE"
    if not _answer(connection, instance.initialize, frame.head):
        return
    while True:
        frame = connection.receive()
        if frame is None:
            return
        if frame.kind == FINALIZE:
            _answer(connection, instance.finalize, frame.head)
            return
        assert frame.kind == EXECUTE, f"frame of kind {frame.kind} after INITIALIZE"
        instance.execute(frame)
        del frame


def _answer(connection: Connection, work: Any, head: Head) -> bool:
    """Answer with what the work returns, or with its exception; whether it went well."""
    try:
        done = work(head)
    except BadResult as error:
        connection.send(FAILED, {"message": str(error), "traceback": ""})
    except Exception as error:
        connection.send(FAILED, {"message": describe(error), "traceback": format_traceback(error)})
    else:
        connection.send(DONE, done)
        return True
    return False


def complete_config(head: Head) -> Head:
    """Run `auto_complete_config`, if the model has one."""
    model = load_model_class(head["path"], head["directory"])
    complete = getattr(model, "auto_complete_config", None)
    if complete is None:
        return {"config": None}
    completed = complete(ModelConfig(head["config"]))
    if not isinstance(completed, ModelConfig):
        name = head["config"].get("name", "")
        raise BadResult(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    return {"config": json.dumps(completed.as_dict())}


class Instance:
    """The model's object."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._segments = Segments()
        self._model: Any = None
        self._path = ""
        self._outputs: frozenset[str] = frozenset()
        self._can_share = False
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def initialize(self, head: Head) -> Head:
        self._path = head["path"]
        self._outputs = frozenset(head["outputs"])
        self._can_share = head["can_share"]
        self._model = load_model_class(self._path, head["directory"])()
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            initialize(head["args"])
        return {}

    def finalize(self, head: Head) -> Head:
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            finalize()
        return {}

    def execute(self, frame: Frame) -> None:
        """Run one batch and answer it, also where the model has failed."""
        self._segments.take(self._connection, frame.head)
        batch = Batch(frame, self._segments, self._outputs)
        head, column, body, body_size = self._run(batch)
        if batch.is_kept():
            head["kept"] = True
        self._connection.send(EXECUTED, head, column, body, body_size)

    def _run(self, batch: Batch) -> tuple[Head, list[int], list[Buffer], int]:
        requests, batch.requests = batch.requests, []  # ours go with this call, or they would look kept
        try:
            responses = check_responses(self._call(requests), len(batch.wanted_names))
            answer = Answer(responses, batch.wanted_names)
            body, body_size = answer.place(self._segments, can_share=self._can_share)
            return answer.head, answer.column, body, body_size
        except BadResult as error:
            return failed_batch(str(error)), [], [], 0
        except Exception as error:
            return failed_batch(describe(error), format_traceback(error)), [], [], 0

    def _call(self, requests: list[Any]) -> Any:
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise BadResult(f"Python model {self._path} does not implement `execute` method.")
        result = execute(requests)
        if inspect.iscoroutine(result):
            return asyncio.run_coroutine_threadsafe(result, self._background_loop()).result()
        return result

    def _background_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of `async def execute`: one for the instance's life, so that what a model made in it stays
        usable, and in a thread of its own, so that the model's tasks go on between batches."""
        if self._event_loop is None:
            self._event_loop = asyncio.new_event_loop()
            threading.Thread(target=self._event_loop.run_forever, name="execute", daemon=True).start()
        return self._event_loop
