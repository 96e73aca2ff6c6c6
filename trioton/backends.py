"""Public: the interface of backends, with which the server runs the models of one framework.

An installed package offers a backend by an entry point of the group `trioton.backends`, and a model asks for it by
`backend: "linear"` in its `config.pbtxt`. Nothing else registers it, and it is imported only when a model asks for it:

    [project.entry-points."trioton.backends"]
    linear = "linear_backend:LinearBackend"

Most backends subclass `ArrayBackend`, which joins requests into arrays and runs blocking code in a thread of its own.
One that needs no thread, or talks to a process, or gives several responses to a request subclasses `Backend`, whose
methods are awaited on the server's Trio loop. Requests, tensors and datatypes are in `trioton.messages`, the model's
configuration in `trioton.model_config`, errors in `trioton.errors`.

Importing this module imports no framework.
"""

from __future__ import annotations

from backends.array_backend import ArrayBackend
from backends.instance_thread import InstanceThread
from backends.interface import (
    Backend,
    BatchResult,
    BatchTiming,
    HeldTensor,
    InstanceDied,
    InstanceSpec,
    ModelSource,
    Rescheduled,
    Responder,
)
from backends.parameters import parse_bool, parse_int
from backends.signature_backend import Signature, SignatureBackend
from protocol.core import MemoryUsage, QueueRoom
from repository.completion import TensorSignature

__all__ = [
    "ArrayBackend",
    "Backend",
    "BatchResult",
    "BatchTiming",
    "HeldTensor",
    "InstanceDied",
    "InstanceSpec",
    "InstanceThread",
    "MemoryUsage",
    "ModelSource",
    "QueueRoom",
    "Rescheduled",
    "Responder",
    "Signature",
    "SignatureBackend",
    "TensorSignature",
    "parse_bool",
    "parse_int",
]
