"""Auto-completion, stage 1: deduces backend and platform of a model from its configuration and its files.

Flow: parsed configuration -> [backend fields] -> validation -> the backend's own completion. Runs also where
auto-completion is off. Source: Triton's auto-generated model configuration.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory, first_version_directory
from repository.model_config import ModelConfig
from repository.model_folders import ANY_ENGINE, EngineChoice, folder_kind

PYTHON_RUNTIME = "model.py"


@dataclass(frozen=True, slots=True)
class ModelForm:
    """One form in which a known backend takes a model.

    `platform` is empty where the backend has none; `filename` is the default name of the model file, which may be a
    directory only where `can_be_directory` and a file only where `can_be_file`.
    """

    backend: str
    platform: str
    filename: str
    can_be_file: bool = True
    can_be_directory: bool = False

    def is_in(self, directory: Path) -> bool:
        path = directory / self.filename
        return (self.can_be_file and path.is_file()) or (self.can_be_directory and path.is_dir())


# The order decides where a version directory holds several known files, and what is assumed of a backend with two
# forms and no file to tell.
MODEL_FORMS = (
    ModelForm("tensorflow", "tensorflow_savedmodel", "model.savedmodel", can_be_file=False, can_be_directory=True),
    ModelForm("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ModelForm("tensorrt", "tensorrt_plan", "model.plan"),
    ModelForm("onnxruntime", "onnxruntime_onnx", "model.onnx", can_be_directory=True),
    ModelForm("openvino", "", "model.xml"),
    ModelForm("pytorch", "pytorch_libtorch", "model.pt"),
    ModelForm("pytorch", "torch_aoti", "model.pt2"),
    ModelForm("pytorch", "torch_export", "model.pt2"),
    ModelForm("jax", "", "model.jax"),
    ModelForm("caffe2", "caffe2_netdef", "model.netdef"),
    ModelForm("python", "", "model.py"),
)

_PLATFORM_ALIASES = {"libtorch": "pytorch_libtorch"}
_BACKEND_OF_PLATFORM = {form.platform: form.backend for form in MODEL_FORMS if form.platform}
_BACKENDS_WITH_PLATFORM = frozenset(_BACKEND_OF_PLATFORM.values())


def fill_backend_fields(
    config: ModelConfig, directory: ModelDirectory, engines: EngineChoice = ANY_ENGINE
) -> ModelConfig:
    """Fill `name`, `backend`, `platform` and `default_model_filename` where they are empty and can be known. `engines`
    says which engine a folder of a language model is for.

    Raises:
        InvalidArgument: nothing tells the backend.
        NotFound: the model's directory is gone.
    """
    config = msgspec.structs.replace(config, name=config.name or directory.name)
    if config.is_ensemble or config.ensemble_scheduling is not None or config.runtime == PYTHON_RUNTIME:
        return config
    version = first_version_directory(directory)
    form = _form_of(config, version)
    if form is not None:
        return msgspec.structs.replace(
            config,
            backend=config.backend or form.backend,
            platform=config.platform or form.platform,
            default_model_filename=config.default_model_filename or form.filename,
        )
    if config.backend or config.platform or config.default_model_filename:
        return config  # a backend of somebody else, or a mistake that validation names
    kind = None if version is None else folder_kind(version)
    if kind is not None:
        return msgspec.structs.replace(config, backend=engines.of(kind))
    _, dot, backend = config.name.partition(".")
    if not dot:
        raise InvalidArgument(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    return msgspec.structs.replace(config, backend=backend, default_model_filename=f"model.{backend}")


def is_known_pair(platform: str, backend: str) -> bool:
    """Whether platform and backend agree: the platform is empty, or belongs to this backend, or neither is known."""
    owner = _BACKEND_OF_PLATFORM.get(_PLATFORM_ALIASES.get(platform, platform))
    known = backend if backend in _BACKENDS_WITH_PLATFORM else None
    return not platform or owner == known


def _form_of(config: ModelConfig, version: Path | None) -> ModelForm | None:
    """The form that the first of backend, platform, file name and files to be given points at."""
    platform = _PLATFORM_ALIASES.get(config.platform, config.platform)
    present: Set[ModelForm] = {form for form in MODEL_FORMS if version is not None and form.is_in(version)}
    if config.backend:
        forms = [form for form in MODEL_FORMS if form.backend == config.backend]
    elif platform:
        forms = [form for form in MODEL_FORMS if form.platform == platform]
    elif config.default_model_filename:
        forms = [form for form in MODEL_FORMS if form.filename == config.default_model_filename]
    else:
        forms = [form for form in MODEL_FORMS if form in present]
    if not forms:
        return None

    def closeness(form: ModelForm) -> tuple[bool, bool, bool]:
        return (
            form.platform == platform != "",
            form.filename == config.default_model_filename,
            form in present,
        )

    return max(forms, key=closeness)  # the first of equals
