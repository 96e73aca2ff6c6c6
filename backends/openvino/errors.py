"""Exceptions of OpenVINO, translated to server errors. All are RuntimeErrors, whose texts open with places in its
source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from backends.out_of_memory import is_out_of_memory
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError

_PLACE = re.compile(r"Exception from \S+:\d+:|Check '.*' failed at \S+:\d+:|Caught exception:")
# What the library says of inputs whose shapes do not fit the model, or each other.
_OF_SHAPES = re.compile(
    r"ParameterMismatch|shape infer|shape_inference|[Ii]ncompatible|is not equal to the model input|mismatch"
)


@contextmanager
def load_errors(model: str, step: str) -> Iterator[None]:
    """Around one step of a load: what the library raises becomes Internal, as in Triton, but for memory that is
    used up."""
    try:
        yield
    except (ServerError, ImportError):
        raise
    except Exception as error:
        kind = Overloaded if is_out_of_memory(error) else Internal
        raise kind(f"openvino error in {step} : {_told(error)} (model '{model}')") from error


@contextmanager
def run_errors(model: str) -> Iterator[None]:
    """Around a run: shapes that do not fit are the client's mistake, memory that is used up nobody's, anything else the
    model's."""
    try:
        yield
    except ServerError:
        raise
    except Exception as error:
        kind: type[ServerError] = InvalidArgument if _OF_SHAPES.search(str(error)) else Internal
        if is_out_of_memory(error):
            kind = Overloaded
        raise kind(f"openvino error in running model : {_told(error)} (model '{model}')") from error


def _told(error: Exception) -> str:
    """Without the places in the library's source."""
    return " ".join(_PLACE.sub(" ", str(error)).split()) or type(error).__name__
