"""Triton flags that are accepted without effect, for compatible command lines. Part of `trioton.settings`.

What a flag would turn on and is not served is refused by name instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from trioton.flags import UsageError, at_least, boolean, flag, integer, of_device, port, repeatable, rows

COMPATIBILITY = "Taken for Triton's sake, without effect"
_REST = "the same calls are served by the REST API"


@dataclass(frozen=True, slots=True)
class VirtualAddressSize:
    """One `--cuda-virtual-address-size`."""

    device_id: int
    byte_size: int


virtual_address_size = of_device(
    VirtualAddressSize, integer(0), "--cuda-virtual-address-size option format is '<device>:<bytes>'"
)


def port_range(text: str) -> tuple[int, int]:
    """`<first>-<last>`."""
    first, dash, last = text.partition("-")
    try:
        if not dash:
            raise ValueError
        return port(first), port(last)
    except ValueError:
        raise ValueError("expected <first port>-<last port>") from None


def _text(help: str) -> str:
    return flag("", str, group=COMPATIBILITY, metavar="<path>", help=help)


def _count(default: int, help: str) -> int:
    return flag(default, at_least(0), group=COMPATIBILITY, metavar="<integer>", help=help)


def _port(help: str) -> int:
    return flag(8080, port, group=COMPATIBILITY, metavar="<integer>", help=help)


def _off(help: str) -> bool:
    return flag(False, boolean, group=COMPATIBILITY, metavar="<boolean>", help=help)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class CompatibilityFlags:
    """The part of the settings that nothing reads."""

    repoagent_directory: str = _text("Repository agents are installed Python packages here.")
    cache_directory: str = _text("Caches are installed Python packages here.")
    buffer_manager_thread_count: int = _count(0, "There are no such threads here.")
    cuda_virtual_address_size: tuple[VirtualAddressSize, ...] = repeatable(
        virtual_address_size,
        group=COMPATIBILITY,
        metavar="<device>:<bytes>",
        help="Growable states lie in host memory here.",
    )

    allow_sagemaker: bool = _off("Refused where true: SageMaker's protocol is not served.")
    sagemaker_port: int = _port("Of SageMaker's protocol.")
    sagemaker_safe_port_range: tuple[int, int] | None = flag(
        None, port_range, group=COMPATIBILITY, metavar="<integer>-<integer>", help="Of SageMaker's protocol."
    )
    sagemaker_thread_count: int = _count(8, "Of SageMaker's protocol.")
    allow_vertex_ai: bool = _off("Refused where true: Vertex AI's protocol is not served.")
    vertex_ai_port: int = _port("Of Vertex AI's protocol.")
    vertex_ai_thread_count: int = _count(8, "Of Vertex AI's protocol.")
    vertex_ai_default_model: str = _text("Of Vertex AI's protocol.")

    def compatibility_notices(self) -> list[str]:
        """A sentence for each flag that is given."""
        return [
            f"--{row.name} has no effect: {row.help}"
            for row in rows(CompatibilityFlags)
            if getattr(self, row.field_name) != row.default
        ]

    def check_compatibility(self) -> None:
        """Raises UsageError for a service that is asked for and not there."""
        for name, is_wanted in (("sagemaker", self.allow_sagemaker), ("vertex-ai", self.allow_vertex_ai)):
            if is_wanted:
                raise UsageError(f"--allow-{name} is a flag of Triton's that Trioton does not have yet; {_REST}")
