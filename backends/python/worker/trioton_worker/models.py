"""The model loading API (`load_model`, `unload_model`, `is_model_ready`), and `get_model_dir`."""

from __future__ import annotations

from .arguments import to_bool, to_text
from .connection import Buffer
from .errors import TritonModelException
from .questions import ask
from .session import session


def get_model_dir() -> str:
    """The version directory, which holds the model's file."""
    here = session()
    return "" if here is None else here.model_directory


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, or load it anew; returns when it serves.

    `config` is a configuration as JSON text in place of the one in the repository, `files` maps `file:<version>/<name>`
    to contents in place of the repository's files. Raises TritonModelException.
    """
    model_name = to_text(model_name, "load_model: model_name")
    config = to_text(config, "load_model: config")
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    names = []
    body: list[Buffer] = []
    for name, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"load_model: files must have contents of bytes, found type {type(content)}")
        names.append((to_text(name, "load_model: the name of a file"), len(content)))
        body.append(content)
    head = {"do": "load", "model": model_name, "config": config, "files": names}
    ask(head, "Failed to load model: ", body, sum(size for _, size in names))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Returns when unloading has begun. Raises TritonModelException."""
    head = {
        "do": "unload",
        "model": to_text(model_name, "unload_model: model_name"),
        "unload_dependents": to_bool(unload_dependents, "unload_model: unload_dependents"),
    }
    ask(head, "Failed to unload model: ")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a version, or the latest one, serves. Raises TritonModelException."""
    model_name = to_text(model_name, "is_model_ready: model_name")
    model_version = to_text(model_version, "is_model_ready: model_version")
    problem = "Failed to check model readiness: "
    version = -1
    if model_version:
        try:
            version = int(model_version)
        except ValueError as error:
            raise TritonModelException(f"{problem}{_bad_version(model_version, str(error))}") from None
        if version <= 0:
            raise TritonModelException(f"{problem}{_bad_version(model_version, 'it is not')}")
    return bool(ask({"do": "ready", "model": model_name, "version": version}, problem))


def _bad_version(text: object, details: str) -> str:
    return (
        f"failed to get model version from specified version string '{text}' (details: {details}), version should be "
        "an integral value > 0"
    )
