"""Stand-in for `__main__` in processes that a model spawns (multiprocessing)."""

from .hiding import hide_server

hide_server()
del hide_server
