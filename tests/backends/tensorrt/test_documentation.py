"""The page lists every parameter and setting that the code reads, and none else."""

from __future__ import annotations

import re
from pathlib import Path

import backends.tensorrt.options as options
from repository.model_config import OptimizationCuda

PAGE = (Path(__file__).parents[3] / "docs" / "backends" / "tensorrt.md").read_text()
# Refused, and told so by `docs/differences.md`.
REFUSED = {"enable_multi_device"}


def test_parameters_and_settings() -> None:
    source = Path(options.__file__).read_text()
    read = set(re.findall(r'config\.parameter\("(\w+)"\)', source)) - REFUSED
    read |= set(re.findall(r'settings(?:\.get\(|, )"([\w-]+)"', source))
    (section,) = re.findall(r"^## Options\n(.*?)^`optimization`:", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^\| `([\w-]+)` \| ", section, re.MULTILINE)) - {"parameters"} == read


def test_fields_of_cuda() -> None:
    for name in OptimizationCuda.__struct_fields__:
        assert f"| `cuda {{ {name} }}` |" in PAGE
