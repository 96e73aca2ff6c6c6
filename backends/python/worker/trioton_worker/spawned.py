"""Stands for `__main__` in the processes that a model spawns: what a worker does that its model's modules count on."""

from .hiding import hide_server

hide_server()
del hide_server
