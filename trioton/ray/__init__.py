"""Public: servers under Ray Serve, as its control plane, `import_path: trioton.ray:app`.

    Serve's controller → a replica (an actor) → [a server process] ← clients and balancers, straight to its ports

Serve places, starts, checks, scales and updates replicas. Requests do not pass through its proxies, which cost a
multiple of what a request costs here; `serving` says where the servers are. Needs the extra `ray`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trioton.ray.entries import Entry
from trioton.ray.options import ServerOptions
from trioton.ray.scaling import Scaling

__all__ = ["Entry", "Scaling", "ServerOptions", "app", "serving"]


def app(args: Mapping[str, Any]) -> Any:
    """Build the application that `serve deploy` and `serve.run` take.

    Args:
        args: the fields of `ServerOptions`.

    Raises:
        ValueError: a field that is not known, or not what is expected; it names the field.
        ImportError: Ray Serve is not installed.
    """
    from trioton.ray.application import application

    return application(args)


def serving(application: str | None = None, directory: str = "trioton") -> list[Entry]:
    """The servers that requests may go to, oldest first. Ray must have been initialized.

    Args:
        application: the name of an application of Serve; None for those of all.
        directory: its name, as `ServerOptions` has it.

    Raises:
        TimeoutError: the directory does not answer.
        ImportError: Ray is not installed.
    """
    from trioton.ray.directory import serving as found

    return found(application, directory)
