"""The module that models import as `pb_utils`. Found only in a worker process."""

from trioton_worker.api import *  # type: ignore[import-not-found]  # noqa: F403 (on the path only in the worker)
