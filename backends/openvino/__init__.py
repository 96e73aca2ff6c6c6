"""The `openvino` backend: OpenVINO's own files (IR), ONNX and what else the library reads, on CPU and Intel devices.

`backend` holds the class; `options` reads the configuration, `model_file` the model, `errors` translates the library's
exceptions. Importing this package needs the framework; the registry does it.
"""

import sys

# Usage data, which the import of openvino sends by default: without this package it sends none.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

from backends.openvino.backend import OpenVinoBackend  # noqa: E402 (after the line above)

__all__ = ["OpenVinoBackend"]
