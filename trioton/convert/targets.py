"""The formats that a model is converted to: their backends, precisions, and the packages that make them."""

from __future__ import annotations

from dataclasses import dataclass

from trioton.convert.sources import FOREST_KINDS, TORCH_KINDS, SourceKind
from trioton.convert.tolerances import Precision


@dataclass(frozen=True, slots=True)
class Target:
    """`filename` is the model file's place in a version directory. `makes` names the program in `programs/` that makes
    it, of which file the plan decides; `packages` are what pip calls what it imports. `lists_tensors`: the file does
    not tell its inputs and outputs itself. `is_portable`: it also runs on processors of other kinds."""

    name: str
    backend: str
    filename: str
    precision: Precision = Precision.FP32
    makes: str = ""
    packages: tuple[str, ...] = ()
    is_portable: bool = True
    needs_samples: bool = False


AS_IS = "as-is"

TARGETS = {
    target.name: target
    for target in (
        Target("onnx", "onnxruntime", "model.onnx"),
        Target("onnx-optimised", "onnxruntime", "model.onnx", makes="optimise_onnx", packages=("onnxruntime",)),
        Target(
            "onnx-int8",
            "onnxruntime",
            "model.onnx",
            Precision.INT8,
            "quantise_onnx",
            ("onnxruntime", "onnx"),
            needs_samples=True,
        ),
        Target(
            "onnx-int8-weights", "onnxruntime", "model.onnx", Precision.INT8, "quantise_onnx", ("onnxruntime", "onnx")
        ),
        Target("pt2", "pytorch", "model.pt2", makes="export_torch", packages=("torch",)),
        Target("aoti", "pytorch", "model.pt2", makes="compile_torch", packages=("torch",), is_portable=False),
        Target("openvino", "openvino", "model.xml", makes="to_openvino", packages=("openvino",)),
        Target("openvino-fp16", "openvino", "model.xml", Precision.FP16, "to_openvino", ("openvino",)),
        Target(
            "openvino-int8",
            "openvino",
            "model.xml",
            Precision.INT8,
            "quantise_openvino",
            ("openvino", "nncf"),
            needs_samples=True,
        ),
        # These two are for the GPU that they are made on, and were not seen running.
        Target("tensorrt", "tensorrt", "model.plan", makes="to_tensorrt", packages=("tensorrt",), is_portable=False),
        Target(
            "tensorrt-fp16",
            "tensorrt",
            "model.plan",
            Precision.FP16,
            "to_tensorrt",
            ("tensorrt",),
            is_portable=False,
        ),
    )
}

# What makes ONNX of each kind of source, and what that imports.
TO_ONNX = {
    **dict.fromkeys(TORCH_KINDS, ("torch_to_onnx", ("torch", "onnx", "onnxscript"))),
    SourceKind.HUGGING_FACE: ("torch_to_onnx", ("torch", "onnx", "onnxscript", "transformers")),
    SourceKind.SAVED_MODEL: ("tensorflow_to_onnx", ("tensorflow", "tf2onnx")),
    SourceKind.SKLEARN: ("sklearn_to_onnx", ("sklearn", "skl2onnx", "onnx")),
    SourceKind.XGBOOST: ("forest_to_onnx", ("xgboost", "onnxmltools", "onnx")),
    SourceKind.LIGHTGBM: ("forest_to_onnx", ("lightgbm", "onnxmltools", "onnx")),
}
# The sources that a backend serves as they are; forests by the name of their kind of file.
SERVED = {
    SourceKind.TORCH_SCRIPT: ("pytorch", "model.pt"),
    SourceKind.EXPORTED: ("pytorch", "model.pt2"),
    SourceKind.ONNX: ("onnxruntime", "model.onnx"),
    SourceKind.SAVED_MODEL: ("tensorflow", "model.savedmodel"),
    **dict.fromkeys(FOREST_KINDS, ("fil", "")),
}
# What is tried where nothing is asked for: full precision, on any processor.
DEFAULTS = {
    SourceKind.MODULE: ("onnx", "pt2", "openvino"),
    SourceKind.TORCH_SCRIPT: (AS_IS, "onnx", "openvino"),
    SourceKind.EXPORTED: (AS_IS, "onnx", "openvino"),
    SourceKind.HUGGING_FACE: ("onnx", "pt2", "openvino"),
    SourceKind.ONNX: (AS_IS, "openvino"),
    SourceKind.SAVED_MODEL: (AS_IS, "onnx", "openvino"),
    SourceKind.SKLEARN: ("onnx",),
    SourceKind.XGBOOST: (AS_IS, "onnx"),
    SourceKind.LIGHTGBM: (AS_IS, "onnx"),
    SourceKind.TREELITE: (AS_IS,),
}
_OF_TREES = ("onnx", "onnx-optimised")


def refusal(target: str, kind: SourceKind) -> str:
    """Why this source cannot become that; empty where it can."""
    if target == AS_IS:
        return "" if kind in SERVED else f"no backend serves a {kind.value} source as it is"
    if kind is SourceKind.TREELITE:
        return "a treelite file is served as it is (as-is), and no library converts it to another format"
    if kind in FOREST_KINDS and target not in _OF_TREES:
        return f"forests become {' and '.join(_OF_TREES)}, not {target}"
    if kind is SourceKind.SKLEARN and TARGETS[target].precision.is_reduced:
        return f"models of scikit-learn are not converted to reduced precision ({target})"
    if target in ("pt2", "aoti") and (kind not in TORCH_KINDS or kind is SourceKind.TORCH_SCRIPT):
        return f"{target} is made of torch modules and .pt2 files, not of {kind.value}"
    if target == "aoti" and kind is SourceKind.EXPORTED:
        return "aoti has no names for the arguments of a .pt2 file; compile the module that it was made of"
    return ""
