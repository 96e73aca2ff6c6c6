"""Process-wide settings of JAX, applied before it first looks at its devices.

The server's `--backend-config=jax,…` sets it; what the environment of the server says itself stays.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument

logger = logging.getLogger("trioton.jax")

# In the main thread of a run, so that it stays in the instance's own, and a small model spares a change of threads.
_ASYNC_DISPATCH = "jax_cpu_enable_async_dispatch"


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """`memory_fraction` and `cpu_thread_count` are None for the library's own, `platforms` empty."""

    preallocates: bool = False
    memory_fraction: float | None = None
    platforms: str = ""
    cpu_thread_count: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the library reads when it makes its devices."""
        found = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true" if self.preallocates else "false"}
        if self.memory_fraction is not None:
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(self.memory_fraction)
        if self.cpu_thread_count is not None:
            found["NPROC"] = str(self.cpu_thread_count)
        return found


def read_settings(settings: Mapping[str, str]) -> DeviceSettings:
    """Raises InvalidArgument for a value that does not parse."""
    preallocates = settings.get("preallocate", "")
    fraction = settings.get("memory-fraction", "")
    threads = settings.get("cpu-threads", "")
    found = DeviceSettings(
        preallocates=bool(preallocates) and parse_bool(preallocates, place=_place("preallocate")),
        memory_fraction=_fraction(fraction) if fraction else None,
        platforms=settings.get("platforms", ""),
        cpu_thread_count=parse_int(threads, place=_place("cpu-threads")) if threads else None,
    )
    if found.cpu_thread_count is not None and found.cpu_thread_count < 1:
        raise InvalidArgument(f"{_place('cpu-threads')}: expected a number of threads from 1 on, got '{threads}'")
    return found


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InvalidArgument(f"{_place('memory-fraction')}: expected a number above 0 and up to 1, got '{text}'")
    return value


def _place(key: str) -> str:
    return f"backend-config 'jax,{key}'"


class ProcessSettings:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: DeviceSettings | None = None

    def apply(self, settings: DeviceSettings, model: str) -> None:
        """Have the library make its devices, with these settings where no model has had it do so before. Blocks for as
        long as that takes.

        Raises:
            RuntimeError: one of `platforms` is not there.
        """
        with self._lock:
            if self._applied is None:
                if settings.platforms:
                    jax.config.update("jax_platforms", settings.platforms)
                if _ASYNC_DISPATCH.upper() not in os.environ:
                    jax.config.update(_ASYNC_DISPATCH, False)
                with _environment(settings.environment):
                    jax.devices()
                self._applied = settings
            elif self._applied != settings:
                logger.warning(
                    "model '%s' wants %s, but the library has its devices once for the whole process, and they were "
                    "made with %s",
                    *(model, settings, self._applied),
                )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables that the server's own environment lacks, for this block alone: no worker shall have them."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# The library's devices are the process's, so what is known of them is, too: servers in one process share both.
PROCESS_SETTINGS = ProcessSettings()
