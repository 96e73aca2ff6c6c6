"""The command `trioton`, also as `python -m trioton`.

Ctrl-C ends it with the same exit code from its first moment on, and what is imported is not searched for garbage.
"""

import sys

from trioton.imports import imports

INTERRUPTED = 130  # 128 + SIGINT, as `trioton.cli` has it, which is not there yet


def main() -> int:
    """Run the command that the arguments say; answers the exit code."""
    try:
        with imports():
            from trioton import cli
    except KeyboardInterrupt:
        return INTERRUPTED
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
