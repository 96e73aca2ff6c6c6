"""Packages that converters need: which are missing, and what installs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

# By the name that is imported, the extra that brings it.
_EXTRAS = {
    "torch": "convert-torch",
    "onnxscript": "convert-torch",
    "onnx": "convert-onnx",
    "onnxruntime": "cpu",
    "openvino": "openvino",
    "nncf": "convert-openvino-int8",
    "tensorrt": "tensorrt",
    "transformers": "convert-transformers",
    "tensorflow": "tensorflow",
    "tf2onnx": "convert-tensorflow",
    "sklearn": "convert-sklearn",
    "skl2onnx": "convert-sklearn",
    "pandas": "convert-sklearn",
    "joblib": "convert-sklearn",
    "treelite": "forests",
    "onnxmltools": "convert-forests",
}


def missing(packages: Iterable[str]) -> list[str]:
    """Those that cannot be imported here; nothing is imported."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def how_to_install(packages: Iterable[str]) -> str:
    names = list(packages)
    extras = ",".join(dict.fromkeys(_EXTRAS[name] for name in names if name in _EXTRAS))
    words = [f"'trioton[{extras}]'" if extras else "", *(name for name in names if name not in _EXTRAS)]
    return f"not installed: {', '.join(names)}; pip install {' '.join(filter(None, words))}"
