"""Helpers for tests that construct a `TritonPythonModel` themselves: its class, and the arguments of `initialize`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from repository.backend_fields import PYTHON_RUNTIME
from repository.json_form import to_json_form
from repository.layout import ModelDirectory, first_version_directory
from repository.loader import read_config
from trioton.flags.fields import UsageError
from trioton.run import find_run_model

PathLike: TypeAlias = str | os.PathLike[str]
"""Where a model lies."""


def model_class(path: PathLike) -> Any:
    """The class `TritonPythonModel` of a model, for a test that makes and calls its object itself.

    Raises:
        ValueError: there is no Python model at the path.
    """
    file = _model_file(find_tested_model(path))
    for folder in (file.parent, file.parent.parent):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"_trioton_test_{abs(hash(file))}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"'{path}' has no {file.name}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TritonPythonModel


def initialize_arguments(path: PathLike, **changes: str) -> dict[str, str]:
    """What `initialize` gets, for a test that makes the model's object itself; `changes` take the place of some."""
    directory = find_tested_model(path)
    file = _model_file(directory)
    return {
        "model_config": json.dumps(to_json_form(read_config(directory))),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{directory.name}_0",
        "model_instance_device_id": "0",
        "model_repository": str(directory.path),
        "model_version": "1" if directory.is_flat else file.parent.name,
        "model_name": directory.name,
        **changes,
    }


def find_tested_model(path: PathLike) -> ModelDirectory:
    """As `trioton run` finds it. Raises ValueError where there is none."""
    try:
        return find_run_model(Path(path))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _model_file(directory: ModelDirectory) -> Path:
    folder = first_version_directory(directory) or directory.path
    return folder / (read_config(directory).default_model_filename or PYTHON_RUNTIME)
