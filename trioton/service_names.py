"""Names and addresses of a server's services, as its log and its errors have them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from trioton.settings import Address
from trioton.start_checks import StartError

# Triton's words for the services, as its log has them.
SERVICE_NAMES = {
    "grpc": "GRPCInferenceService",
    "http": "HTTPService",
    "openai": "OpenAI frontend",
    "sagemaker": "Sagemaker HTTPService",
    "vertex-ai": "Vertex AI HTTPService",
    "metrics": "Metrics Service",
}


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def listening(word: str, address: Address) -> Iterator[None]:
    """A service is told to listen there. Raises StartError for OSError."""
    try:
        yield
    except OSError as error:
        raise StartError(
            f"cannot listen on {address_text(address)} for {SERVICE_NAMES[word]}: {_reason(error)}; "
            f"choose another address with --{word}-address or --{word}-port"
        ) from None


def _reason(error: OSError) -> str:
    """Why an address cannot be had, in the system's words."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
