"""Base class of the generated messages: a betterproto2 message that is no pydantic dataclass, and says so itself."""

from __future__ import annotations

import betterproto2


class PlainMessage(betterproto2.Message):
    def _is_pydantic(self) -> bool:
        """betterproto2 asks pydantic where that is installed, which is an import of megabytes that holds the loop."""
        return False
