"""Triton's C extension module by its name, for models that import its classes from there."""

from trioton_worker.api import EXTENSION  # type: ignore[import-not-found]  # on the path only in the worker

globals().update(EXTENSION)
__all__ = list(EXTENSION)
