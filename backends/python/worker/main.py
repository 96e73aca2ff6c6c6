"""The worker's program: `python main.py CONTROL_FD`, with `host` or `fork_server` behind it for those processes.

Started by the server only.

The lines before the last ones are for any Python 3, so that an interpreter that is too old can say so.
"""

import os
import sys

# Not only as a script's first entry: PYTHONSAFEPATH leaves that out. The loader moves it behind the model's folders.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036 (this is the check)
        sys.exit("The Python backend needs Python 3.8 or newer; " + sys.executable + " is " + sys.version.split()[0])
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        sys.exit(f"The Python backend needs numpy in the model's environment; {sys.executable}: {error}")

    if sys.argv[2:] == ["host"]:
        from trioton_worker.host import main  # type: ignore[import-not-found]  # on the path only in the worker
    elif sys.argv[2:] == ["fork_server"]:
        from trioton_worker.fork_server import main  # type: ignore[import-not-found]
    else:
        from trioton_worker.serve import main  # type: ignore[import-not-found]

    main(int(sys.argv[1]))
