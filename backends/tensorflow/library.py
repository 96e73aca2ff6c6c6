"""Imports TensorFlow with its start-up messages silenced; all modules here take it from this one.

It takes seconds to import, so nothing outside of this package may do it before a model asks for it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS = "2"  # the library's number for errors only


def _quiet_import() -> Any:
    # The library reads the variable when it is imported. Left behind it would speak to the server's child processes.
    is_ours = _LOG_LEVEL not in os.environ
    os.environ.setdefault(_LOG_LEVEL, _ERRORS)
    try:
        import tensorflow
    finally:
        if is_ours:
            os.environ.pop(_LOG_LEVEL, None)
    tensorflow.get_logger().setLevel(logging.ERROR)  # it warns of the sessions that are used here, which stay
    return tensorflow


tf: Any = _quiet_import()
v1: Any = tf.compat.v1
