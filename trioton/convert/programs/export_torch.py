"""Step: torch to an exported program (`.pt2`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trioton.convert.programs.loading import description_of, source_of
from trioton.convert.programs.torch_source import export, load_module
from trioton.convert.storage import load_cases


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    inputs = load_cases(Path(arguments["example"]))[0].inputs
    source = source_of(arguments)
    program = export(source, load_module(source), inputs, description_of(arguments))
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, target)
    return {}
