"""The sources of `trioton repo add`: a model file, a folder of files, or a whole model directory.

Flow: a path → [model_sources]: the model's name, its files by their places in a model directory, and a configuration to
begin with → `adding`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from backends.registry import BackendRegistry
from protocol.datatypes import DataType
from protocol.errors import ServerError
from repository.backend_fields import MODEL_FORMS, PYTHON_RUNTIME, ModelForm
from repository.initial_state import INITIAL_STATE_FOLDER
from repository.layout import CONFIG_FILE, CONFIGS_DIRECTORY
from repository.model_config import ModelConfig, ModelInput, ModelOutput
from repository.model_folders import ENGINE_ARGUMENTS, GPU_ENGINE, is_bare_model, model_files
from repository.pbtxt import parse_pbtxt
from repository.warmup_data import WARMUP_DIRECTORY
from trioton.flags.fields import UsageError
from trioton.folders import folder_name
from trioton.tools.file_kinds import FOREST_BACKEND, forest_filename, way_out

# Of a folder that has no version directories these belong to the model, not to its version.
_OF_THE_MODEL = frozenset({CONFIG_FILE, CONFIGS_DIRECTORY, WARMUP_DIRECTORY, INITIAL_STATE_FOLDER})
_SAVED_MODEL = "saved_model.pb"
# Where weights lie in a file of the model file's own name.
_WEIGHTS = {".xml": ".bin", ".jax": ".npz"}
# Backends that also take a model as a program, with a runtime of their own for it.
_RUNS_MODULES = frozenset({"pytorch"})
_FIRST_VERSION = 1


@dataclass(frozen=True, slots=True)
class GivenModel:
    """`files` maps places below the model's directory to what lies outside of the repository (files or folders),
    `texts` to what is to be written there; `config` is what is known before the model is looked at, and is written only
    where there is none among the files. `is_language_model`: the tensors are those of every engine, so none are
    written."""

    name: str
    versions: tuple[int, ...]
    files: dict[str, Path]
    config: ModelConfig
    texts: Mapping[str, str] = field(default_factory=dict)
    is_language_model: bool = False

    @property
    def is_single(self) -> bool:
        """Whether it is one version, that may stand beside others."""
        return len(self.versions) == 1

    @property
    def has_config(self) -> bool:
        return CONFIG_FILE in self.files


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command's flags say; empty and None for nothing."""

    name: str = ""
    version: int | None = None
    backend: str = ""
    max_batch_size: int | None = None
    config: Path | None = None
    inputs: tuple[ModelInput, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    is_linked: bool = False


def recognise(path: Path, wishes: Wishes, registry: BackendRegistry) -> GivenModel:
    """Reads names of files only, and a configuration for its model's name.

    Raises:
        UsageError: there is no model that could be told.
    """
    path = Path(os.path.abspath(path))
    if not path.exists():
        raise UsageError(f"'{path}' is neither a file nor a directory")
    if is_bare_model(path):
        given = _language_model(path, wishes)
    elif wishes.is_linked:
        raise UsageError(f"--link is for the folder of a language model, '{path}' is none")
    else:
        given = _directory(path, wishes, registry) if path.is_dir() else _file(path, wishes, registry)
    if (wishes.inputs or wishes.outputs) and (wishes.config is not None or given.has_config):
        raise UsageError("--input and --output are for models without a config.pbtxt, which lists them itself")
    if wishes.config is None:
        return given
    if not wishes.config.is_file():
        raise UsageError(f"--config: '{wishes.config}' is no file")
    return replace(given, files={**given.files, CONFIG_FILE: wishes.config})


def _language_model(path: Path, wishes: Wishes) -> GivenModel:
    """A folder of Hugging Face, or of OpenVINO GenAI. `model.json` tells where it is, as Triton's vLLM backend asks."""
    version = wishes.version or _FIRST_VERSION
    files = {} if wishes.is_linked else {f"{version}/{file.name}": file for file in model_files(path)}
    if (path / CONFIG_FILE).is_file():
        files.pop(f"{version}/{CONFIG_FILE}", None)
        files[CONFIG_FILE] = path / CONFIG_FILE
    texts = {}
    if wishes.is_linked or wishes.backend == GPU_ENGINE:
        place = str(path) if wishes.is_linked else "."
        texts[f"{version}/{ENGINE_ARGUMENTS}"] = f"{json.dumps({'model': place})}\n"
    config = _wished(ModelConfig(backend=wishes.backend), wishes)
    return GivenModel(wishes.name or folder_name(path) or name_of(path), (version,), files, config, texts, True)


def _file(path: Path, wishes: Wishes, registry: BackendRegistry) -> GivenModel:
    version = wishes.version or _FIRST_VERSION
    filename, config = _form_of_file(path, wishes, registry)
    files = {f"{version}/{filename}": path}
    for beside in sorted(path.parent.iterdir()):  # weights in files of their own, which the model names
        if beside.name != path.name and beside.is_file() and belongs_to(beside, path):
            files[f"{version}/{renamed(beside, path, filename)}"] = beside
    return GivenModel(wishes.name or name_of(path), (version,), files, _wished(config, wishes))


def _directory(path: Path, wishes: Wishes, registry: BackendRegistry) -> GivenModel:
    entries = sorted(entry for entry in path.iterdir() if not _is_stray(entry.name))
    versions = tuple(sorted(int(entry.name) for entry in entries if entry.is_dir() and entry.name.isdigit()))
    own = path / CONFIG_FILE
    name = wishes.name or (_configured_name(own) if own.is_file() else "") or name_of(path)
    if versions:
        if wishes.version is not None:
            raise UsageError(f"'{path}' has versions of its own: {', '.join(map(str, versions))}; --version is for one")
        return GivenModel(name, versions, {entry.name: entry for entry in entries}, _wished(ModelConfig(), wishes))
    version = wishes.version or _FIRST_VERSION
    if (path / _SAVED_MODEL).is_file():
        return GivenModel(name, (version,), {f"{version}/model.savedmodel": path}, _wished(ModelConfig(), wishes))
    files = {
        (entry.name if entry.name in _OF_THE_MODEL or _is_label(entry) else f"{version}/{entry.name}"): entry
        for entry in entries
    }
    config = ModelConfig()
    if not any(form.is_in(path) for form in MODEL_FORMS) and not own.is_file():
        model = _only_model(path, entries, wishes, registry)
        filename, config = _form_of_file(model, wishes, registry)
        files[f"{version}/{filename}"] = files.pop(f"{version}/{model.name}")
    return GivenModel(name, (version,), files, _wished(config, wishes))


def _only_model(path: Path, entries: list[Path], wishes: Wishes, registry: BackendRegistry) -> Path:
    """The one file of a folder that is a model's."""
    found = []
    for entry in entries:
        try:
            _form_of_file(entry, wishes, registry)
        except UsageError:
            continue
        if entry.suffix != ".py" and entry.is_file():
            found.append(entry)
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise UsageError(
            f"'{path}' is no model directory, and must hold one file that is a model; found: {names}; see --backend"
        )
    return found[0]


def _form_of_file(path: Path, wishes: Wishes, registry: BackendRegistry) -> tuple[str, ModelConfig]:
    """What the file is to be called, and a configuration that says for which backend where the name does not."""
    if wishes.backend:
        return _form_for(wishes.backend, path, registry, has_config=wishes.config is not None)
    forms = {form.filename: form for form in MODEL_FORMS if form.can_be_file}
    form = forms.get(path.name) or _by_suffix(path, MODEL_FORMS)
    if form is not None:
        return form.filename, ModelConfig(backend=form.backend)
    if filename := forest_filename(path):
        return filename, ModelConfig(backend=FOREST_BACKEND)
    known = {FOREST_BACKEND, *(form.backend for form in MODEL_FORMS)}
    for backend in registry.names:
        if backend in known:  # not even imported
            continue
        filename = _filename_of(backend, path.name, registry, is_asked=False)
        if filename and Path(filename).suffix == path.suffix:
            return filename, ModelConfig(backend=backend, default_model_filename=filename)
    if sentence := way_out(path):
        raise UsageError(f"'{path.name}' cannot be added as it is: {sentence}")
    suffixes = ", ".join(sorted({Path(name).suffix for name in forms}))
    raise UsageError(
        f"'{path.name}' is no model file that could be told by its name ({suffixes}), nor a forest; say what it is for "
        "with --backend"
    )


def _form_for(backend: str, path: Path, registry: BackendRegistry, *, has_config: bool) -> tuple[str, ModelConfig]:
    """As `_form_of_file`, for the backend that was asked for: its usual name for files of this suffix, else one that
    keeps the suffix, by which some backends tell what it is."""
    own = _filename_of(backend, path.name, registry, is_asked=True)
    if backend in _RUNS_MODULES and path.suffix == ".py":
        if not has_config:
            raise UsageError(
                f"'{path.name}' does not tell the inputs and outputs of its module: list them in a config.pbtxt, with "
                f'backend: "{backend}" and runtime: "{PYTHON_RUNTIME}", and give that with --config'
            )
        return PYTHON_RUNTIME, ModelConfig(backend=backend, runtime=PYTHON_RUNTIME)
    forms = [form for form in MODEL_FORMS if form.backend == backend]
    form = _by_suffix(path, forms)
    if form is not None:
        return form.filename, ModelConfig(backend=backend)
    filename = f"model{path.suffix}" if forms or not own else own
    return filename, ModelConfig(backend=backend, default_model_filename=filename)


def _by_suffix(path: Path, forms: Iterable[ModelForm]) -> ModelForm | None:
    return next((form for form in forms if form.can_be_file and Path(form.filename).suffix == path.suffix), None)


def _filename_of(backend: str, model: str, registry: BackendRegistry, *, is_asked: bool) -> str:
    """What the backend calls its model files; empty where it does not say."""
    try:
        return registry.find(backend, model=model).model_filename
    except ServerError as error:
        if is_asked:
            raise UsageError(f"--backend {backend}: {error}") from None
        return ""


def _wished(config: ModelConfig, wishes: Wishes) -> ModelConfig:
    """The configuration with what the flags say."""
    config = msgspec.structs.replace(config, input=wishes.inputs, output=wishes.outputs)
    if wishes.max_batch_size is None:
        return config
    return msgspec.structs.replace(config, max_batch_size=wishes.max_batch_size)


def given_tensor(text: str) -> tuple[str, DataType, tuple[int, ...]]:
    """`<name>:<TYPE>:<dims>` as in `INPUT__0:FP32:3,224,224`; the name may have colons in it.

    Raises:
        ValueError: it is none.
    """
    name, datatype, words = tensor_words(text)
    try:
        return name, datatype, tuple(int(word) for word in words)
    except ValueError:
        raise ValueError("dims are whole numbers, -1 for a size that varies: 3,224,224") from None


def tensor_words(text: str) -> tuple[str, DataType, list[str]]:
    """The same, with dims as they are written.

    Raises:
        ValueError: it is none.
    """
    name, *rest = text.rsplit(":", 2)
    if len(rest) != 2 or not name:
        raise ValueError("expected <name>:<type>:<dims>, as in INPUT__0:FP32:3,224,224")
    word = rest[0].strip().upper().removeprefix("TYPE_")
    datatype = DataType.__members__.get("BYTES" if word == "STRING" else word)
    if datatype is None or datatype is DataType.INVALID:
        known = ", ".join(each.name for each in DataType if each is not DataType.INVALID)
        raise ValueError(f"there is no datatype {rest[0]}; expected one of {known}")
    return name, datatype, [part.strip() for part in rest[1].strip("[] ").split(",") if part.strip()]


def given_input(text: str) -> ModelInput:
    name, datatype, dims = given_tensor(text)
    return ModelInput(name, datatype, dims=dims)


def given_output(text: str) -> ModelOutput:
    name, datatype, dims = given_tensor(text)
    return ModelOutput(name, datatype, dims=dims)


def belongs_to(beside: Path, path: Path) -> bool:
    """Whether a file carries the weights of the model file: `m.onnx.data`, `m.onnx_data`; `m.bin` of `m.xml`, `m.npz`
    of `m.jax`."""
    if path.suffix in _WEIGHTS:
        return beside.name == f"{path.stem}{_WEIGHTS[path.suffix]}"
    return path.suffix == ".onnx" and beside.name in (f"{path.name}.data", f"{path.name}_data", f"{path.stem}.data")


def renamed(beside: Path, path: Path, filename: str) -> str:
    """An ONNX file names its weights; the others are looked for by the model's own name."""
    return f"{Path(filename).stem}{_WEIGHTS[path.suffix]}" if path.suffix in _WEIGHTS else beside.name


def name_of(path: Path) -> str:
    """The model's name by that of its file or folder: one that has the usual name is called as what it lies in."""
    usual = {Path(form.filename).stem for form in MODEL_FORMS}
    for each in _upwards(path):
        stem = each.name if each.is_dir() else each.stem
        if stem not in usual and not stem.isdigit() and stem:
            return stem
    raise UsageError(f"'{path}' tells no name for the model; give one with --name")


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from path.parents


def _configured_name(path: Path) -> str:
    try:
        return parse_pbtxt(path.read_text(encoding="utf-8"), source=str(path)).name
    except (OSError, UnicodeDecodeError, ServerError):
        return ""  # looking at the model as a whole says what is wrong


def _is_label(entry: Path) -> bool:
    return entry.is_file() and entry.suffix == ".txt"


def _is_stray(name: str) -> bool:
    return name.startswith(".") or name.endswith("~") or name == "__pycache__"
