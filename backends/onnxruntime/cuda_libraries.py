"""Preloads CUDA and cuDNN libraries that were installed as Python packages (`onnxruntime-gpu[cuda,cudnn]`). Not seen
running on a GPU."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Sequence

import onnxruntime

from backends.onnxruntime.providers import CUDA, TENSORRT, Provider

logger = logging.getLogger("trioton.backends.onnxruntime")

_loading = threading.Lock()
_loaded: list[str] = []  # for the process; a second call would load nothing more


def load_libraries(providers: Sequence[Provider]) -> None:
    """Once for a process, before the first session that needs them. What cannot be loaded is for the session to say: it
    may come from elsewhere."""
    if not any(name in (CUDA, TENSORRT) for name, _ in providers):
        return
    with _loading:
        if _loaded:
            return
        said = io.StringIO()  # it speaks by `print`
        with contextlib.redirect_stdout(said):
            onnxruntime.preload_dlls()
        _loaded.append(said.getvalue())
    for line in said.getvalue().splitlines():
        logger.info("onnxruntime, loading CUDA's libraries: %s", line)
