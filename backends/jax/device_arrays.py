"""GPU tensors as JAX arrays and back, in place. Tested with the host for a GPU; not seen running on one.

The library computes on streams and in memory of its own. So the instance's stream only brings the inputs, and is waited
for before the library reads them; and results are handed on when they are complete.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from backends.devices.stream import DeviceStream
from backends.interface import InstanceSpec
from backends.jax.device import devices_of
from protocol.errors import Unavailable
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from protocol.tensors.dlpack import layout_of
from repository.model_config import InstanceKind

logger = logging.getLogger("trioton.jax")


def stream_of(spec: InstanceSpec, device: Any) -> DeviceStream | None:
    """A stream for an instance on one of NVIDIA's GPUs; None where the library is to copy tensors by itself: on any
    other device, and without cupy."""
    if spec.kind is not InstanceKind.GPU or device not in devices_of("cuda"):
        return None
    try:
        return spec.source.devices.stream(spec.device_id, spec.config)
    except Unavailable as error:
        logger.info("model instance '%s': jax copies tensors by itself: %s", spec.name, error)
        return None


def array_of(value: Any, device: Any) -> Any:
    """An input over the memory of its tensor, which holds that memory. It must be complete."""
    if not isinstance(value, DeviceTensor):
        return value
    if not value.byte_size:  # nothing has no address
        return jax.device_put(np.empty(value.shape, value.datatype.dtype), device)
    return jax.dlpack.from_dlpack(value)


def tensors_of(results: Mapping[str, Any], stream: DeviceStream) -> dict[str, DeviceTensor]:
    """The results in the memory in which the library has them. Blocks until they are computed; what the library raises
    passes."""
    jax.block_until_ready(list(results.values()))
    found: dict[str, DeviceTensor] = {}
    for name, result in results.items():
        layout = layout_of(result)
        buffer = DeviceBuffer(stream.memory, layout.address, layout.byte_size, layout.owner)
        found[name] = device_tensor(name, layout.datatype, layout.shape, buffer)
    return found
