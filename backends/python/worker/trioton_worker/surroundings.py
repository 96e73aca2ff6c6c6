"""Compatibility with Triton's embedded interpreter: `sys.argv`, `__main__` and `sys.path` as models find them there.

There `sys.argv` is one empty text, `__main__` is an empty module without a file, and the working directory stands first
on `sys.path`. Models meet it by argparse, unittest, absl or click, and by the processes that they spawn.
"""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter, ModuleSpec

from .hiding import hide_server
from .log_records import log_unhandled
from .printing import tag_prints
from .speaker import speaker_of_session

# Imported by the processes that a model spawns in place of the program of their parent.
_OF_SPAWNED = f"{__package__}.spawned"


def set_up() -> None:
    """To be called once in each worker's process, when the program has read its own arguments. What a process that is
    forked from it has needs no other call."""
    sys.argv[:] = [""]
    if hasattr(sys, "orig_argv"):  # Python 3.10
        sys.orig_argv[:] = []
    _empty_main()
    hide_server()
    tag_prints(speaker_of_session)
    log_unhandled(speaker_of_session)


def _empty_main() -> None:
    main = sys.modules["__main__"]
    for name in [name for name in vars(main) if not (name.startswith("__") and name.endswith("__"))]:
        delattr(main, name)
    for name in ("__file__", "__cached__"):
        if hasattr(main, name):
            delattr(main, name)
    main.__doc__ = None
    main.__loader__ = BuiltinImporter  # as that of an embedded interpreter
    # All that multiprocessing reads of it, and what is like multiprocessing.
    main.__spec__ = ModuleSpec(_OF_SPAWNED, None)
