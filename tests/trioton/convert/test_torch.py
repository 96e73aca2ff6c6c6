"""`trioton convert` of torch, by its command. torch is in other processes alone: this one does not import it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trioton.convert.torch_files import MAKE, NET
from trioton.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "onnxscript", "openvino")),
        reason="needs torch, onnxscript and openvino",
    ),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module and images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    images = np.random.default_rng(0).standard_normal((20, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "images.npz", image=images)
    return tmp_path


def make_files(place: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE], cwd=place, check=True, capture_output=True)


def convert(source: str, *words: str) -> dict[str, bool]:
    """Which candidates have passed."""
    image = "--input=image:FP32:3,-1,-1"
    common = ("--samples=images.npz", image, "--load-secs=0", "--name=net", "--force")
    assert main(["convert", source, "models", *common, *words]) == 0
    report = json.loads(Path("net.convert", "report.json").read_text())
    return {outcome["name"]: outcome["is_passed"] for outcome in report["outcomes"]}


def result(step: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path("net.convert", "steps", step, "result.json").read_text())
    return found


def test_a_module_becomes_all_that_its_backends_serve(place: Path) -> None:
    names = ("onnx", "pt2", "openvino", "openvino-fp16")
    assert convert("net.py:make", *(f"--to={name}" for name in names)) == dict.fromkeys(names, True)
    assert result("02-reference")["precision"] == "float64"
    assert result("03-onnx")["exporter"] == "dynamo"


def test_files_that_a_factory_reads_are_part_of_the_source(place: Path) -> None:
    make_files(place)
    (place / "sizes.py").write_text("SCALE = 1.0\n")
    (place / "with_weights.py").write_text(
        "import torch\nfrom net import Net\nfrom sizes import SCALE\n"
        "def make():\n    net = Net(SCALE)\n"
        f"    net.load_state_dict(torch.load({str(place / 'weights.bin')!r}))\n    return net\n"
    )
    assert convert("with_weights.py:make", "--to=pt2") == {"pt2": True}
    provenance = json.loads(Path("models/net/1/provenance.json").read_text())
    names = sorted(Path(path).name for path in provenance["source"]["files"])
    assert names == ["net.py", "sizes.py", "weights.bin", "with_weights.py"]


def test_mutants_of_torch_do_not_pass_and_honest_files_do(place: Path) -> None:
    make_files(place)
    files = ("honest.onnx", "net.pt2", "scaled.onnx", "training.onnx", "frozen.pt2")
    passed = convert("net.py:make", "--to=onnx", *(f"--candidate={Path(file).stem}={file}" for file in files))
    assert passed == {"onnx": True, "honest": True, "net": True, "scaled": False, "training": False, "frozen": False}


def test_torchscript_and_exported_programs_are_sources(place: Path) -> None:
    make_files(place)
    assert convert("traced.pt") == {"as-is": True, "onnx": True, "openvino": True}
    assert convert("net.pt2", "--to=as-is", "--to=onnx", "--to=pt2") == {"as-is": True, "onnx": True, "pt2": True}
