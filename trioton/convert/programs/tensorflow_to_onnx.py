"""Step: a SavedModel to ONNX by tf2onnx, which is a program itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from trioton.convert.programs.loading import source_of
from trioton.convert.programs.tensorflow_source import SIGNATURE

_OPSET = 17


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    source = source_of(arguments).path
    command = [sys.executable, "-m", "tf2onnx.convert", "--saved-model", source, "--output", str(target)]
    subprocess.run([*command, "--signature_def", SIGNATURE, "--tag", "serve", "--opset", str(_OPSET)], check=True)
    return {}
