"""Long texts of a configuration, which protobuf's JSON mapping is not shown.

It looks for halves of surrogate pairs in each by a regular expression, which takes 80 to 130 ns a character and holds
the interpreter's lock meanwhile: for 5 MB all requests were held for 0.2 to 0.6 s, in whatever thread. Whoever reads
the JSON has refused such halves already.
"""

from __future__ import annotations

import secrets
from typing import Any

# A shorter one takes less than a millisecond.
LONG_ABOVE = 4096


class LongTexts:
    """Those of one configuration, for which marks stand until they are put back."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(16)  # so that no text of a client is a mark
        self._texts: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def left_out(self, text: str) -> str:
        """The text itself, or a mark for one that is long."""
        if len(text) <= LONG_ABOVE:
            return text
        mark = f"{self._prefix}{len(self._texts)}"
        self._texts[mark] = text
        return mark

    def put_back(self, fields: Any) -> Any:
        """The same dictionaries and lists with the texts in place of their marks."""
        if isinstance(fields, dict):
            return {key: self.put_back(value) for key, value in fields.items()}
        if isinstance(fields, list):
            return [self.put_back(value) for value in fields]
        return self._texts.get(fields, fields) if isinstance(fields, str) else fields
