"""The `openvino` backend: OpenVINO's own files (IR), ONNX and what else the library reads, on CPU and Intel devices.

`backend` holds the class; `options` reads the configuration, `model_file` the model, `errors` translates the library's
exceptions. Importing this package needs the framework; the registry does it.
"""

from backends.openvino.backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
