"""The `tensorrt` backend: engines (plans) of NVIDIA's TensorRT, on NVIDIA GPUs.

Decisions are plain data, and run without a GPU: `options` reads the configuration, `description` is what an engine
says of itself, `completion` and `compatibility` compare the two, `profiles` and `graphs` choose for a batch,
`batch_plan` says what it runs with, `regions` where a batch lies in a larger graph's tensors. `library` alone calls
TensorRT, and CUDA is reached through `backends.devices`; `engines` loads and shares, `execution` runs a batch with
both, and `backend` holds the class. Importing this package needs neither: a load does.
"""

from backends.tensorrt.backend import TensorRTBackend

__all__ = ["TensorRTBackend"]
