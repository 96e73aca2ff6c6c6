"""SageMaker's `serve`: the program that a container is run with, as a command line for the server.

SageMaker runs `docker run <image> serve` and configures it by environment variables alone; their names are those of
Triton's container. Source: Triton's script of that name.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from protocol.http.cloud.model_urls import CONFIG_FILE
from trioton import tritonserver

SINGLE_REPOSITORY = Path("/opt/ml/model")
# SageMaker loads the models of an endpoint with many by itself; none is there at the start.
EMPTY_REPOSITORY = Path("/tmp/sagemaker")
_TRUE = "true"
_PREFIX = "SAGEMAKER_TRITON_"
_DEFAULT_MODEL = f"{_PREFIX}DEFAULT_MODEL_NAME"
_INFERENCE_TYPE = f"{_PREFIX}INFERENCE_TYPE"
_INFERENCE_TYPES = ("infer", "generate", "generate_stream")
# Variables whose values are those of a flag, and what it has without them.
_FLAGS = {
    f"{_PREFIX}DISABLE_MODEL_NAMESPACING": ("model-namespacing", _TRUE),
    "SAGEMAKER_BIND_TO_PORT": ("sagemaker-port", ""),
    "SAGEMAKER_SAFE_PORT_RANGE": ("sagemaker-safe-port-range", ""),
    f"{_PREFIX}ALLOW_GRPC": ("allow-grpc", "false"),
    f"{_PREFIX}ALLOW_METRICS": ("allow-metrics", "false"),
    f"{_PREFIX}METRICS_PORT": ("metrics-port", ""),
    f"{_PREFIX}GRPC_PORT": ("grpc-port", ""),
    f"{_PREFIX}THREAD_COUNT": ("sagemaker-thread-count", ""),
    f"{_PREFIX}BUFFER_MANAGER_THREAD_COUNT": ("buffer-manager-thread-count", ""),
    f"{_PREFIX}LOG_INFO": ("log-info", ""),
    f"{_PREFIX}LOG_WARNING": ("log-warning", ""),
    f"{_PREFIX}LOG_ERROR": ("log-error", ""),
    f"{_PREFIX}SHM_DEFAULT_BYTE_SIZE": ("backend-config=python,shm-default-byte-size", ""),
    f"{_PREFIX}SHM_GROWTH_BYTE_SIZE": ("backend-config=python,shm-growth-byte-size", ""),
    f"{_PREFIX}TENSORFLOW_VERSION": ("backend-config=tensorflow,version", ""),
}
_BOOLEANS = {"true": "1", "false": "0"}


class CannotServe(Exception):
    """The container was not given what it needs. The text has a line for each thing to mend."""


def serve_words(environment: Mapping[str, str], models: Path, *, gpus: int = 0) -> list[str]:
    """The words of a `tritonserver` command.

    Args:
        models: the repository of an endpoint with one model.
        gpus: how many there are.

    Raises:
        CannotServe: a variable is wrong, or the repository has no model that it can be about.
    """
    is_multi = environment.get("SAGEMAKER_MULTI_MODEL") == _TRUE
    inference_type = environment.get(_INFERENCE_TYPE) or _INFERENCE_TYPES[0]
    if inference_type not in _INFERENCE_TYPES:
        raise CannotServe(
            f"ERROR: Invalid {_INFERENCE_TYPE} '{inference_type}'\n       Expected {', '.join(_INFERENCE_TYPES)}."
        )
    ping_mode = environment.get(f"{_PREFIX}OVERRIDE_PING_MODE") or ("live" if is_multi else "ready")
    words = [
        f"--model-repository={EMPTY_REPOSITORY if is_multi else models}",
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--model-control-mode=explicit",
        f"--sagemaker-ping-mode={ping_mode}",
        f"--sagemaker-inference-type={inference_type}",
    ]
    if not is_multi:
        name = _default_model(environment, models)
        words += [f"--load-model={name}", f"--sagemaker-default-model={name}"]
    return [*words, *_flags(environment, gpus), *shlex.split(environment.get(f"{_PREFIX}ADDITIONAL_ARGS", ""))]


def _flags(environment: Mapping[str, str], gpus: int) -> Iterator[str]:
    for variable, (name, default) in _FLAGS.items():
        if value := environment.get(variable) or default:
            yield f"--{name}={value}"
    if verbosity := environment.get(f"{_PREFIX}LOG_VERBOSE"):
        yield f"--log-verbose={_BOOLEANS.get(verbosity, verbosity)}"
    if limit := environment.get(f"{_PREFIX}MODEL_LOAD_GPU_LIMIT"):
        for gpu in range(gpus):
            yield f"--model-load-gpu-limit={gpu}:{limit}"


def _default_model(environment: Mapping[str, str], models: Path) -> str:
    if (models / CONFIG_FILE).is_file():
        raise CannotServe(
            f"ERROR: Incorrect directory structure.\n       Model directory needs to contain the top level folder: "
            f"{models}/<model>/{CONFIG_FILE}, and not {models}/{CONFIG_FILE}."
        )
    name = environment.get(_DEFAULT_MODEL, "")
    if name:
        if not (models / name).is_dir():
            raise CannotServe(f"ERROR: Directory with provided {_DEFAULT_MODEL} {name} does not exist")
        return name
    print(f"WARNING: No {_DEFAULT_MODEL} provided.", file=sys.stderr)
    found = _folders(models)
    if not found:
        raise CannotServe(f"ERROR: No model found in model repository.\n       Expected a folder in {models}.")
    if len(found) > 1:
        raise CannotServe(
            f"ERROR: More than 1 model directory found in model repository.\n       Set {_DEFAULT_MODEL} to one of "
            f"{', '.join(found)}."
        )
    return found[0]


def _folders(models: Path) -> list[str]:
    try:
        return sorted(each.name for each in models.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return []


def main() -> int:
    """Serve; answers the exit code."""
    try:
        words = serve_words(os.environ, SINGLE_REPOSITORY, gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))))
    except CannotServe as error:
        print(error, file=sys.stderr)
        return 1
    if f"--model-repository={EMPTY_REPOSITORY}" in words:
        EMPTY_REPOSITORY.mkdir(parents=True, exist_ok=True)
    return tritonserver.main(words)


if __name__ == "__main__":
    sys.exit(main())
