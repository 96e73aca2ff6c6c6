"""Builds the same models in every format: `python examples/formats/build.py DIR [--format NAME …]`.

Each format is a module beside this one, `<name>_format.py`, with a function for each model that it can hold; a model of
it is called `<name>_<model>`. A format is left out, and said to be, where its package is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from three_models import ANSWERS

# What makes the files of each format: the packages to install.
FORMATS = {
    "onnx": "onnx",
    "openvino": "openvino",
    "jax": "jax flatbuffers",
    "python": "numpy",
    "pytorch": "torch",
    "torch_export": "torch",
    "torch_module": "torch",
    "torch_compiled": "torch and a C++ compiler",
    "forest": "treelite",
    "tensorflow": "tensorflow-cpu",
    "graphdef": "tensorflow-cpu",
    "tensorrt": "tensorrt onnx",
}


def build(directory: Path, name: str) -> list[str]:
    """Write a format's models into the repository `directory`; their names.

    Raises:
        ImportError: a package that writes this format is not installed.
    """
    module = importlib.import_module(f"{name}_format")
    built = []
    for model in ANSWERS:
        write = getattr(module, model, None)
        if write is not None:
            write(directory / f"{name}_{model}")
            built.append(f"{name}_{model}")
    return built


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the same models in every format.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="the model repository to write to")
    parser.add_argument("--format", action="append", choices=sorted(FORMATS), help="only this one; may be repeated")
    options = parser.parse_args(arguments)
    status = 0
    for name in options.format or FORMATS:
        try:
            print(f"{name}: {', '.join(build(options.directory, name))}")
        except ImportError as error:
            print(f"{name}: left out, because it needs: pip install {FORMATS[name]} ({error})", file=sys.stderr)
            status = 1 if options.format else status  # one that was asked for
    return status


if __name__ == "__main__":
    sys.exit(main())
