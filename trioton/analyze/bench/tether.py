"""Runs `trioton` so that it ends with the process that has started it, however that ends.

The starter holds the other end of standard input: at its end this process kills itself, and the kernel its workers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from trioton.cli import main


def _end_with_owner() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_owner, daemon=True).start()
    sys.exit(main(sys.argv[1:]))
