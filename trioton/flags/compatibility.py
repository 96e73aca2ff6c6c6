"""Triton flags that are accepted without effect, for compatible command lines. Part of `trioton.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from trioton.flags.fields import at_least, flag, integer, of_device, repeatable, rows

COMPATIBILITY = "Taken for Triton's sake, without effect"


@dataclass(frozen=True, slots=True)
class VirtualAddressSize:
    """One `--cuda-virtual-address-size`."""

    device_id: int
    byte_size: int


virtual_address_size = of_device(
    VirtualAddressSize, integer(0), "--cuda-virtual-address-size option format is '<device>:<bytes>'"
)


def _text(help: str) -> str:
    return flag("", str, group=COMPATIBILITY, metavar="<path>", help=help)


def _count(default: int, help: str) -> int:
    return flag(default, at_least(0), group=COMPATIBILITY, metavar="<integer>", help=help)


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

    sagemaker_thread_count: int = _count(8, "There are no such threads here.")
    vertex_ai_thread_count: int = _count(8, "There are no such threads here.")

    def compatibility_notices(self) -> list[str]:
        """A sentence for each flag that is given."""
        return [
            f"--{row.name} has no effect: {row.help}"
            for row in rows(CompatibilityFlags)
            if getattr(self, row.field_name) != row.default
        ]
