"""The table in docs/python-backend.md names every symbol of `triton_python_backend_utils`, and tests that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backends.interface import InstanceSpec
from backends.python import PythonBackend
from backends.python.worker.trioton_worker import api as pb_utils
from tests.backends.python.models import infer, output, request, running
from tests.backends.python.test_services import Server, made

HERE = Path(__file__).parent
TEXT = (HERE.parents[2] / "docs" / "python-backend.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)`", TEXT)))
MENTIONED = set(re.findall(r"`(\w+)`", TEXT))


def symbols() -> Iterator[str]:
    """All public names, and those of the classes among them."""
    for name, found in {**vars(pb_utils), **pb_utils.EXTENSION}.items():
        if name in pb_utils.EXTENSION or name in pb_utils.__all__:
            yield name
            if isinstance(found, type):
                yield from (each for each in vars(found) if not each.startswith("_"))


def test_the_table_is_read() -> None:
    assert len(NAMED) > 60


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_it_names_is_there(file: str) -> None:
    (path,) = HERE.rglob(file)
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))
    assert {name for named, name in NAMED if named == file} <= there


def test_no_symbol_is_left_out() -> None:
    assert set(symbols()) - MENTIONED == set()


def test_constants_have_the_values_of_triton() -> None:
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_MEMORY_CPU != pb_utils.TRITONSERVER_MEMORY_GPU


def test_preferred_memory_is_taken() -> None:
    wanted = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    assert (wanted.preferred_memory_type, wanted.preferred_device_id) == (pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    request_of = partial(pb_utils.InferenceRequest, model_name="m", inputs=[], requested_output_names=["OUT"])
    request_of(preferred_memory=wanted)
    with pytest.raises(TypeError, match="preferred_memory must be PreferredMemory"):
        request_of(preferred_memory=1)  # type: ignore[arg-type]  # the mistake under test


async def test_a_stream_can_be_cancelled(tmp_path: Path) -> None:
    """It may end early then, and it ends."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        stream = calling(requests[0], "stream").exec(decoupled=True)
        stream.cancel()
        return [answer(str(len(list(stream)) <= 2))]
"""
    instance = PythonBackend(InstanceSpec(made(tmp_path, body, "process", Server()), "m_0"))
    async with running(instance):
        [response] = await infer(instance, request(np.zeros((1, 1), np.float32)))
        assert output(response).tolist() == [b"True"]
