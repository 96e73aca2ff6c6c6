"""The `onnxruntime` backend: ONNX models on CPU, and on NVIDIA GPUs where the installed package can.

`backend` holds the class; `options` and `providers` read the configuration, `signature` and `onnx_file` the model,
`errors` translates the library's exceptions. Importing this package needs the framework; the registry does it.
"""

from backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
