"""PyTorch models behind the schedulers: states of sequences, optional inputs in batches, settings of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Tuple  # noqa: UP035 (TorchScript reads them)

import numpy as np
import torch

from tests.backends.conformance.serving import model_of, serving
from tests.backends.pytorch.torch_models import save_exported, save_script


class Summing(torch.nn.Module):
    """The sum of a sequence so far; it starts anew at each start."""

    def forward(self, x: torch.Tensor, start: torch.Tensor, total: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        total = total * (1 - start) + x
        return total, total


SEQUENCE = """
backend: "pytorch"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SUM__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
sequence_batching {
  control_input [ { name: "start" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
  state [ { input_name: "total" output_name: "NEXT__1" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""


async def test_states_and_controls_are_arguments_as_any_other(tmp_path: Path) -> None:
    save_script(Summing(), tmp_path / "script", SEQUENCE)
    save_exported(Summing(), tmp_path / "exported", SEQUENCE, (2, 1), count=3)
    async with serving(tmp_path, load=("script", "exported")) as core:
        for name in ("script", "exported"):
            model = model_of(core, name)
            sums = []
            for step, number in enumerate((1.0, 2.0, 4.0)):
                x = np.array([[number]], np.float32)
                found = await model.infer({"x": x}, sequence_id=7, sequence_start=step == 0, sequence_end=step == 2)
                sums.append(found["SUM__0"].item())
            assert sums == [1, 3, 7]


class Offset(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x if y is None else x + y


async def test_requests_with_and_without_an_optional_input_do_not_mix(tmp_path: Path) -> None:
    save_script(
        Offset(),
        tmp_path / "m",
        """
        backend: "pytorch"
        max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] },
                { name: "y" data_type: TYPE_FP32 dims: [ -1 ] optional: true } ]
        output [ { name: "SUM" data_type: TYPE_FP32 dims: [ -1 ] } ]
        dynamic_batching { }
        """,
    )
    x, y = np.ones((1, 2), np.float32), np.full((1, 2), 10, np.float32)
    async with serving(tmp_path) as core:
        answers = await model_of(core).infer_many([{"x": x}, {"x": x, "y": y}] * 10)
    for answer, expected in zip(answers, [1, 11] * 10, strict=True):
        assert not isinstance(answer, Exception), answer
        assert answer["SUM"].tolist() == [[expected, expected]]


def test_settings_of_the_process_reach_the_library() -> None:
    """In a process of its own, as they stay."""
    code = """
import logging, torch
from backends.pytorch.options import ProcessOptions
from backends.pytorch.process_settings import ProcessSettings
logging.basicConfig()
settings = ProcessSettings()
every = ProcessOptions(1, 1, tensor_fuser=False, jit_profiling=False, jit_executor=False, disable_cudnn=True)
settings.apply(every, "first")
assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (1, 1)
assert not torch._C._jit_texpr_fuser_enabled()
assert not torch.backends.cudnn.enabled
assert torch._C._jit_set_profiling_mode(True) is False
assert torch._C._jit_set_profiling_executor(True) is False
ProcessSettings().apply(ProcessOptions(inter_op_thread_count=2), "late")
assert torch.get_num_interop_threads() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model 'late' wants INTER_OP_THREAD_COUNT 2, which comes too late" in done.stderr
