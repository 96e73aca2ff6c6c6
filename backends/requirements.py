"""Error texts for missing frameworks: what to install.

The registry (which imports a backend's module) and `backends.array_backend` (whose subclasses may import while they
load) turn an ImportError into the sentence made here.
"""

from __future__ import annotations

from protocol.errors import Unavailable

# For NVIDIA GPUs: what brings onnxruntime-gpu, cupy and nvidia-ml-py for each CUDA.
INSTALL_GPU = "pip install 'trioton[gpu]', or 'trioton[gpu-cuda12]' for CUDA 12"
INSTALL_TENSORRT = "pip install 'trioton[tensorrt]', or 'trioton[tensorrt-cuda12]' for CUDA 12"

# Backend name -> what its model needs and the command that brings it.
_INSTALL = {
    "onnxruntime": (
        "the onnxruntime package: pip install 'trioton[cpu]' (for NVIDIA GPUs 'trioton[gpu]' in its place, or "
        "'trioton[gpu-cuda12]' for CUDA 12)"
    ),
    "fil": "the treelite package: pip install 'trioton[forests]'",
    "jax": "the jax and flatbuffers packages: pip install 'trioton[jax]'",
    "openvino_genai": "the openvino-genai package: pip install 'trioton[openvino-genai]'",
    "vllm": "the vllm package: pip install 'trioton[vllm]'",
    "openvino": "the openvino package: pip install 'trioton[openvino]'",
    "tensorflow": "the tensorflow package: pip install 'trioton[tensorflow]'",
    "tensorrt": f"the tensorrt and cupy packages and an NVIDIA GPU: {INSTALL_TENSORRT}",
    "pytorch": "the torch package: pip install 'trioton[torch]'",
}


def framework_missing(backend: str, *, model: str, error: ImportError, provided_by: str = "") -> Unavailable:
    """The load error of a model whose backend cannot be imported.

    `provided_by` names the entry point (and its package) of a backend that is not one of ours.
    """
    needed = _INSTALL.get(backend)
    if needed is not None:
        return Unavailable(f"model '{model}' needs {needed} ({error})")
    origin = f" from {provided_by}" if provided_by else ""
    what = f"the Python package '{error.name}'" if error.name else "a Python package that cannot be imported"
    return Unavailable(
        f"model '{model}' needs {what}: its backend '{backend}'{origin} failed to import it ({error}); "
        f"install it into the server's environment"
    )
