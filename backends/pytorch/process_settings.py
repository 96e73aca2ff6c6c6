"""Process-wide settings of torch: the first model that sets one wins, as in Triton."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from backends.pytorch.options import ProcessOptions

logger = logging.getLogger("trioton.pytorch")

Value = TypeVar("Value", int, bool)


class ProcessSettings:
    """What models of this process have set, and who was first. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: dict[str, tuple[int, str]] = {}

    def apply(self, options: ProcessOptions, model: str) -> None:
        """Set what the options name and no model has set before; warn of what has another value already."""
        with self._lock:
            self._apply("INTRA_OP_THREAD_COUNT", options.intra_op_thread_count, torch.set_num_threads, model)
            self._apply("INTER_OP_THREAD_COUNT", options.inter_op_thread_count, torch.set_num_interop_threads, model)
            # The library has these under private names only.
            library = torch._C
            self._apply("ENABLE_TENSOR_FUSER", options.tensor_fuser, library._jit_set_texpr_fuser_enabled, model)
            self._apply("ENABLE_JIT_PROFILING", options.jit_profiling, library._jit_set_profiling_mode, model)
            self._apply("ENABLE_JIT_EXECUTOR", options.jit_executor, library._jit_set_profiling_executor, model)
            self._apply("DISABLE_CUDNN", options.disable_cudnn, _disable_cudnn, model)
            intra_op = self._set.get("INTRA_OP_THREAD_COUNT")
        if intra_op is not None:
            torch.set_num_threads(int(intra_op[0]))  # a thread that has computed before keeps its own number otherwise

    def _apply(self, key: str, value: Value | None, change: Callable[[Value], object], model: str) -> None:
        if value is None:
            return
        found = self._set.get(key)
        if found is not None:
            if found[0] != value:
                logger.warning(
                    "model '%s' wants %s %s, but the library has one for the whole process, and model '%s' has set it "
                    "to %s",
                    *(model, key, value, found[1], found[0]),
                )
            return
        try:
            change(value)
        except RuntimeError as error:  # of INTER_OP_THREAD_COUNT, once the library has computed something
            logger.warning("model '%s' wants %s %s, which comes too late: %s", model, key, value, error)
            return
        self._set[key] = (value, model)


def _disable_cudnn(is_disabled: bool) -> None:
    torch.backends.cudnn.enabled = not is_disabled


# The library's settings are the process's, so what is known of them is, too: servers in one process share both.
PROCESS_SETTINGS = ProcessSettings()
