"""Step: the inputs that a source tells."""

from __future__ import annotations

from typing import Any

import msgspec

from trioton.convert.programs.loading import load_source, source_of


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": msgspec.to_builtins(tuple(load_source(source_of(arguments)).inputs()))}
