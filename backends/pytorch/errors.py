"""Exceptions of torch, translated to server errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from backends.out_of_memory import is_out_of_memory, out_of_memory
from protocol.errors import Internal, InvalidArgument, ServerError

# What exported programs say of inputs outside of what they were exported for.
_GUARD = re.compile(r"Guard failed: .*")


@contextmanager
def load_errors(model: str) -> Iterator[None]:
    """Around the loading of a file: what the library raises becomes Internal, as in Triton."""
    try:
        yield
    except (ServerError, ImportError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            torch.cuda.empty_cache()
            raise out_of_memory(f"failed to load model '{model}'", error) from error
        raise Internal(f"failed to load model '{model}': {_first_line(error)}") from error


@contextmanager
def run_errors(model: str) -> Iterator[None]:
    """Around a run: a guard that the inputs do not meet is the client's mistake, anything else the model's. A device
    without memory fails the batch, and frees what the library holds in vain."""
    try:
        yield
    except ServerError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            torch.cuda.empty_cache()
            raise out_of_memory(f"PyTorch execute failure of model '{model}'", error) from error
        guard = _GUARD.search(str(error)) if isinstance(error, AssertionError) else None
        if guard is not None:
            raise InvalidArgument(f"model '{model}' was not exported for such inputs: {guard[0]}") from error
        raise Internal(f"PyTorch execute failure: {str(error).strip()} (model '{model}')") from error


def _first_line(error: Exception) -> str:
    """Without the library's guesses at why, which are the same for every file."""
    text = str(error).strip().partition("\n")[0]
    return text.partition(" This is an internal miniz error.")[0] or type(error).__name__
