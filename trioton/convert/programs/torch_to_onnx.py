"""Step: torch to ONNX, by the exporter on `torch.export`, or where that fails by the older one."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

from trioton.convert.programs.loading import description_of, source_of
from trioton.convert.programs.torch_source import export, load_module, tensors_of
from trioton.convert.sources import Source, SourceKind
from trioton.convert.storage import load_cases
from trioton.convert.tensors import Arrays, Description

# The older exporter's newest that both runtimes know well.
_OLDER_OPSET = 17


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`example`: a case with at least two rows, since an axis of one element would be frozen."""
    source, description = source_of(arguments), description_of(arguments)
    module = load_module(source)
    inputs = load_cases(Path(arguments["example"]))[0].inputs
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    outputs = arguments["outputs"]
    exporter, reason = "dynamo", ""
    if source.kind is SourceKind.TORCH_SCRIPT:
        exporter = "older"
        _export_older(module, inputs, description, outputs, target)
    else:
        try:
            _export(source, module, inputs, description, outputs, target)
        except Exception as error:
            traceback.print_exc()
            exporter, reason = "older", str(error).strip().split("\n")[0]
            for left in target.parent.iterdir():
                left.unlink()
            _export_older(module, inputs, description, outputs, target)
    onnx.checker.check_model(str(target))
    return {"exporter": exporter, "reason": reason}


def _export(
    source: Source, module: Any, inputs: Arrays, description: Description, outputs: Sequence[str], target: Path
) -> None:
    names = [spec.name for spec in description.inputs]
    program = torch.onnx.export(
        export(source, module, inputs, description), dynamo=True, input_names=names, output_names=list(outputs)
    )
    if program is None:
        raise RuntimeError("torch.onnx.export has answered nothing")
    program.save(str(target))


def _export_older(module: Any, inputs: Arrays, description: Description, outputs: Sequence[str], target: Path) -> None:
    names = [spec.name for spec in description.inputs]
    tensors = tensors_of(inputs)
    first = 1 if description.is_batching else 0
    axes: dict[str, dict[int, str]] = {name: {0: "batch"} if first else {} for name in (*names, *outputs)}
    for spec in description.inputs:
        axes[spec.name].update({axis + first: dim for axis, dim in enumerate(spec.dims) if isinstance(dim, str)})
    with torch.no_grad():
        torch.onnx.export(
            module,
            tuple(tensors[name] for name in names),
            str(target),
            dynamo=False,
            input_names=names,
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=_OLDER_OPSET,
        )
