"""Factories of the `TritonPythonModel` object: in a process of its own, in a thread beside others, or before a fork."""

from __future__ import annotations

import threading
from typing import Any, Callable

from .connection import Head
from .loader import load_model_class


class Maker:
    """Makes the objects of one model in one process."""

    def load(self, head: Head) -> Any:
        """The model's class, from the head of a COMPLETE or INITIALIZE frame. Raises what its import raises."""
        return load_class(head)

    def make(self, head: Head) -> Any:
        """An object that is initialized, from the head of an INITIALIZE frame. Raises what the model raises."""
        raise NotImplementedError


def load_class(head: Head) -> Any:
    """The model's class."""
    return load_model_class(head["path"], head["directory"], head["version_directory"])


def initialized(model_class: Any, head: Head) -> Any:
    """An object of the class."""
    model = model_class()
    initialize = getattr(model, "initialize", None)
    if initialize is not None:
        initialize(head["args"])
    return model


class FreshMaker(Maker):
    """For a process with one instance."""

    def make(self, head: Head) -> Any:
        return initialized(self.load(head), head)


class SharingMaker(Maker):
    """For instances that are threads of one process: the module is imported once, so what it and its class hold is
    there once. Objects are initialized one after the other, so that the first can leave something for the others."""

    def __init__(self, load: Callable[[Head], Any] = load_class) -> None:
        self._load = load
        self._making = threading.RLock()
        self._class: Any = None

    def load(self, head: Head) -> Any:
        with self._making:
            if self._class is None:
                self._class = self._load(head)
            return self._class

    def make(self, head: Head) -> Any:
        with self._making:
            return initialized(self.load(head), head)


class PreloadedMaker(Maker):
    """For a process that was forked after its parent had initialized the object, which may have `after_fork(args)`."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def make(self, head: Head) -> Any:
        after_fork = getattr(self._model, "after_fork", None)
        if after_fork is not None:
            after_fork(head["args"])
        return self._model
