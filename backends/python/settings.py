"""Options of the Python backend: `--backend-config=python,<key>=<value>` and a model's `parameters`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from backends.interface import ModelSource
from backends.parameters import parse_bool, parse_int
from backends.python.environments.environment import PARAMETER, VARIABLE_PREFIX, WORKING_DIRECTORY
from backends.python.worker.trioton_worker.frames import DEFAULT_CALLS
from protocol.errors import InvalidArgument, Unsupported

_MIB = 1 << 20
_SHM_LIMIT = 1024 * _MIB
_CONCURRENCY = "MAX_CONCURRENT_EXECUTE"
# Batches of an `async def execute` that run beside each other where the configuration does not say.
DEFAULT_CONCURRENCY = 32
# Of a decoupled model, whose batches Triton only begins, however many there are.
_DECOUPLED_CONCURRENCY = 4096
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"


_ISOLATION = "ISOLATION"
# What the server's own process has once.
_OF_A_PROCESS = frozenset({PARAMETER, WORKING_DIRECTORY})
_RESTART_AFTER_REQUESTS = "RESTART_AFTER_REQUESTS"
_RESTART_AFTER_MEMORY = "RESTART_AFTER_MEMORY_MIB"
_ALLOW_IN_PROCESS = "allow-in-process"


class Isolation(enum.Enum):
    """What separates the instances of a model from each other and from the server; the parameter ISOLATION."""

    PROCESS = "process"  # a worker process each
    THREADS = "threads"  # threads of one worker process
    FORK = "fork"  # a worker process each, forked from one in which the model was loaded
    IN_PROCESS = "in_process"  # threads of the server's own process
    IN_LOOP = "in_loop"  # the thread of the server's loop


# Those for which the operator must allow that models run in the server's process.
_IN_SERVER = frozenset({Isolation.IN_PROCESS, Isolation.IN_LOOP})


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """`calls` of other models may be under way at a time for each instance (backend setting `thread-pool-size`), and
    `concurrency` batches where its `execute` is a coroutine (the model's parameter MAX_CONCURRENT_EXECUTE). A worker is
    replaced after `restart_after_requests`, or when it takes more than `restart_after_memory` bytes; 0 is never. Unless
    `force_cpu_inputs`, an instance on a GPU gets its inputs there.

    The others are the shared memory of each instance, in bytes, for inputs and again for outputs. A segment is made
    when a batch first needs one, and grows in multiples of `shm_growth_byte_size`. Batches cross inside the socket's
    frames where `is_inline` (backend setting `inline-tensors`, or the model's parameter INLINE_TENSORS, which wins).
    Either way no more than `shm_limit_byte_size` is there at a time.
    """

    shm_default_byte_size: int = _MIB
    shm_growth_byte_size: int = _MIB
    shm_limit_byte_size: int = _SHM_LIMIT
    is_inline: bool = False
    calls: int = DEFAULT_CALLS
    concurrency: int = DEFAULT_CONCURRENCY
    isolation: Isolation = Isolation.PROCESS
    restart_after_requests: int = 0
    restart_after_memory: int = 0
    force_cpu_inputs: bool = True
    # What the model is debugged with (backend setting `debugger`, or the model's parameter DEBUGGER, which wins): pdb,
    # debugpy or debugpy:<port>; empty for nothing.
    debugger: str = ""
    # Whether worker processes may be forked from a fork server (backend setting `worker-fork-server`).
    has_fork_server: bool = True

    @classmethod
    def of(cls, source: ModelSource) -> PythonSettings:
        """Read and check what concerns one model.

        Raises:
            InvalidArgument, Unsupported: a value cannot be; the texts are Triton's where it has the option.
        """
        place = f"model '{source.name}': backend setting"

        def number(key: str, default: int) -> int:
            given = source.settings.get(key)
            return default if given is None else parse_int(given, place=f"{place} '{key}'")

        default_size = number("shm-default-byte-size", _MIB)
        if default_size < _MIB:
            raise InvalidArgument("shm-default-byte-size can't be smaller than 4 MiBs")
        growth = number("shm-growth-byte-size", _MIB)
        if growth <= 0:
            raise InvalidArgument("shm-growth-byte-size can't be smaller than or equal to zero.")
        limit = number("shm-limit-byte-size", max(_SHM_LIMIT, default_size))
        if limit < default_size:
            raise InvalidArgument(f"{place} 'shm-limit-byte-size' must be at least {default_size}, got {limit}")
        calls = number("thread-pool-size", DEFAULT_CALLS)
        if calls < 1:
            raise InvalidArgument("thread-pool-size can't be less than 1.")
        inline = source.config.parameter("INLINE_TENSORS", source.settings.get("inline-tensors", "false"))
        isolation = _isolation(source)
        is_inline = parse_bool(inline, place=f"model '{source.name}': INLINE_TENSORS")
        return cls(
            default_size,
            growth,
            limit,
            is_inline,
            calls,
            _concurrency(source),
            isolation,
            *_restarts(source, isolation),
            _force_cpu(source),
            debugger=_debugger(source, isolation),
            has_fork_server=parse_bool(
                source.settings.get("worker-fork-server", "true"), place=f"{place} 'worker-fork-server'"
            ),
        )


def _concurrency(source: ModelSource) -> int:
    place = f"model '{source.name}': {_CONCURRENCY}"
    default = _DECOUPLED_CONCURRENCY if source.config.is_decoupled else DEFAULT_CONCURRENCY
    value = parse_int(source.config.parameter(_CONCURRENCY, str(default)), place=place)
    if value < 1:
        raise InvalidArgument(f"{place} must be at least 1, got {value}")
    return value


def _debugger(source: ModelSource, isolation: Isolation) -> str:
    given = source.config.parameter("DEBUGGER", source.settings.get("debugger", ""))
    if not given:
        return ""
    place = f"model '{source.name}': debugger"
    try:
        found = debugger(given)
    except ValueError as error:
        raise InvalidArgument(f"{place}: {error}, got '{given}'") from None
    if isolation is not Isolation.PROCESS:
        raise InvalidArgument(
            f"{place} needs a process for each instance, but {_ISOLATION} is {isolation.value}; expected process"
        )
    return found


def debugger(text: str) -> str:
    """The name of a debugger, as it is. Raises ValueError for what is none."""
    name, colon, port = text.partition(":")
    if name not in ("pdb", "debugpy") or (colon and (name == "pdb" or not port.isdigit())):
        raise ValueError("expected pdb, debugpy or debugpy:<port>")
    return text


def _isolation(source: ModelSource) -> Isolation:
    place = f"model '{source.name}': {_ISOLATION}"
    given = source.config.parameter(_ISOLATION, Isolation.PROCESS.value)
    try:
        isolation = Isolation(given)
    except ValueError:
        known = ", ".join(each.value for each in Isolation)
        raise InvalidArgument(f"{place} must be one of {known}, got '{given}'") from None
    if isolation in _IN_SERVER:
        allowed = source.settings.get(_ALLOW_IN_PROCESS, "false")
        if not parse_bool(allowed, place=f"model '{source.name}': backend setting '{_ALLOW_IN_PROCESS}'"):
            raise InvalidArgument(
                f"{place} is {given}, which the server's operator has not allowed: "
                f"--backend-config=python,{_ALLOW_IN_PROCESS}=true does"
            )
        own = [key for key in source.config.parameters if key in _OF_A_PROCESS or key.startswith(VARIABLE_PREFIX)]
        if own:
            raise InvalidArgument(f"{place} is {given}, so the model cannot have {', '.join(sorted(own))} of its own")
    if isolation is Isolation.IN_LOOP and source.config.is_decoupled:
        raise InvalidArgument(
            f"{place} is in_loop, which a decoupled model cannot have: its response senders may have to wait; use "
            "in_process"
        )
    return isolation


def _restarts(source: ModelSource, isolation: Isolation) -> tuple[int, int]:
    """After how many requests, and bytes of memory."""

    def number(key: str) -> int:
        place = f"model '{source.name}': {key}"
        if key not in source.config.parameters:
            return 0
        value = parse_int(source.config.parameter(key), place=place)
        if value < 1:
            raise InvalidArgument(f"{place} must be at least 1, got {value}")
        if isolation not in (Isolation.PROCESS, Isolation.FORK):
            raise InvalidArgument(
                f"{place} needs a process for each instance, but {_ISOLATION} is {isolation.value}; expected process "
                "or fork"
            )
        if source.config.sequence_batching is not None:
            raise InvalidArgument(
                f"{place} cannot be used with sequence_batching: what the model knows of a sequence would be lost"
            )
        return value

    return number(_RESTART_AFTER_REQUESTS), number(_RESTART_AFTER_MEMORY) * _MIB


def _force_cpu(source: ModelSource) -> bool:
    value = source.config.parameter(_FORCE_CPU, "yes")
    if value not in ("yes", "no"):
        raise Unsupported(f"Incorrect value for {_FORCE_CPU}: {value}'")
    return value == "yes"
