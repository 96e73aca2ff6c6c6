"""A container's entry point: runs what the container is given, without a shell.

`tritonserver …` as KServe has it, `trioton …`, `serve` as SageMaker has it, flags alone as Vertex AI has them, or any
other program.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

FLAGS = "tritonserver"
_DEFAULT = (FLAGS, "--help")


def words_of(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """A program and its arguments. Flags alone are the server's, and with Vertex AI's `AIP_MODE` all words are."""
    words = list(arguments)
    if environment.get("AIP_MODE") and (not words or words[0] not in _PROGRAMS):
        return [FLAGS, *words]
    if words and words[0].startswith("-"):
        return [FLAGS, *words]
    return words or list(_DEFAULT)


def main() -> int:
    """Run it; answers the exit code, if it is one of the server's own programs."""
    # The first process of a container ignores signals that it does not handle, also before the server does.
    signal.signal(signal.SIGTERM, _leave)
    words = words_of(sys.argv[1:], os.environ)
    run = _PROGRAMS.get(words[0])
    if run is None:
        return _become(words)
    return run(words[1:])


def _trioton(words: Sequence[str]) -> int:
    from trioton.cli import main

    return main(words)


def _tritonserver(words: Sequence[str]) -> int:
    from trioton.tritonserver import main

    return main(words)


def _serve(words: Sequence[str]) -> int:
    from trioton.sagemaker_serve import main

    if words:
        print(f"serve takes no arguments, got {' '.join(words)}", file=sys.stderr)
        return 1
    return main()


_PROGRAMS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "trioton": _trioton,
    "tritonserver": _tritonserver,
    "serve": _serve,
}


def _become(words: Sequence[str]) -> int:
    try:
        os.execvp(words[0], [*words])
    except OSError as error:
        print(f"cannot run '{words[0]}': {error.strerror}", file=sys.stderr)
        return 127


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
