"""The error where a package of the extra `llm` is missing."""

from __future__ import annotations

from protocol.errors import Unsupported


def missing_package(package: str, purpose: str) -> Unsupported:
    """What to raise where `package` cannot be imported; `purpose` is what needs it."""
    return Unsupported(f"{purpose} needs the package {package}, which is not installed: pip install 'trioton[llm]'")
