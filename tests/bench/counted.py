"""A server whose Python calls are counted: `python -m tests.bench.counted FILE serve …` runs `trioton serve …`.

The first SIGUSR2 begins to count, the second writes what was counted, of the main thread: JSON of `[calls, function]`,
the most called first. What a coroutine does after it has waited counts as one more call of it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from trioton.cli import main


class CallCounter:
    """Counts from one `toggle` to the next."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls: Counter[CodeType] = Counter()
        self._is_counting = False

    def toggle(self, *_: object) -> None:
        self._is_counting = not self._is_counting
        if self._is_counting:
            self._calls.clear()
            sys.setprofile(self._note)
        else:
            sys.setprofile(None)
            found = [(count, named(code)) for code, count in self._calls.most_common()]
            whole = self._file.with_suffix(".part")
            whole.write_text(json.dumps(found))
            whole.replace(self._file)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._calls[frame.f_code] += 1


def named(code: CodeType) -> str:
    return f"{code.co_qualname} {'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_firstlineno}"


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, CallCounter(Path(sys.argv[1])).toggle)
    del sys.argv[1]
    main()
