"""What models import: `import triton_python_backend_utils as pb_utils`. Found only in a worker process."""

from trioton_worker.api import *  # type: ignore[import-not-found]  # noqa: F403 (on the path only in the worker)
