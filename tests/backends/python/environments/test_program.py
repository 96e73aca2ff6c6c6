"""Which `model.py` is said to have no `auto_complete_config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.python.environments.program import may_complete

PLAIN = '''
import logging
import torch
import triton_python_backend_utils as pb_utils

# TritonPythonModel is what the server looks for.
logger = logging.getLogger(__name__)

class TritonPythonModel:
    """Every model has "TritonPythonModel" as the name of its class."""

    def initialize(self, args):
        self.model = torch.compile(torch.nn.Linear(2, 2)).eval()

    @torch.inference_mode()
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]

if __name__ == "__main__":
    pass
'''


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "model.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("brackets", ["", "()", " ( )"])
def test_a_plain_class_has_none(tmp_path: Path, brackets: str) -> None:
    assert not may_complete(written(tmp_path, PLAIN.replace("Model:", f"Model{brackets}:")))


@pytest.mark.parametrize(
    "added",
    [
        "def auto_complete_config(config): pass",
        "# it has an auto_complete_config",
        "helper.install(TritonPythonModel)",
        "TritonPythonModel = helper.Completing",
        "TritonPythonModel = helper.completing(TritonPythonModel)",
        "class TritonPythonModel: pass",
        "if True:\n    class TritonPythonModel: pass",
        "from helper import TritonPythonModel",
        "from helper import (\n    other,\n    TritonPythonModel,\n)",
        "import helper as TritonPythonModel",
        "from helper import *",
        "exec(helper.TEXT)",
        "import builtins\nbuiltins.exec(helper.TEXT)",
        "globals()[helper.NAME] = helper.CLASS",
        "helper.install(__name__)",
        "import sys\nhelper.install(sys.modules[helper.NAME])",
        "def __getattr__(name): return helper.find(name)",
        "class Field:\n    def __set_name__(self, owner, name): helper.install(owner)",
        "def f(model): setattr(type(model), helper.NAME, None)",
        "# é",
    ],
)
def test_what_may_bring_one_is_run(tmp_path: Path, added: str) -> None:
    assert may_complete(written(tmp_path, PLAIN + added + "\n"))
    assert may_complete(written(tmp_path, added + "\n" + PLAIN))


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ("class TritonPythonModel:", "class TritonPythonModel(helper.Base):"),
        ("class TritonPythonModel:", "class TritonPythonModel(metaclass=helper.Meta):"),
        ("class TritonPythonModel:", "class TritonPythonModel \\\n    (helper.Base):"),
        ("class TritonPythonModel:", "@helper.completing\nclass TritonPythonModel:"),
        ("class TritonPythonModel:", "class TritonPythonModel[T]:"),
        ("class TritonPythonModel:", "class Another:"),
        ("    def initialize(", "    locals()[helper.NAME] = helper.complete\n\n    def initialize("),
        ("    def initialize(", "    \uff41uto_complete_config = helper.complete\n\n    def initialize("),
    ],
)
def test_a_class_that_is_not_plain_is_run(tmp_path: Path, plain: str, other: str) -> None:
    assert plain in PLAIN
    assert may_complete(written(tmp_path, PLAIN.replace(plain, other)))


def test_what_cannot_be_read_is_run(tmp_path: Path) -> None:
    assert may_complete(tmp_path / "none.py")
    assert may_complete(written(tmp_path, PLAIN + "#" * (1 << 18)))
    assert may_complete(written(tmp_path, b"# coding: utf-7\n" + PLAIN.encode()))
    assert may_complete(written(tmp_path, PLAIN.encode("utf-16")))
    assert may_complete(written(tmp_path, ""))
