"""Detects the format of a model file by its content or suffix."""

from __future__ import annotations

from pathlib import Path

FOREST_BACKEND = "fil"
_HEAD_BYTES = 4096
# How UBJSON begins an object whose first key is "learner"; the length may have any width.
_UBJSON_HEADS = tuple(b"{" + length + b"learner" for length in (b"i\x07", b"U\x07", b"L" + (7).to_bytes(8, "big")))
_KERAS = (
    "it holds a model of Keras: in Python, keras.saving.load_model(file).export('my_model') writes a SavedModel; add "
    "that folder"
)
_WEIGHTS_ALONE = "it holds weights without the model they belong to: export the model, to ONNX or with torch.export"

# By suffix: what to do with a file that no backend reads as it is.
_WAYS_OUT = {
    ".keras": _KERAS,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".safetensors": _WEIGHTS_ALONE,
    ".ckpt": _WEIGHTS_ALONE,
    ".pth": (
        "if it is TorchScript (torch.jit.save), add it with --backend pytorch; if it holds weights alone, export the "
        "model"
    ),
    ".pkl": "pickles of scikit-learn are for --backend fil, where the server allows them; others are no model",
    ".joblib": "write it as a pickle (.pkl) for --backend fil, or convert the model to ONNX",
    ".tflite": "convert what it was made of to ONNX, or add the SavedModel that it was made of",
    ".engine": "if it is an engine of TensorRT, add it with --backend tensorrt",
    ".trt": "if it is an engine of TensorRT, add it with --backend tensorrt",
    ".pb": "if it is a frozen graph of TensorFlow, add it with --backend tensorflow",
    ".mlmodel": "Core ML runs on Apple's systems alone; convert what it was made of to ONNX",
    ".gguf": "no backend here runs it; a model.py can, with llama-cpp-python",
}


def forest_filename(path: Path) -> str:
    """What the backend for forests calls such a file; empty where it is none. XGBoost and LightGBM write files of any
    name, so that what is in it decides."""
    if path.suffix == ".tl":
        return "checkpoint.tl"
    head = _head(path)
    if head.startswith(_UBJSON_HEADS):
        return "xgboost.ubj"
    if head.startswith((b"binf", b"bs64")) or (path.suffix in (".model", ".bst") and b"\0" in head):
        return "xgboost.model"  # XGBoost's own format before JSON
    text = head.lstrip()
    if text.startswith(b"{") and text[1:].lstrip().startswith((b'"learner"', b'"version"')) and b'"learner"' in head:
        return "xgboost.json"
    if text.startswith(b"tree\n") and b"\nversion=" in head:
        return "model.txt"
    return ""


def way_out(path: Path) -> str:
    """A sentence about a file that cannot be added as it is; empty where there is none."""
    return _WAYS_OUT.get(path.suffix.lower(), "")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
