"""Tells the types of files from their content, with magika's model `file_type`.

    python examples/clients/file_type.py [FILE …] [-i grpc] [-u HOST:PORT]

Without arguments it looks at some files of each kind around it. The model sees the first and the last kilobyte of a
file. How these become its input, and which label each score stands for, stands in the `parameters` of its
configuration, which the server tells: this client needs nothing but the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from connection import Server, command_line, run

MAX_BATCH = 64  # max_batch_size of the model
FILES_PER_KIND = 2
SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "node_modules"}


@dataclass(frozen=True)
class FileType:
    path: Path
    label: str  # "python"; empty where the file is too short to tell
    description: str  # "Python source"
    score: float  # 0 to 1
    is_sure: bool  # whether the score reaches the label's own threshold


def features(path: Path, model_config: dict[str, Any]) -> np.ndarray | None:
    """The model's input for one file, INT32 [beg_size + end_size]; None where too little stands in it.

    The first bytes without leading white space, filled up on the right, then the last bytes without trailing white
    space, filled up on the left. Bytes are 0 to 255; `padding_token` is none of them.
    """
    size = path.stat().st_size
    block = min(size, model_config["block_size"])
    with path.open("rb") as file:
        first = file.read(block).lstrip()
        file.seek(size - block)
        last = file.read(block).rstrip()
    if len(first) < model_config["min_file_size_for_dl"]:
        return None
    beg_size, end_size = model_config["beg_size"], model_config["end_size"]
    vector = np.full(beg_size + end_size, model_config["padding_token"], dtype=np.int32)
    first, last = first[:beg_size], last[-end_size:]
    vector[: len(first)] = np.frombuffer(first, dtype=np.uint8)
    vector[len(vector) - len(last) :] = np.frombuffer(last, dtype=np.uint8)
    return vector


def file_types(server: Server, paths: Sequence[Path]) -> list[FileType]:
    """The types of the files, in their order."""
    parameters = server.parameters("file_type")
    model_config = json.loads(parameters["model_config"])
    descriptions = json.loads(parameters["descriptions"])

    answers = {path: FileType(path, "", "too short to tell", 0.0, is_sure=False) for path in paths}
    inputs = {path: vector for path in paths if (vector := features(path, model_config)) is not None}
    with_input = list(inputs)
    for start in range(0, len(with_input), MAX_BATCH):
        chunk = with_input[start : start + MAX_BATCH]
        batch = np.stack([inputs[path] for path in chunk])
        (scores,) = server.infer("file_type", {"bytes": batch}, ["target_label"])
        for path, row in zip(chunk, scores, strict=True):
            best = int(row.argmax())
            label = model_config["target_labels_space"][best]
            threshold = model_config["thresholds"].get(label, model_config["medium_confidence_threshold"])
            score = float(row[best])
            answers[path] = FileType(path, label, descriptions[label], score, is_sure=score >= threshold)
    return [answers[path] for path in paths]


def files_around(folder: Path) -> list[Path]:
    """A few files of each kind (by suffix) below `folder`, the largest of each kind: they say most."""
    by_kind: dict[str, list[Path]] = {}
    for path in walk(folder):
        by_kind.setdefault(path.suffix or path.name, []).append(path)
    chosen = []
    for paths in by_kind.values():
        chosen += sorted(paths, key=lambda path: path.stat().st_size)[-FILES_PER_KIND:]
    return sorted(chosen)


def walk(folder: Path) -> Iterator[Path]:
    """The files below `folder`, without hidden ones and what tools leave behind."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in SKIPPED_FOLDERS or path.is_symlink():
            continue
        if path.is_dir():
            yield from walk(path)
        elif path.is_file() and path.stat().st_size > 0:
            yield path


def default_folder() -> Path:
    """The checkout that this file lies in, or the folder of examples where it is installed."""
    examples = Path(__file__).resolve().parents[1]
    return examples.parent if (examples.parent / "pyproject.toml").is_file() else examples


def describe(types: Sequence[FileType], folder: Path) -> list[str]:
    names = [str(t.path.relative_to(folder)) if t.path.is_relative_to(folder) else str(t.path) for t in types]
    width = max(map(len, names), default=0)
    return [f"{name:{width}}  {in_words(file_type)}" for name, file_type in zip(names, types, strict=True)]


def in_words(file_type: FileType) -> str:
    if not file_type.label:
        return file_type.description
    return (
        f"{'' if file_type.is_sure else 'perhaps '}{file_type.description} ({file_type.label}, {file_type.score:.0%})"
    )


def main() -> int:
    parser = command_line("Tell the types of files from their content.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if missing := [str(path) for path in arguments.files if not path.is_file()]:
        parser.error(f"not a file: {', '.join(missing)}")
    folder = Path.cwd() if arguments.files else default_folder()
    paths = [path.resolve() for path in arguments.files] or files_around(folder)
    return run(arguments, lambda server: describe(file_types(server, paths), folder))


if __name__ == "__main__":
    sys.exit(main())
