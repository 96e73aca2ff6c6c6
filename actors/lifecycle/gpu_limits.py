"""GPU load limit (`--model-load-gpu-limit`): refuses to load a model onto a GPU whose memory use exceeds a fraction.

Consulted by the model loader. Source: Triton's flag of this name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from backends.devices.machine import gpu_memory
from protocol.errors import Unavailable
from repository.model_config import InstanceKind, ModelConfig

logger = logging.getLogger("trioton.model_loading")


def check_gpu_limits(config: ModelConfig, limits: Mapping[int, float]) -> None:
    """Check a normalised configuration against the GPUs as they are now; blocks while the driver answers. A GPU whose
    memory cannot be read does not stop a load, and is logged.

    Raises:
        Unavailable: a GPU that an instance is for is over its limit.
    """
    wanted = {gpu for group in config.instance_group if group.kind is InstanceKind.GPU for gpu in group.gpus}
    for device in sorted(wanted & limits.keys()):
        memory = gpu_memory(device)
        if memory is None or not memory.total:
            logger.warning("model '%s': the memory limit of GPU %d is not checked", config.name, device)
        elif memory.used / memory.total > limits[device]:
            raise Unavailable(
                f"can not create model '{config.name}': memory limit set for GPU {device} has exceeded, model loading "
                f"is rejected. {memory.used} of {memory.total} bytes are used, the limit is {limits[device]:g} of them"
            )
