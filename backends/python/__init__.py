"""The `python` backend: models written as `model.py`, each instance in a worker process by default.

`backend` holds the class; `link` one worker as the server sees it: `process` (start, watch, end), `channel` (ask and
answer), `arena` (shared memory). `wire` is the codec, `settings` and `environment` read the configuration. The folder
`worker` is what runs in the process; it imports nothing from here.
"""

from backends.python.backend import PythonBackend

__all__ = ["PythonBackend"]
