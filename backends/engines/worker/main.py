"""The engine worker's program: `python main.py CONTROL_FD`. Started by the server only.

The lines before the last ones are for any Python 3, so that an interpreter that is too old can say so.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_of_python_backend = os.path.join(os.path.dirname(os.path.dirname(_here)), "python", "worker")

if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036 (this is the check)
        sys.exit("An engine needs Python 3.10 or newer; " + sys.executable + " is " + sys.version.split()[0])
    sys.path[:] = [_here, _of_python_backend, *sys.path[1:]]
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        sys.exit(f"An engine needs numpy in its environment; {sys.executable}: {error}")

    from trioton_engine.serve import main  # type: ignore[import-not-found]  # on the path only in the worker

    main(int(sys.argv[1]))
elif __name__ == "__mp_main__":  # a process that the engine has started by `multiprocessing`: it dies with this one
    from trioton_worker.lifeline import die_with_parent  # type: ignore[import-not-found]  # on the path as above

    die_with_parent()
    if os.getppid() == 1:  # which has ended before that
        os._exit(1)
