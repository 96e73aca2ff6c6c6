"""What the clients of this folder share: a server behind NVIDIA's `tritonclient`, over HTTP or over gRPC.

`tritonclient.http` and `tritonclient.grpc` offer the same names, so one class serves both.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DEFAULT_URLS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


class Server(Protocol):
    """What a client needs: whoever offers these two calls may stand in for a server."""

    def infer(self, model: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """Run a model; answers the named outputs, in that order."""

    def parameters(self, model: str) -> dict[str, str]:
        """The free parameters of a model's configuration."""


class Connection:
    """A `Server` over the network. Failures raise `InferenceServerException` or `OSError`."""

    def __init__(self, protocol: str, url: str) -> None:
        self._api = importlib.import_module(f"tritonclient.{protocol}")
        self._client = self._api.InferenceServerClient(url)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        return self._client.is_server_ready()

    def infer(self, model: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        tensors = []
        for name, array in inputs.items():
            tensor = self._api.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        requested = [self._api.InferRequestedOutput(name) for name in outputs]
        result = self._client.infer(model, tensors, outputs=requested)
        return [result.as_numpy(name) for name in outputs]

    def parameters(self, model: str) -> dict[str, str]:
        config: Any = self._client.get_model_config(model)
        if isinstance(config, dict):  # HTTP answers JSON
            return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        return {key: value.string_value for key, value in config.config.parameters.items()}


def command_line(description: str) -> argparse.ArgumentParser:
    """A parser with the flags that all clients have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-i", "--protocol", choices=["http", "grpc"], default="http", help="default: http")
    parser.add_argument("-u", "--url", help="host:port of the server; default: 127.0.0.1 with port 8000 or 8001")
    return parser


def run(arguments: argparse.Namespace, client: Callable[[Server], Sequence[str]]) -> int:
    """Connect, let `client` work, print its lines; answers the exit code, with a sentence where something failed."""
    show_any_character()
    url = arguments.url or DEFAULT_URLS[arguments.protocol]
    try:
        with Connection(arguments.protocol, url) as server:
            print(*client(server), sep="\n")
    except (InferenceServerException, OSError) as error:
        print(f"{arguments.protocol} server at {url}: {error}", file=sys.stderr)
        return 1
    return 0


def show_any_character() -> None:
    """Let a terminal that lacks a character show another in its place, rather than fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
