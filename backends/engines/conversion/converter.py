"""Converter process: `optimum-cli export openvino`, run by an interpreter that has optimum-intel.

Owned by the load that needs it. Cancelled, it ends the process with all that it has started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from backends.engines.conversion.progress import Progress
from protocol.errors import Internal

# All of them decide about what comes out.
_PACKAGES = ("optimum-intel", "optimum", "openvino", "openvino-tokenizers", "transformers", "nncf", "torch")
_REQUIRED = "optimum-intel"
_ASK_VERSIONS = """\
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TASK = "text-generation-with-past"
# Nothing is fetched, and no code of a model's own is run.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Converter:
    """`interpreter` is a Python that has optimum-intel; that of the server, unless another is set."""

    interpreter: str = sys.executable

    async def versions(self) -> Mapping[str, str] | None:
        """The versions of its packages; None where it cannot convert.

        Raises:
            Internal: the interpreter cannot be run.
        """
        command = [self.interpreter, "-c", _ASK_VERSIONS, *_PACKAGES]
        try:
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, stdin=subprocess.DEVNULL
            )
            found = json.loads(done.stdout)
        except OSError as error:
            raise Internal(f"the converter '{self.interpreter}' cannot be run: {error.strerror}") from None
        except ValueError:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise Internal(f"the converter '{self.interpreter}' is no Python interpreter: {said}") from None
        return found if isinstance(found, dict) and _REQUIRED in found else None

    async def convert(self, source: Path, target: Path, weight_format: str, *, held: int, log: logging.Logger) -> None:
        """Write the converted model to `target`, which is not there yet, with its output in the log. The process has a
        copy of the descriptor `held`.

        Raises:
            Internal: it failed; the text has its last lines.
        """
        command = [
            *(self.interpreter, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(source)),
            *("--task", _TASK, "--weight-format", weight_format, str(target)),
        ]
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(held,),
            cwd=target.parent,
            env={**os.environ, **_ENVIRONMENT},
        )
        progress = Progress()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_log_output, process, progress, log)
                await process.wait()
                _end_group(process)  # what it left running would keep the pipe open
        finally:
            _end_group(process)
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()
        if process.returncode:
            end = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
            raise Internal(f"its conversion failed with {end}: {' | '.join(progress.last)}")


async def _log_output(process: trio.Process, progress: Progress, log: logging.Logger) -> None:
    assert process.stdout is not None
    async for data in process.stdout:
        for line in progress.feed(data, trio.current_time()):
            log.info("conversion: %s", line)
    for line in progress.end():
        log.info("conversion: %s", line)


def _end_group(process: trio.Process) -> None:
    """Its session is its own, so its group has its number."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
