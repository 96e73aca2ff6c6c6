"""Options of the openvino backend, from the `parameters` of a configuration.

The keys, values and texts are those of Triton's openvino backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig

CPU = "CPU"
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """`properties` are the library's, by its names, for the compilation."""

    device: str = CPU
    properties: dict[str, Any] = field(default_factory=dict)
    extension: str = ""
    # Either makes the model take batches of `max_batch_size` rows and no others; `pads_batches` fills smaller ones up.
    skips_dynamic_batch: bool = False
    pads_batches: bool = False
    takes_configured_dims: bool = False

    @property
    def has_fixed_batch(self) -> bool:
        return self.skips_dynamic_batch or self.pads_batches


def read_options(config: ModelConfig) -> OpenVinoOptions:
    """Raises InvalidArgument for a value that is not known."""

    def refused(key: str, expected: str) -> InvalidArgument:
        text = config.parameter(key).lower()
        return InvalidArgument(f"expected the parameter '{key}' to be {expected}, got {text} (model '{config.name}')")

    def flag(key: str) -> bool:
        text = config.parameter(key).lower()
        if text not in ("", "yes", "no"):
            raise refused(key, "YES or NO")
        return text == "yes"

    def count(key: str) -> int | None:
        text = config.parameter(key)
        if text and not text.isdecimal():
            raise refused(key, "a non-negative number")
        return int(text) if text else None

    properties: dict[str, Any] = {}
    for key in ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"):
        if (number := count(key)) is not None:
            properties[key] = number
    streams = config.parameter("NUM_STREAMS").upper()
    if streams in ("AUTO", "NUMA"):
        properties["NUM_STREAMS"] = streams
    elif streams.isdecimal():
        properties["NUM_STREAMS"] = int(streams)
    elif streams:
        raise refused("NUM_STREAMS", "either AUTO/NUMA/<int_value>")
    hint = config.parameter("PERFORMANCE_HINT").upper()
    if hint in _HINTS:
        properties["PERFORMANCE_HINT"] = hint
    elif hint:
        raise refused("PERFORMANCE_HINT", "/".join(_HINTS))
    device = config.parameter("TARGET_DEVICE").upper() or CPU
    is_half = config.parameter("HINT_BF16").lower()
    if is_half not in ("", "yes"):
        raise refused("HINT_BF16", "YES")
    if is_half:
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    elif device == CPU:
        # Left to itself the library computes in bfloat16 on processors that can, and a model's answers would depend on
        # the machine.
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    if device == CPU:
        # A thread that is bound to one core waits there for whatever else runs on it, as the server itself.
        properties["ENABLE_CPU_PINNING"] = False
    return OpenVinoOptions(
        device=device,
        properties=properties,
        extension=config.parameter("CPU_EXTENSION_PATH"),
        skips_dynamic_batch=flag("SKIP_OV_DYNAMIC_BATCHSIZE"),
        pads_batches=flag("ENABLE_BATCH_PADDING"),
        takes_configured_dims=flag("RESHAPE_IO_LAYERS"),
    )
