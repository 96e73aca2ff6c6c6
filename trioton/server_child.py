"""A server as a child process of a tool: how it is started so that it ends with the tool, and how it is ended.

What its output is for, and how it is known to be ready, is the tool's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import trio

from trioton.bound import bound_command
from trioton.module_path import module_path


def start_server(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Run `trioton <words>`, with its output in a file. It is killed when the calling thread ends, or this process.

    Blocks for some milliseconds. Raises OSError.
    """
    return subprocess.Popen(
        bound_command([sys.executable, "-m", "trioton", *words]),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": module_path()},
        start_new_session=True,  # a terminal's Ctrl-C is for the tool, which then ends it
    )


async def end_server(process: subprocess.Popen[bytes], seconds: float) -> None:
    """First as anyone would ask it to, so that its workers end well; after so many seconds it is killed, with all of
    its process group. To be called under a shield."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        await trio.to_thread.run_sync(process.wait, seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await trio.to_thread.run_sync(process.wait)
