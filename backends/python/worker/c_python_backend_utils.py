"""Triton's extension module by its name, for models that import it: the classes behind `pb_utils`."""

from trioton_worker.api import EXTENSION  # type: ignore[import-not-found]  # on the path only in the worker

globals().update(EXTENSION)
__all__ = list(EXTENSION)
