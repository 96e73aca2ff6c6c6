"""The engine worker's main loop: takes what the server says, and drives the engine.

Flow: server → connection → [serve] → engine → one STEP frame for each step → server. One thread does it all: while the
engine has generations it only looks whether something has come, else it waits for that.

An exception of `step` ends the process, as does one of `submit` that is not `Refused` and not about one generation.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
from types import ModuleType
from typing import Any

from trioton_worker.connection import Connection, Frame  # type: ignore[import-not-found]  # on the path in the worker
from trioton_worker.errors import format_traceback, text_of  # type: ignore[import-not-found]
from trioton_worker.frames import (  # type: ignore[import-not-found]
    CHECK,
    CHECKED,
    DONE,
    FAILED,
    FINALIZE,
    INITIALIZE,
    TRIM,
)
from trioton_worker.lifeline import tie_to_server  # type: ignore[import-not-found]
from trioton_worker.log_records import log_unhandled  # type: ignore[import-not-found]
from trioton_worker.printing import tag_prints  # type: ignore[import-not-found]
from trioton_worker.process_exit import exit_for, exit_now  # type: ignore[import-not-found]
from trioton_worker.speaker import Speaker  # type: ignore[import-not-found]

import trioton_engine  # type: ignore[import-not-found]

from .engine import Adapter, Engine, EngineInfo, EngineModel, Event, Refused, Stats
from .frames import ABORT, CONTROL, CONTROLLED, STEP, SUBMIT, decode_submission, encode_step

_GARBAGE_THRESHOLDS = (50_000, 10, 10)


def main(control_fd: int) -> None:
    """Serve until the server finalizes the engine, or is gone; then the process ends, whatever threads there are."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    tie_to_server(control)
    offer_port()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    worker = _Worker(Connection(control))
    tag_prints(worker.speaker)
    log_unhandled(worker.speaker)
    try:
        worker.run()
    except BaseException as error:
        exit_for(error)
    exit_now(0)


def offer_port() -> None:
    """Let engines import `trioton.engines` here, as they do elsewhere, also where no server is installed."""
    package = ModuleType("trioton")
    package.__path__ = []
    package.engines = trioton_engine  # type: ignore[attr-defined]
    sys.modules["trioton"] = package
    sys.modules["trioton.engines"] = trioton_engine


class _Worker:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engine: Engine | None = None
        self._open: set[int] = set()
        self._failed: list[Event] = []  # what `submit` has refused
        self._stats = Stats()
        self._thread = threading.get_ident()
        self._about = 0  # the sequence that something is done for just now

    def speaker(self) -> Speaker | None:
        """Whoever writes a line; None in a process that the engine has forked."""
        if not self._connection.is_usable:
            return None
        return Speaker(self._connection, self._about if threading.get_ident() == self._thread else 0)

    def run(self) -> None:
        while self._take_frames():
            if self._open or self._failed:
                self._step()

    def _take_frames(self) -> bool:
        """Take what has come, and wait for it while there is nothing to do; False at the end."""
        connection = self._connection
        while connection.is_readable() if self._open or self._failed else True:
            frame = connection.receive()
            if frame is None or not self._take(frame):
                return False
        return True

    def _take(self, frame: Frame) -> bool:
        """False where it was the last one."""
        kind = frame.kind
        if kind == SUBMIT:
            self._submit(frame)
        elif kind == ABORT:
            for sequence in frame.column:
                if sequence in self._open:
                    self._about = sequence
                    self._loaded.abort(sequence)
            self._about = 0
        elif kind == INITIALIZE:
            return self._answer(self._initialize, frame.head)
        elif kind == CONTROL:
            self._control(frame.head)
        elif kind == CHECK:
            self._check()
        elif kind == FINALIZE:
            self._answer(self._finalize, frame.head)
            return False
        elif kind != TRIM:
            raise ConnectionError(f"the server sent a frame of kind {kind}")
        return True

    @property
    def _loaded(self) -> Engine:
        assert self._engine is not None, "nothing is loaded"
        return self._engine

    def _answer(self, work: Any, head: Any) -> bool:
        try:
            done = work(head)
        except Refused as error:
            self._connection.send(FAILED, {"message": str(error), "traceback": ""})
        except BaseException as error:  # also sys.exit()
            self._connection.send(FAILED, {"message": text_of(error), "traceback": format_traceback(error)})
        else:
            self._connection.send(DONE, done)
            return True
        return False

    def _initialize(self, head: Any) -> Any:
        sys.path[:0] = head["paths"]
        if head["cpu_cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, head["cpu_cores"])
        engine: Engine = _find(head["engine"])()
        self._engine = engine
        model = head["model"]
        info = engine.load(EngineModel(**{**model, "adapters": [Adapter(*each) for each in model["adapters"]]}))
        gc.collect()
        gc.freeze()
        return {"engine": _description(info, engine)}

    def _control(self, head: Any) -> None:
        engine = self._loaded
        answer = {"number": head["number"]}
        try:
            match head["do"]:
                case "add_adapter":
                    engine.add_adapter(Adapter(head["name"], head["path"]))
                case "remove_adapter":
                    engine.remove_adapter(head["name"])
                case "sleep":
                    engine.sleep(head["level"])
                case "wake":
                    engine.wake()
                case "reset_prefix_cache":
                    engine.reset_prefix_cache()
        except Exception as error:
            answer["error"] = str(error) if isinstance(error, Refused) else text_of(error)
        answer["adapters"] = _adapters(engine)
        self._connection.send(CONTROLLED, answer)

    def _check(self) -> None:
        try:
            problem = self._loaded.check()
        except Exception as error:
            problem = text_of(error)
        self._connection.send(CHECKED, {"ready": not problem, "error": problem})

    def _finalize(self, head: Any) -> Any:
        self._loaded.close()
        return {}

    def _submit(self, frame: Frame) -> None:
        generation = decode_submission(frame.head, frame.column, frame.body)
        self._about = sequence = generation.sequence
        try:
            self._loaded.submit(generation)
        except Refused as error:
            self._failed.append(Event(sequence, finish="error", error=str(error), is_refused=True))
        except Exception as error:
            self._failed.append(Event(sequence, finish="error", error=text_of(error)))
        else:
            self._open.add(sequence)
        self._about = 0

    def _step(self) -> None:
        engine = self._loaded
        if len(self._open) == 1:
            (self._about,) = self._open
        events = [*self._failed, *engine.step(self._connection.fileno())] if self._open else self._failed
        self._failed = []
        self._about = 0
        for event in events:
            if event.finish:
                self._open.discard(event.sequence)
        stats = engine.stats()
        if events or stats != self._stats:
            self._stats = stats
            column, head = encode_step(events, stats)
            self._connection.send(STEP, head, column)


def _description(info: EngineInfo, engine: Engine) -> dict[str, Any]:
    return {
        "features": sorted(info.features),
        "context_length": info.context_length,
        "most_logprobs": info.most_logprobs,
        "sequences": info.sequences,
        "most_adapters": info.adapters,
        "adapters": _adapters(engine),
        "stats": list(engine.stats()),
    }


def _adapters(engine: Engine) -> list[list[str]]:
    return [[each.name, each.path] for each in engine.adapters()]


def _find(name: str) -> Any:
    """What `module:Class` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
