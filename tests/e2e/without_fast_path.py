"""The command `trioton` with edges that serve every request by a task: `python -m tests.e2e.without_fast_path …`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trioton.cli import main
from trioton.settings import Settings


def without(edge: Callable[[Settings], Any]) -> Callable[[Settings], Any]:
    return lambda settings: replace(edge(settings), has_fast_path=False)


for name in ("http_edge", "grpc_edge"):
    setattr(Settings, name, without(getattr(Settings, name)))

sys.exit(main())
