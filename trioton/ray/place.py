"""What Ray tells a replica: its node, its application, and the directory."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from trioton.ray.directory import open_directory
from trioton.ray.entries import Entry

_CALL_SECONDS = 10.0


class RayPlace:
    """Of the actor that this runs in; without a name the directory is left out."""

    def __init__(self, directory: str) -> None:
        context = ray.get_runtime_context()
        self.node: str = context.get_node_id()
        self.host: str = ray.util.get_node_ip_address()
        self.application = _application()
        self._directory = open_directory(directory) if directory else None

    def report(self, entry: Entry) -> None:
        self._call("report", entry)

    def leave(self, replica: str) -> None:
        self._call("leave", replica)

    def remove(self, replica: str) -> None:
        self._call("remove", replica)

    def give_up(self) -> None:
        logging.shutdown()
        os._exit(1)  # an exit that Python is to clean up after would wait for threads

    def _call(self, method: str, argument: Any) -> None:
        if self._directory is not None:
            ray.get(getattr(self._directory, method).remote(argument), timeout=_CALL_SECONDS)


def _application() -> str:
    try:
        name: str = serve.get_replica_context().app_name
    except RayServeException:  # no replica of Serve
        return ""
    return name
